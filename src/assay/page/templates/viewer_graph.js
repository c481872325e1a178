"use strict";

/* The circuit viewer's arithmetic: edges, filters, what is drawn one by one and what in bundles, search, roles.
   Nothing here touches the document. */

/* A path whose curves may be written by their end alone, as `assay.page.viewer` writes those of many edges. */
function wholePath(text) {
  let x = 0, y = 0;
  return text.replace(/([MHS])([\d.]+)(?: ([\d.]+))?/g, (piece, letter, u, v = y) => {
    const half = ((Number(x) + Number(u)) / 2).toFixed(1), level = y;
    [x, y] = [u, v];
    return letter === "S" ? `C${half} ${level} ${half} ${v} ${u} ${v}` : piece;
  });
}

/* The edges of a page's data as objects; `from` and `to` are the layers that write and read. */
function readEdges(data) {
  const columns = data.edges;
  return columns.source.map((source, i) => {
    const target = columns.target[i], feeds = data.feeds[target];
    return {
      i, source, feeds, target: data.targets[target], score: columns.score[i], path: wholePath(columns.path[i]),
      from: data.layers[source], to: data.layers[feeds[0]],
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

function magnitude(value) {
  return value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1);
}

function signed(score) {
  return (score < 0 ? "\u2212" : "+") + magnitude(Math.abs(score));
}

/* A whole number with commas; the browser's own way loads its tables first. */
function grouped(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

function counted(count, one) {
  return `${grouped(count)} ${one}${count === 1 ? "" : "s"}`;
}

/* Width of a line in units of the drawing, as `assay.page.circuit.stroke_width`. */
function strokeWidth(weight, largest) {
  return 0.6 + 5.4 * Math.sqrt(Math.abs(weight) / largest);
}

/* The weight of a place of the threshold slider, 0 to 1; cubic, because most weights are small. */
function thresholdAt(share, largest) {
  return share <= 0 ? 0 : largest * share ** 3;
}

/* Whether an edge of this weight passes the filter: `from`, `to` (layers or null), `sign`, `minimum`, and `role`
   (a set of nodes, one of which it must touch, or null). */
function passes(edge, weight, filter) {
  if (filter.from !== null && edge.from !== filter.from) return false;
  if (filter.to !== null && edge.to !== filter.to) return false;
  if (filter.sign === "plus" && !(weight >= 0)) return false;
  if (filter.sign === "minus" && !(weight < 0)) return false;
  if (Math.abs(weight) < filter.minimum) return false;
  return filter.role === null || filter.role.has(edge.source) || edge.feeds.some((node) => filter.role.has(node));
}

/* Edges by the size of their weight, largest first. */
function byWeight(shown, weights) {
  return [...shown].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]) || a - b);
}

/* What one frame draws: the first `limit` edges one by one, the rest as one bundle per pair of layers. */
function drawingPlan(edges, weights, order, limit) {
  const bundles = new Map();
  for (const i of order.slice(limit)) {
    const key = `${edges[i].from}>${edges[i].to}`;
    const bundle = bundles.get(key) || { from: edges[i].from, to: edges[i].to, edges: [], sum: 0 };
    bundle.edges.push(i);
    bundle.sum += Math.abs(weights[i]);
    bundles.set(key, bundle);
  }
  return { single: order.slice(0, limit), bundles: [...bundles.values()] };
}

function plainQuery(text) {
  return text.toLowerCase().replace(/\s*(->|>|\u2192)\s*/g, ">").trim();
}

/* Nodes and edges whose name, label or role holds the text; "a0 > logits" finds edges between two ends. */
function search(text, nodes, edges, shown, roles) {
  const query = plainQuery(text);
  if (!query) return { nodes: [], edges: [] };
  const ends = query.split(">");
  const described = nodes.map((name, n) => {
    const groups = Object.keys(roles.roles).filter((role) => roles.roles[role].includes(name));
    return [name, roles.labels[name] || "", ...groups].join(" ").toLowerCase();
  });
  if (ends.length === 1) {
    return {
      nodes: [...nodes.keys()].filter((n) => described[n].includes(query)),
      edges: shown.filter((i) => described[edges[i].source].includes(query) ||
        edges[i].target.toLowerCase().includes(query) || edges[i].feeds.some((n) => described[n].includes(query))),
    };
  }
  const reads = (edge, end) => edge.target.toLowerCase().includes(end) || edge.feeds.some((n) => described[n].includes(end));
  return {
    nodes: [],
    edges: shown.filter((i) => described[edges[i].source].includes(ends[0]) && reads(edges[i], ends[1])),
  };
}

/* ---- roles: named groups of nodes, and labels of nodes ---- */

const ROLES_SCHEMA = "assay-roles/1";

/* The file of the roles: what `assay.circuits.load_roles` reads. */
function rolesFile(data, roles) {
  return { schema: ROLES_SCHEMA, graph: { ...data.graph }, roles: roles.roles, labels: roles.labels };
}

/* Roles and labels of a file's text, or an error whose message says why not and what to do. */
function readRoles(text, data) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON. Choose a roles file that this page or assay saved.");
  }
  const isNamed = (value, holds) => value && typeof value === "object" && Object.values(value).every(holds);
  if (!file || file.schema !== ROLES_SCHEMA || !isNamed(file.roles, Array.isArray) ||
      !isNamed(file.labels, (label) => typeof label === "string")) {
    throw new Error(`This file is not a roles file (schema ${ROLES_SCHEMA}). Choose one that this page or assay saved.`);
  }
  const graph = file.graph || {};
  if (graph.fingerprint !== data.graph.fingerprint) {
    throw new Error(
      `This roles file belongs to another graph (${graph.n_layers} layers of ${graph.n_heads} heads, fingerprint ` +
      `${graph.fingerprint}); this page shows ${data.graph.n_layers} layers of ${data.graph.n_heads} heads, fingerprint ` +
      `${data.graph.fingerprint}. Choose a roles file of this graph.`);
  }
  const known = new Set(data.nodes);
  const named = [...Object.values(file.roles).flat(), ...Object.keys(file.labels)];
  const strange = named.find((name) => !known.has(name));
  if (strange !== undefined) throw new Error(`The roles file names ${strange}, which is not a node of this graph.`);
  return { roles: file.roles, labels: file.labels };
}

/* Edges between roles: for each pair with edges their number and summed weight, largest first. */
function roleFlows(roles, nodes, edges, weights, shown) {
  const of = nodes.map((name) => Object.keys(roles.roles).filter((role) => roles.roles[role].includes(name)));
  const flows = new Map();
  for (const i of shown) {
    const readers = new Set(edges[i].feeds.flatMap((n) => of[n]));
    for (const writer of of[edges[i].source]) {
      for (const reader of readers) {
        const key = JSON.stringify([writer, reader]), flow = flows.get(key) || { writer, reader, count: 0, sum: 0 };
        flow.count += 1;
        flow.sum += weights[i];
        flows.set(key, flow);
      }
    }
  }
  return [...flows.values()].sort((a, b) => Math.abs(b.sum) - Math.abs(a.sum));
}

/* ---- numbers packed into a page ---- */

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/* Weights of one example: signed bytes times the scale, as `assay.page.viewer.packed_weights` wrote them. */
function exampleWeights(packed) {
  const bytes = new Int8Array(bytesOf(packed.values).buffer);
  return Float64Array.from(bytes, (byte) => byte / 127 * packed.scale);
}

/* The rows of an attention pattern: shares of 255, each query's over the keys. */
function attentionRows(base64, n) {
  const bytes = bytesOf(base64);
  return [...Array(n).keys()].map((query) => [...bytes.subarray(query * n, (query + 1) * n)].map((byte) => byte / 255));
}
