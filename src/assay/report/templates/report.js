"use strict";

/* Which of the first `size` edges lie on a path from node 0 (input) to the last node (logits).
   An edge is [source, [nodes it feeds], ...]; sources are numbered in forward order. */
function connected(edges, size, nNodes) {
  const order = [...Array(size).keys()].sort((a, b) => edges[a][0] - edges[b][0]);
  const reached = new Array(nNodes).fill(false), leads = new Array(nNodes).fill(false);
  reached[0] = true;
  leads[nNodes - 1] = true;
  for (const i of order) {
    if (reached[edges[i][0]]) for (const node of edges[i][1]) reached[node] = true;
  }
  for (const i of order.reverse()) {
    if (edges[i][1].some((node) => leads[node])) leads[edges[i][0]] = true;
  }
  return edges.map((edge, i) => i < size && reached[edge[0]] && edge[1].some((node) => leads[node]));
}

/* Faithfulness at a size between two measured ones: linear in the logarithm of the size. */
function interpolate(sizes, values, size) {
  for (let i = 0; i < sizes.length; i++) {
    if (values[i] === null) continue;
    if (sizes[i] === size) return values[i];
    if (sizes[i] > size) {
      if (i === 0 || values[i - 1] === null) return null;
      const part = Math.log(size / sizes[i - 1]) / Math.log(sizes[i] / sizes[i - 1]);
      return values[i - 1] + part * (values[i] - values[i - 1]);
    }
  }
  return null;
}

function signed(score) {
  const size = Math.abs(score);
  const text = size >= 0.001 || size === 0 ? size.toFixed(3) : size.toExponential(1);
  return (score < 0 ? "\u2212" : "+") + text;
}

function edgeCount(count) {
  return `${count.toLocaleString("en")} ${count === 1 ? "edge" : "edges"}`;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function circuitView(figure) {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const graph = figure.querySelector(".graph"), stage = figure.querySelector(".stage");
  const slider = figure.querySelector("input"), output = figure.querySelector("output");
  const reset = figure.querySelector(".reset"), tip = figure.querySelector(".tip");
  const inspector = figure.querySelector(".inspector");
  const edges = data.edges, paths = [], hits = [];
  const nodes = [...graph.querySelectorAll(".node")];
  const rows = [...figure.querySelectorAll(".edges-table tbody tr")];
  let kept = [], pinned = null;

  graph.querySelectorAll(".edges .edge").forEach((path) => {
    const i = Number(path.dataset.i), hit = path.cloneNode();
    hit.setAttribute("class", "hit");
    hit.setAttribute("stroke-width", Math.max(9, Number(path.getAttribute("stroke-width")) + 4));
    paths[i] = path;
    hits[i] = hit;
    hit.addEventListener("mouseenter", () => { if (pinned === null) pickEdge(i); });
    hit.addEventListener("mousemove", showTip);
    hit.addEventListener("mouseleave", release);
  });
  const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
  hits.forEach((hit) => layer.prepend(hit));
  graph.querySelector(".edges").after(layer);

  const sentence = (i) => `${data.nodes[edges[i][0]]} \u2192 ${edges[i][2]}  ${signed(edges[i][3])}, rank ${i + 1}`;

  function showTip(event) {
    const box = stage.getBoundingClientRect();
    const left = event.clientX - box.left + stage.scrollLeft + 14;
    tip.style.left = Math.min(left, stage.scrollLeft + box.width - tip.offsetWidth - 4) + "px";
    tip.style.top = Math.min(event.clientY - box.top + 16, box.height - tip.offsetHeight - 2) + "px";
  }

  function pick(hot, near, picked) {
    graph.classList.add("picked");
    paths.forEach((path, i) => path.classList.toggle("hot", hot.has(i)));
    nodes.forEach((node, n) => {
      node.classList.toggle("near", near.has(n));
      node.classList.toggle("picked", picked === n);
    });
  }

  function pickEdge(i) {
    pick(new Set([i]), new Set([edges[i][0], ...edges[i][1]]), null);
    tip.textContent = sentence(i);
    tip.hidden = false;
  }

  function list(title, found, name) {
    const part = element("div"), items = element("ol");
    part.append(element("h4", "", `${title} ${edgeCount(found.length)}`), items);
    found.slice(0, 12).forEach((i) => {
      const item = element("li"), score = edges[i][3];
      item.append(element("span", "", name(i)), element("span", score < 0 ? "minus" : "plus", signed(score)));
      items.append(item);
    });
    return part;
  }

  function pickNode(n) {
    const into = [], from = [], near = new Set([n]);
    edges.forEach((edge, i) => {
      if (!kept[i]) return;
      if (edge[1].includes(n)) { into.push(i); near.add(edge[0]); }
      if (edge[0] === n) { from.push(i); edge[1].forEach((node) => near.add(node)); }
    });
    pick(new Set([...into, ...from]), near, n);
    const lists = element("div", "lists");
    const entry = (i) => data.nodes[edges[i][0]] + (/\.[qkv]$/.test(edges[i][2]) ? ` \u2192 ${edges[i][2].slice(-1)}` : "");
    if (n > 0) lists.append(list("reads", into, entry));
    if (n < nodes.length - 1) lists.append(list("writes", from, (i) => edges[i][2]));
    inspector.replaceChildren(element("h3", "", data.nodes[n] + (pinned === n ? " (pinned)" : "")), lists);
  }

  function release() {
    tip.hidden = true;
    if (pinned !== null) return pickNode(pinned);
    graph.classList.remove("picked");
    paths.forEach((path) => path.classList.remove("hot"));
    nodes.forEach((node) => node.classList.remove("near", "picked"));
    inspector.replaceChildren(element("span", "quiet", "Nothing picked. Hover a node or an edge; click a node, or press Enter on it, to keep it picked."));
  }

  function pin(n) {
    pinned = pinned === n ? null : n;
    nodes.forEach((node, i) => node.setAttribute("aria-pressed", String(pinned === i)));
    if (pinned === null) release();
    else pickNode(n);
  }

  /* The nearest active node in the direction of an arrow key. */
  function neighbour(from, dx, dy) {
    const centre = (node) => {
      const box = node.querySelector("rect").getBBox();
      return [box.x + box.width / 2, node.classList.contains("bar") ? null : box.y + box.height / 2];
    };
    const [x, y] = centre(from);
    let best = null, least = Infinity;
    nodes.forEach((node) => {
      if (node === from || !node.classList.contains("on")) return;
      const [u, v] = centre(node), across = u - x, down = v === null || y === null ? 0 : v - y;
      const along = dx * across + dy * down, aside = Math.abs(dx ? down : across);
      if (along <= 1 || (dy && aside > 1)) return;
      if (along + 2 * aside < least) { least = along + 2 * aside; best = node; }
    });
    return best;
  }

  function focusable(chosen) {
    nodes.forEach((node) => node.setAttribute("tabindex", node === chosen ? "0" : "-1"));
  }

  nodes.forEach((node, n) => {
    node.setAttribute("role", "button");
    node.setAttribute("aria-pressed", "false");
    const active = () => node.classList.contains("on");
    node.addEventListener("mouseenter", () => { if (pinned === null && active()) pickNode(n); });
    node.addEventListener("mouseleave", () => { if (pinned === null) release(); });
    node.addEventListener("click", () => { if (active()) pin(n); });
    node.addEventListener("focus", () => { focusable(node); if (pinned === null && active()) pickNode(n); });
    node.addEventListener("blur", () => { if (pinned === null) release(); });
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
      if (step) {
        const next = neighbour(node, ...step);
        if (next) next.focus();
      } else if (event.key === "Enter" || event.key === " ") pin(n);
      else if (event.key === "Escape" && pinned !== null) pin(pinned);
      else return;
      event.preventDefault();
    });
  });

  function show(size) {
    kept = connected(edges, size, nodes.length);
    const count = kept.filter(Boolean).length, on = new Set();
    edges.forEach((edge, i) => {
      paths[i].classList.toggle("off", !kept[i]);
      hits[i].classList.toggle("off", !kept[i]);
      rows[i].lastElementChild.textContent = kept[i] ? "yes" : "no";
      if (kept[i]) { on.add(edge[0]); edge[1].forEach((node) => on.add(node)); }
    });
    nodes.forEach((node, n) => {
      node.classList.toggle("on", on.has(n));
      const into = edges.filter((edge, i) => kept[i] && edge[1].includes(n)).length;
      const from = edges.filter((edge, i) => kept[i] && edge[0] === n).length;
      node.setAttribute("aria-label", `${data.nodes[n]}: ${edgeCount(into)} in, ${edgeCount(from)} out`);
    });
    const first = nodes.find((node) => node.classList.contains("on")) || nodes[0];
    if (!nodes.some((node) => node.getAttribute("tabindex") === "0" && node.classList.contains("on"))) focusable(first);
    const value = count ? interpolate(data.curve.n_edges, data.curve.values, size) : null;
    const joined = count === size ? "all" : `${count.toLocaleString("en")} of them`;
    const text = `${size.toLocaleString("en")}, ${joined} connected`;
    output.replaceChildren(
      element("b", "", text),
      ` \u00b7 ${(100 * count / data.total).toFixed(1)}\u202f% of all \u00b7 ${on.size} of ${nodes.length} nodes` +
        (value === null ? "" : ` \u00b7 faithfulness about ${value.toFixed(2)}`),
    );
    slider.setAttribute("aria-valuetext", text);
    reset.disabled = size === data.size;
    if (pinned !== null && !on.has(pinned)) pin(pinned);
    else if (pinned !== null) pickNode(pinned);
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  reset.addEventListener("click", () => { slider.value = data.size; show(data.size); slider.focus(); });
  slider.value = data.size;
  figure.querySelector(".controls").hidden = false;
  inspector.hidden = false;
  show(Math.min(data.size, edges.length));
  release();
}

function sortable(table) {
  const body = table.tBodies[0], original = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (!("sort" in cell.dataset)) return;
    const button = element("button", "", cell.textContent);
    button.type = "button";
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = cell.getAttribute("aria-sort");
      const next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
      table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      if (next) cell.setAttribute("aria-sort", next);
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const numeric = cell.classList.contains("n"), sign = next === "descending" ? -1 : 1;
      const rows = next === null ? original : [...original].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true }));
      });
      body.append(...rows);
    });
  });
}

if (typeof document !== "undefined") {
  document.documentElement.classList.add("script");
  document.querySelectorAll("figure.circuit").forEach(circuitView);
  document.querySelectorAll("table.sortable").forEach(sortable);
} else if (typeof module !== "undefined") {
  module.exports = { connected, interpolate, signed };
}
