/* The canvases of a circuit viewer: edges below the nodes of the SVG, and the picked edges above them. */

const SINGLE_EDGES = 800;  // lines of one frame that are drawn one by one; the rest is drawn in bundles
const DASHES = [5, 3];  // of an edge with a negative weight

function paletteOf(figure) {
  const style = getComputedStyle(figure), colour = (name) => style.getPropertyValue(name).trim();
  return {
    tint: colour("--tint"), ink: colour("--ink"), muted: colour("--muted"), paper: colour("--paper"),
    supports: colour("--supports"), opposes: colour("--opposes"),
  };
}

/* Boxes of the nodes and layers, read once from the SVG. */
function geometryOf(graph) {
  const box = (rect) => {
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
    return { x, y, width, height };
  };
  return {
    width: graph.viewBox.baseVal.width,
    height: graph.viewBox.baseVal.height,
    nodes: [...graph.querySelectorAll(".node > rect")].map(box),
    bands: [...graph.querySelectorAll(".band")].map(box),
  };
}

/* Draws plans, and tells which line lies under a point. */
function edgeCanvas(figure, edges) {
  const stage = figure.querySelector(".stage"), graph = figure.querySelector(".graph");
  const panes = figure.querySelector(".panes"), base = panes.querySelector(".base"), hot = panes.querySelector(".hot");
  const place = geometryOf(graph), paths = [], boxes = [];
  let order = [], weights = [], largest = 1, plan = { single: [], bundles: [] }, paper = false;

  const pathOf = (i) => (paths[i] = paths[i] || new Path2D(edges[i].path));

  /* Left, top, right and bottom of a line, from the numbers of its path. */
  function boxOf(i) {
    if (boxes[i]) return boxes[i];
    const box = [Infinity, Infinity, -Infinity, -Infinity];
    let y = 0;
    for (const [, letter, body] of edges[i].path.matchAll(/([MHC])([^MHC]*)/g)) {
      const numbers = body.trim().split(" ").map(Number);
      const points = letter === "H" ? [[numbers[0], y]] : numbers.flatMap((x, at) => (at % 2 ? [] : [[x, numbers[at + 1]]]));
      for (const [x, v] of points) {
        box[0] = Math.min(box[0], x); box[1] = Math.min(box[1], v);
        box[2] = Math.max(box[2], x); box[3] = Math.max(box[3], v);
        y = v;
      }
    }
    return (boxes[i] = box);
  }

  const scale = () => (graph.clientWidth || graph.getBoundingClientRect().width || 1) / place.width;

  /* The part of the drawing that is in sight, in its own units. */
  function sight() {
    if (paper) return [0, 0, place.width, place.height];
    const s = scale(), x = stage.scrollLeft / s, y = stage.scrollTop / s;
    return [x, y, x + stage.clientWidth / s, y + stage.clientHeight / s];
  }

  /* Edges that are in sight at least in part. */
  function inSight(indices) {
    const [left, top, right, bottom] = sight();
    if (left < 1 && top < 1 && right > place.width - 1 && bottom > place.height - 1) return indices;
    return indices.filter((i) => {
      const box = boxOf(i);
      return box[2] >= left && box[0] <= right && box[3] >= top - 4 && box[1] <= bottom + 4;
    });
  }

  function prepared(canvas) {
    const s = scale(), density = paper ? 3 : Math.min(window.devicePixelRatio || 1, 2);
    const wide = paper ? place.width : Math.min(stage.clientWidth, place.width * s);
    const tall = paper ? place.height : Math.min(stage.clientHeight, place.height * s);
    const size = [Math.max(1, Math.round(wide * density)), Math.max(1, Math.round(tall * density))];
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    canvas.style.width = paper ? "" : `${wide}px`;
    canvas.style.height = paper ? "" : `${tall}px`;
    const context = canvas.getContext("2d"), zoom = density * (paper ? 1 : s);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(zoom, 0, 0, zoom, paper ? 0 : -stage.scrollLeft * density, paper ? 0 : -stage.scrollTop * density);
    return context;
  }

  /* Colour and dashes of a line, by its sign. */
  function look(i, palette) {
    return weights[i] < 0 ? [palette.opposes, DASHES] : [palette.supports, []];
  }

  function stroke(context, indices, palette, alpha) {
    context.globalAlpha = alpha;
    for (const i of indices) {
      const [colour, dashes] = look(i, palette);
      context.strokeStyle = colour;
      context.setLineDash(dashes);
      context.lineWidth = strokeWidth(weights[i], largest);
      context.stroke(pathOf(i));
    }
  }

  /* The band of a bundle: level, between the columns of two layers, at a height of its own. */
  function bundlePath(bundle) {
    const column = (layer, end) => {
      if (layer === 0) return place.nodes[0].x + place.nodes[0].width;
      const band = place.bands[layer - 1];
      return band ? band.x + band.width * end : place.nodes[place.nodes.length - 1].x;
    };
    const top = place.nodes[0].y, tall = place.nodes[0].height;
    const y = top + tall * (0.04 + 0.92 * ((bundle.from * 5 + bundle.to * 8) % 23) / 22);
    const path = new Path2D();
    path.moveTo(column(bundle.from, bundle.from === bundle.to ? 0.1 : 0.6), y);
    path.lineTo(column(bundle.to, bundle.from === bundle.to ? 0.9 : 0.4), y);
    return path;
  }

  const bundleWidth = (bundle) => Math.min(14, 2 + Math.sqrt(bundle.edges.length));

  /* What is drawn from now on: edges with their weights; `largest` is the weight of the widest line. */
  function show(shown, nowWeights, nowLargest) {
    [order, weights, largest] = [byWeight(shown, nowWeights), nowWeights, nowLargest];
    draw();
  }

  /* Draws what is in sight: the strongest edges one by one, weaker ones as bundles below them. */
  function draw() {
    const palette = paletteOf(figure), context = prepared(base);
    plan = drawingPlan(edges, weights, inSight(order), SINGLE_EDGES);
    context.fillStyle = palette.tint;
    place.bands.forEach((band, at) => { if (at % 2 === 0) context.fillRect(band.x, band.y, band.width, band.height); });
    context.setLineDash([]);
    context.globalAlpha = 0.1;
    context.strokeStyle = palette.muted;
    for (const bundle of plan.bundles) {
      context.lineWidth = bundleWidth(bundle);
      bundle.path = bundlePath(bundle);
      context.stroke(bundle.path);
    }
    stroke(context, [...plan.single].reverse(), palette, plan.single.length > 300 ? 0.36 : 0.5);
    context.globalAlpha = 1;
    figure.dataset.drawn = plan.single.length;
    figure.dataset.bundles = plan.bundles.length;
  }

  /* Draws some edges alone above the dimmed rest; none lets the rest shine again. */
  function highlight(indices) {
    const context = prepared(hot);
    const chosen = [...indices].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, SINGLE_EDGES / 2);
    stroke(context, chosen.reverse(), paletteOf(figure), 0.9);
    figure.dataset.hot = chosen.length;
  }

  /* The strongest drawn line under a place of the window, else the bundle; null for neither. */
  function under(clientX, clientY) {
    const frame = graph.getBoundingClientRect(), s = scale(), context = hot.getContext("2d");
    const x = (clientX - frame.left) / s, y = (clientY - frame.top) / s;
    const near = (box) => x >= box[0] - 6 && x <= box[2] + 6 && y >= box[1] - 6 && y <= box[3] + 6;
    const touches = (path, width) => {
      context.save();
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.setLineDash([]);
      context.lineWidth = width;
      const found = context.isPointInStroke(path, x, y);
      context.restore();
      return found;
    };
    const edge = plan.single.find((i) => near(boxOf(i)) && touches(pathOf(i), Math.max(9, strokeWidth(weights[i], largest) + 4)));
    if (edge !== undefined) return { edge };
    const bundle = plan.bundles.find((each) => touches(each.path, bundleWidth(each)));
    return bundle ? { bundle } : null;
  }

  /* Middle of an edge in the window. */
  function middle(i) {
    const box = boxOf(i), frame = graph.getBoundingClientRect(), s = scale();
    return [frame.left + s * (box[0] + box[2]) / 2, frame.top + s * (box[1] + box[3]) / 2];
  }

  /* Onto paper the whole drawing goes, and off it again. */
  function onPaper(now) {
    paper = now;
    panes.classList.toggle("whole", now);
    draw();
    highlight([]);
  }

  return { show, draw, highlight, under, middle, onPaper, place };
}
