"use strict";

/* The circuit viewer: one drawing with a search, a slider of edges, filters of layers, and what is picked. */

const DRAWN = 1500;  // lines of one drawing at most, the strongest
const LISTED = 12;  // edges of a list beside the drawing
const NEAR = [[0, 0], [0, 3], [0, -3], [3, 0], [-3, 0], [0, 6], [0, -6]];  // pixels within which a thin line answers
const TOKEN_ROOM = 84;  // pixels for the tokens beside an attention pattern
const WIDEST_PATTERN = 320;  // pixels of an attention pattern

/* ---- arithmetic, which touches no document ---- */

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/* The edges of a page's data as objects; `from` and `to` are the layers that write and read. */
function readEdges(data) {
  const columns = data.edges;
  return columns.source.map((source, i) => {
    const feeds = data.feeds[columns.target[i]];
    return {
      i, source, feeds, target: data.targets[columns.target[i]], score: columns.score[i],
      path: columns.path[i], width: columns.width[i], from: data.layers[source], to: data.layers[feeds[0]],
    };
  });
}

/* Which of the first `size` edges lie on a path from node 0 (input) to the last node (logits).
   Sources are numbered in forward order. */
function connected(edges, size, nNodes) {
  const order = [...Array(size).keys()].sort((a, b) => edges[a].source - edges[b].source);
  const reached = new Array(nNodes).fill(false), leads = new Array(nNodes).fill(false);
  reached[0] = true;
  leads[nNodes - 1] = true;
  for (const i of order) {
    if (reached[edges[i].source]) for (const node of edges[i].feeds) reached[node] = true;
  }
  for (const i of order.reverse()) {
    if (edges[i].feeds.some((node) => leads[node])) leads[edges[i].source] = true;
  }
  return edges.map((edge, i) => i < size && reached[edge.source] && edge.feeds.some((node) => leads[node]));
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
  return (score < 0 ? "\u2212" : "+") + (size >= 0.001 || size === 0 ? size.toFixed(3) : size.toExponential(1));
}

/* A count with its noun: 1 edge, 2,000 edges. */
function counted(count, noun) {
  return `${String(count).replace(/\B(?=(\d{3})+$)/g, ",")} ${noun}${count === 1 ? "" : "s"}`;
}

/* Nodes and shown edges whose name holds the text; "a0 > logits" asks for edges between two ends. */
function search(text, nodes, edges, shown) {
  const ends = text.toLowerCase().replace(/\s*(->|>|\u2192)\s*/g, ">").trim().split(">");
  const holds = (name, part) => name.toLowerCase().includes(part);
  const writes = (i, part) => holds(nodes[edges[i].source], part);
  const reads = (i, part) => holds(edges[i].target, part);
  if (ends.length > 1) return { nodes: [], edges: shown.filter((i) => writes(i, ends[0]) && reads(i, ends[1])) };
  return {
    nodes: [...nodes.keys()].filter((n) => holds(nodes[n], ends[0])),
    edges: shown.filter((i) => writes(i, ends[0]) || reads(i, ends[0])),
  };
}

/* The rows of an attention pattern: shares of 255, each query's over the keys. */
function attentionRows(base64, n) {
  const bytes = bytesOf(base64);
  return [...Array(n).keys()].map((query) => [...bytes.subarray(query * n, (query + 1) * n)].map((byte) => byte / 255));
}

/* ---- elements ---- */

function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

function scoreTag(score) {
  return element("span", score < 0 ? "minus" : "plus", signed(score));
}

function line(edge) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
  made.setAttribute("class", edge.score < 0 ? "edge minus" : "edge");
  made.setAttribute("stroke-width", edge.width);
  made.setAttribute("d", edge.path);
  made.dataset.i = edge.i;
  return made;
}

/* The attention of a head on a prompt that the reader can choose; nothing for other nodes. */
function attentionPanel(figure, attention, name) {
  if (!/^a\d+\.h\d+$/.test(name)) return [];
  if (!attention || !attention.heads[name]) {
    return [element("p", "quiet", (attention && attention.note) || "This page holds no attention pattern of this head.")];
  }
  const canvas = element("canvas"), choice = element("select"), readout = element("p", "quiet");
  attention.prompts.forEach((prompt, at) => choice.append(new Option(prompt.text, at)));
  let rows = [], tokens = [], cell = 1;
  const paint = () => {
    tokens = attention.prompts[choice.value].tokens;
    rows = attentionRows(attention.heads[name][choice.value], tokens.length);
    cell = paintPattern(canvas, rows, tokens, getComputedStyle(figure));
    readout.textContent = "Point at a cell to read it.";
  };
  canvas.addEventListener("mousemove", (event) => {
    const query = Math.floor(event.offsetY / cell), key = Math.floor((event.offsetX - TOKEN_ROOM) / cell);
    if (!rows[query] || rows[query][key] === undefined) return;
    const share = (100 * rows[query][key]).toFixed(1);
    readout.textContent = `${tokens[query]} (${query}) attends to ${tokens[key]} (${key}): ${share}\u202f%`;
  });
  choice.addEventListener("input", paint);
  paint();
  const label = element("label", "", "Prompt ", choice);
  return [element("div", "attention", element("h4", "", `Attention of ${name}: rows attend to columns`), label, canvas, readout)];
}

/* Paints a pattern with its tokens beside the rows; returns the pixels of a cell. */
function paintPattern(canvas, rows, tokens, style) {
  const n = rows.length, cell = Math.max(3, Math.min(18, Math.floor(WIDEST_PATTERN / n)));
  canvas.width = TOKEN_ROOM + cell * n;
  canvas.height = cell * n;
  const context = canvas.getContext("2d");
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.font = "11px sans-serif";
  rows.forEach((row, query) => {
    context.globalAlpha = 1;
    context.fillStyle = style.getPropertyValue("--muted");
    if (cell >= 9) context.fillText(tokens[query].trim().slice(0, 12), TOKEN_ROOM - 6, (query + 0.5) * cell);
    context.fillStyle = style.getPropertyValue("--supports");
    row.forEach((share, key) => {
      context.globalAlpha = 0.06 + 0.94 * Math.sqrt(share);
      context.fillRect(TOKEN_ROOM + key * cell, query * cell, cell - 1, cell - 1);
    });
  });
  return cell;
}

/* ---- the viewer ---- */

function circuitView(figure, data) {
  const find = (selector) => figure.querySelector(selector);
  const stage = find(".stage"), drawn = find(".stage .edges"), tip = find(".tip"), inspector = find(".inspector");
  const [query, size, from, to] = ["search", "size", "from", "to"].map((name) => find(`.controls [name=${name}]`));
  const edges = readEdges(data), nodes = [...figure.querySelectorAll(".node")], lines = [];
  let shown = [], pinned = null, over = null;

  const sentence = (i) => `${data.nodes[edges[i].source]} \u2192 ${edges[i].target}, ${signed(edges[i].score)}, rank ${i + 1}`;
  const nameOf = (pick) => (pick.edge === undefined ? data.nodes[pick.node] : sentence(pick.edge));
  const same = (a, b) => a === b || (a && b && a.node === b.node && a.edge === b.edge);

  /* Shown edges that a node reads and writes, strongest first. */
  const into = (n) => shown.filter((i) => edges[i].feeds.includes(n));
  const out = (n) => shown.filter((i) => edges[i].source === n);

  /* Nodes or edges under a heading, each a button that picks it. */
  function list(title, picks) {
    const items = picks.slice(0, LISTED).map((pick) => {
      const edge = edges[pick.edge];
      const button = element("button", "plain", edge ? `${data.nodes[edge.source]} \u2192 ${edge.target}` : data.nodes[pick.node]);
      button.addEventListener("click", () => pin(pick));
      return element("li", "", button, ...(edge ? [scoreTag(edge.score)] : []));
    });
    if (picks.length > LISTED) items.push(element("li", "quiet", `and ${picks.length - LISTED} more`));
    return element("div", "", element("h4", "", title), element("ol", "", ...items));
  }

  const edgeList = (verb, indices) => list(`${verb} ${counted(indices.length, "edge")}`, indices.map((edge) => ({ edge })));

  /* What a pick, or else the search, lights up and says. */
  function show(pick) {
    const text = query.value.trim(), result = !pick && text ? search(text, data.nodes, edges, shown) : null;
    let hot = [], lone = null, near = [], words = [];
    if (pick && pick.edge !== undefined) {
      hot = [pick.edge];
      words = [element("h3", "", sentence(pick.edge) + (pinned ? " (picked)" : ""))];
    } else if (pick) {
      lone = pick.node;
      const reads = into(lone), writes = out(lone);
      hot = [...reads, ...writes];
      words = [
        element("h3", "", data.nodes[lone] + (pinned ? " (picked)" : "")),
        element("div", "lists", edgeList("reads", reads), edgeList("writes", writes)),
        ...(pinned ? attentionPanel(figure, data.attention, data.nodes[lone]) : []),
      ];
    } else if (result) {
      hot = result.edges;
      near = result.nodes;
      words = [element("div", "lists", list(counted(near.length, "node"), near.map((node) => ({ node }))), edgeList("finds", hot))];
    } else {
      words = [element("span", "quiet", "Nothing picked. Hover a node or an edge; click it to keep it picked, Escape lets go.")];
    }
    const lit = new Set([lone, ...near, ...hot.flatMap((i) => [edges[i].source, ...edges[i].feeds])]);
    stage.classList.toggle("picked", Boolean(pick || result));
    nodes.forEach((node, n) => {
      node.classList.toggle("near", lit.has(n));
      node.classList.toggle("picked", lone === n);
    });
    drawn.querySelectorAll(".hot").forEach((each) => each.classList.remove("hot"));
    hot.forEach((i) => lines[i] && lines[i].classList.add("hot"));
    inspector.replaceChildren(...words);
    figure.dataset.hot = hot.length;
  }

  /* Keeps a node or an edge picked, or lets go of it if it is already; null lets go of all. */
  function pin(pick) {
    pinned = same(pinned, pick) ? null : pick;
    tip.hidden = true;
    show(pinned);
  }

  /* The active node or the edge at a place of the window. */
  function at(x, y) {
    for (const [dx, dy] of NEAR) {
      const hit = document.elementFromPoint(x + dx, y + dy);
      const mark = hit && hit.closest(".node.on, .edge");
      if (mark && stage.contains(mark)) return mark.dataset.n ? { node: Number(mark.dataset.n) } : { edge: Number(mark.dataset.i) };
    }
    return null;
  }

  function showTip(pick, event) {
    tip.hidden = !pick;
    if (!pick) return;
    const box = stage.getBoundingClientRect(), room = box.width - 8;
    tip.textContent = nameOf(pick);
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, room - tip.offsetWidth))}px`;
    tip.style.top = `${Math.min(event.clientY - box.top + 16, box.height - tip.offsetHeight)}px`;
  }

  function update() {
    const first = size ? Number(size.value) : edges.length;
    const kept = size ? connected(edges, first, nodes.length) : edges.map(() => true);
    const passes = (edge) => (!from.value || edge.from === Number(from.value)) && (!to.value || edge.to === Number(to.value));
    shown = edges.filter((edge) => kept[edge.i] && passes(edge)).map((edge) => edge.i);
    const strongest = shown.slice(0, DRAWN);
    strongest.forEach((i) => { lines[i] = lines[i] || line(edges[i]); });
    drawn.replaceChildren(...strongest.map((i) => lines[i]).reverse());
    const on = new Set([0, nodes.length - 1, ...shown.flatMap((i) => [edges[i].source, ...edges[i].feeds])]);
    nodes.forEach((node, n) => {
      node.classList.toggle("on", on.has(n));
      node.setAttribute("tabindex", on.has(n) ? 0 : -1);
    });
    find(".controls output").replaceChildren(...report(first, kept.filter(Boolean).length, strongest.length, on.size));
    figure.dataset.drawn = strongest.length;
    if (pinned && !(pinned.edge === undefined ? on.has(pinned.node) : shown.includes(pinned.edge))) pinned = null;
    show(pinned);
  }

  /* What is shown, in figures. */
  function report(first, kept, n, on) {
    const share = `${(100 * kept / data.total).toFixed(1)}\u202f% of all`;
    const joined = kept === first ? "all" : `${kept} of them`;
    const parts = [size ? `${first}, ${joined} connected` : counted(kept, "edge"), share];
    const value = size && kept && data.curve ? interpolate(data.curve.n_edges, data.curve.values, first) : null;
    if (value !== null) parts.push(`normalised faithfulness about ${value.toFixed(2)}`);
    if (shown.length < kept) parts.push(`the filter shows ${shown.length}`);
    if (n < shown.length) parts.push(`the strongest ${n} are drawn`);
    parts.push(`${on} of ${nodes.length} nodes`);
    return [element("b", "", parts[0]), ` \u00b7 ${parts.slice(1).join(" \u00b7 ")}`];
  }

  stage.addEventListener("mousemove", (event) => {
    const pick = at(event.clientX, event.clientY);
    showTip(pick, event);
    if (same(pick, over)) return;
    over = pick;
    if (!pinned) show(pick);
  });
  stage.addEventListener("mouseleave", () => { over = null; tip.hidden = true; show(pinned); });
  stage.addEventListener("click", (event) => pin(at(event.clientX, event.clientY)));
  nodes.forEach((node, n) => {
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", data.nodes[n]);
    node.addEventListener("keydown", (event) => { if (event.key === "Enter") pin({ node: n }); });
  });
  figure.addEventListener("keydown", (event) => { if (event.key === "Escape" && pinned) pin(null); });
  query.addEventListener("input", () => { pinned = null; show(null); });
  [size, from, to].filter(Boolean).forEach((each) => each.addEventListener("input", update));
  find(".reset").addEventListener("click", () => {
    [query, from, to].forEach((each) => { each.value = ""; });
    if (size) size.value = data.size;
    update();
  });
  if (size) size.value = data.size;
  find(".controls").hidden = inspector.hidden = false;
  update();
}

async function startViewer(figure) {
  const packed = bytesOf(figure.querySelector("script.data").textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  circuitView(figure, await new Response(stream).json());
}

if (typeof document !== "undefined") {
  document.querySelectorAll("figure.viewer").forEach(startViewer);
} else {
  module.exports = { connected, interpolate, signed, search, attentionRows, readEdges };
}
