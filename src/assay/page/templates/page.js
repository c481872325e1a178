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

/* A drawing of nodes and edges that answers to pointer and keyboard.
   `sentence(i)` says what edge i is; `entry(i, n)` names it in the lists of node n. Returns what the views
   around it need: `update(kept)` after edges were switched on or off. */
function graphView(figure, data, words) {
  const graph = figure.querySelector(".graph"), stage = figure.querySelector(".stage");
  const tip = figure.querySelector(".tip"), inspector = figure.querySelector(".inspector");
  const edges = data.edges, paths = [], hits = [];
  const nodes = [...graph.querySelectorAll(".node")];
  let kept = edges.map(() => true), pinned = null;

  graph.querySelectorAll(".edges .edge").forEach((path) => {
    const i = Number(path.dataset.i), hit = path.cloneNode();
    hit.setAttribute("class", "hit");
    hit.setAttribute("stroke-width", Math.max(9, Number(path.getAttribute("stroke-width")) + 4));
    hit.setAttribute("role", "img");
    hit.setAttribute("tabindex", "-1");
    hit.setAttribute("aria-label", words.sentence(i));
    paths[i] = path;
    hits[i] = hit;
    hit.addEventListener("mouseenter", () => { if (pinned === null) pickEdge(i); });
    hit.addEventListener("mousemove", (event) => showTip(event.clientX, event.clientY));
    hit.addEventListener("mouseleave", release);
    hit.addEventListener("focus", () => {
      reachable(hits, hit);
      pickEdge(i);
      const middle = hit.getPointAtLength(hit.getTotalLength() / 2).matrixTransform(hit.getScreenCTM());
      const box = stage.getBoundingClientRect(), left = middle.x - box.left;
      if (left < 0 || left > box.width) stage.scrollLeft += left - box.width / 2;
      showTip(middle.x, middle.y);
    });
    hit.addEventListener("blur", release);
    hit.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      for (let next = i + step; next >= 0 && next < edges.length; next += step) {
        if (kept[next]) return hits[next].focus();
      }
    });
  });
  graph.querySelector(".edges").setAttribute("aria-hidden", "true");
  const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
  layer.setAttribute("role", "group");
  layer.setAttribute("aria-label", "Edges, strongest first; arrow keys step through them");
  [...hits].reverse().forEach((hit) => layer.append(hit));
  graph.querySelector(".edges").after(layer);

  /* One of a group is a stop of the tab key; arrow keys go on from it. */
  function reachable(group, chosen) {
    group.forEach((each) => each.setAttribute("tabindex", each === chosen ? "0" : "-1"));
  }

  function showTip(x, y) {
    const box = stage.getBoundingClientRect();
    const left = x - box.left + stage.scrollLeft + 14;
    tip.style.left = Math.max(0, Math.min(left, stage.scrollLeft + box.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(0, Math.min(y - box.top + 16, box.height - tip.offsetHeight - 2)) + "px";
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
    tip.textContent = words.sentence(i);
    tip.hidden = false;
  }

  function list(title, found, n) {
    const part = element("div"), items = element("ol");
    part.append(element("h4", "", `${title} ${edgeCount(found.length)}`), items);
    found.slice(0, 12).forEach((i) => {
      const item = element("li");
      item.append(...words.entry(i, n));
      items.append(item);
    });
    if (found.length > 12) part.append(element("span", "quiet", `and ${edgeCount(found.length - 12)} more`));
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
    if (n > 0) lists.append(list("reads", into, n));
    if (n < nodes.length - 1) lists.append(list("writes", from, n));
    inspector.replaceChildren(element("h3", "", data.nodes[n] + (pinned === n ? " (pinned)" : "")), lists);
  }

  function release() {
    tip.hidden = true;
    if (pinned !== null) return pickNode(pinned);
    graph.classList.remove("picked");
    paths.forEach((path) => path.classList.remove("hot"));
    nodes.forEach((node) => node.classList.remove("near", "picked"));
    inspector.replaceChildren(element("span", "quiet", "Nothing picked. Hover a node or an edge, or reach it with Tab and the arrow keys; click a node, or press Enter on it, to keep it picked."));
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

  nodes.forEach((node, n) => {
    node.setAttribute("role", "button");
    node.setAttribute("aria-pressed", "false");
    const active = () => node.classList.contains("on");
    node.addEventListener("mouseenter", () => { if (pinned === null && active()) pickNode(n); });
    node.addEventListener("mouseleave", () => { if (pinned === null) release(); });
    node.addEventListener("click", () => { if (active()) pin(n); });
    node.addEventListener("focus", () => { reachable(nodes, node); if (pinned === null && active()) pickNode(n); });
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

  /* Shows the kept edges only; returns the nodes they touch. */
  function update(now) {
    kept = now;
    const on = new Set();
    edges.forEach((edge, i) => {
      paths[i].classList.toggle("off", !kept[i]);
      hits[i].classList.toggle("off", !kept[i]);
      if (kept[i]) { on.add(edge[0]); edge[1].forEach((node) => on.add(node)); }
    });
    nodes.forEach((node, n) => {
      node.classList.toggle("on", on.has(n));
      const into = edges.filter((edge, i) => kept[i] && edge[1].includes(n)).length;
      const from = edges.filter((edge, i) => kept[i] && edge[0] === n).length;
      node.setAttribute("aria-label", `${data.nodes[n]}: ${edgeCount(into)} in, ${edgeCount(from)} out`);
    });
    const chosen = nodes.find((node) => node.getAttribute("tabindex") === "0" && node.classList.contains("on"));
    reachable(nodes, chosen || nodes.find((node) => node.classList.contains("on")) || nodes[0]);
    const edge = hits.find((hit, i) => kept[i] && hit.getAttribute("tabindex") === "0");
    reachable(hits, edge || hits.find((hit, i) => kept[i]) || null);
    if (pinned !== null && !on.has(pinned)) pin(pinned);
    else if (pinned !== null) pickNode(pinned);
    return on;
  }

  figure.querySelector(".controls").hidden = false;
  inspector.hidden = false;
  return { update, release, nodes };
}

/* The channel of a head that an edge enters, as " -> q"; of a key/value head that heads share, as " -> kv1.k". */
function channel(target) {
  const end = /\.((?:kv\d+\.)?[qkv])$/.exec(target);
  return end ? ` \u2192 ${end[1]}` : "";
}

function circuitView(figure) {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const slider = figure.querySelector("input"), output = figure.querySelector("output");
  const reset = figure.querySelector(".reset"), edges = data.edges;
  const rows = [...figure.querySelectorAll(".edges-table tbody tr")];
  const view = graphView(figure, data, {
    sentence: (i) => `${data.nodes[edges[i][0]]} \u2192 ${edges[i][2]}  ${signed(edges[i][3])}, rank ${i + 1}`,
    entry: (i, n) => {
      const score = edges[i][3];
      const name = edges[i][0] === n ? edges[i][2] : data.nodes[edges[i][0]] + channel(edges[i][2]);
      return [element("span", "", name), element("span", score < 0 ? "minus" : "plus", signed(score))];
    },
  });

  function show(size) {
    const kept = connected(edges, size, view.nodes.length);
    const count = kept.filter(Boolean).length, on = view.update(kept);
    rows.forEach((row, i) => { row.lastElementChild.textContent = kept[i] ? "yes" : "no"; });
    const value = count && data.curve ? interpolate(data.curve.n_edges, data.curve.values, size) : null;
    const joined = count === size ? "all" : `${count.toLocaleString("en")} of them`;
    const text = `${size.toLocaleString("en")}, ${joined} connected`;
    output.replaceChildren(
      element("b", "", text),
      ` \u00b7 ${(100 * count / data.total).toFixed(1)}\u202f% of all \u00b7 ${on.size} of ${view.nodes.length} nodes` +
        (value === null ? "" : ` \u00b7 normalised faithfulness about ${value.toFixed(2)}`),
    );
    slider.setAttribute("aria-valuetext", text);
    reset.disabled = size === data.size;
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  reset.addEventListener("click", () => { slider.value = data.size; show(data.size); slider.focus(); });
  slider.value = data.size;
  show(Math.min(data.size, edges.length));
  view.release();
}

/* Two circuits in one drawing: which of the three sets of edges are shown. */
function comparisonView(figure) {
  const data = JSON.parse(figure.querySelector("script.data").textContent), edges = data.edges;
  const boxes = [...figure.querySelectorAll("input")], output = figure.querySelector("output");
  const where = { both: "in both", a: "only in A", b: "only in B" };
  const score = (value) => (value === null ? "no score" : signed(value));
  const view = graphView(figure, data, {
    sentence: (i) => `${data.nodes[edges[i][0]]} \u2192 ${edges[i][2]}  ${where[edges[i][3]]}` +
      (edges[i][4] === null && edges[i][5] === null ? "" : `; A ${score(edges[i][4])}, B ${score(edges[i][5])}`),
    entry: (i, n) => {
      const name = edges[i][0] === n ? edges[i][2] : data.nodes[edges[i][0]] + channel(edges[i][2]);
      return [element("span", "", name), element("span", "quiet", where[edges[i][3]])];
    },
  });

  function show() {
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const kept = edges.map((edge) => wanted.has(edge[3]));
    const on = view.update(kept);
    output.textContent = `${edgeCount(kept.filter(Boolean).length)} drawn, ${on.size} of ${view.nodes.length} nodes`;
  }

  boxes.forEach((box) => box.addEventListener("change", show));
  show();
  view.release();
}

/* Paper shows everything: what is folded opens before printing and closes after it. */
function openForPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((each) => { each.open = true; });
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((each) => { each.open = false; });
    opened = [];
  });
}

/* A box that scrolls can be reached and moved with the keyboard while it has something to scroll. */
function scrollable(box) {
  const wide = box.scrollWidth > box.clientWidth + 1, tall = box.scrollHeight > box.clientHeight + 1;
  if (wide || tall) {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "scrolls; arrow keys move it");
  } else {
    box.removeAttribute("tabindex");
    box.removeAttribute("role");
    box.removeAttribute("aria-label");
  }
}

function scrollables() {
  const boxes = [...document.querySelectorAll(".scroll, .picture, .panel, pre")];
  const check = () => boxes.forEach(scrollable);
  check();
  window.addEventListener("resize", check);
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", check));
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
  document.querySelectorAll("figure.comparison").forEach(comparisonView);
  document.querySelectorAll("table.sortable").forEach(sortable);
  scrollables();
  openForPrint();
} else if (typeof module !== "undefined") {
  module.exports = { connected, interpolate, signed };
}
