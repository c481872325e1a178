/* A circuit viewer: one drawing with its search, filters, roles and panels, for pointer, keyboard and screen reader. */

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const FOUND = 10;  // nodes and edges that a search lists

/* The data of a viewer, at once; of very many edges compressed, so after a moment. */
function withData(figure, use) {
  const held = figure.querySelector("script.data");
  if (!held.classList.contains("packed")) return use(figure, JSON.parse(held.textContent));
  const stream = new Blob([bytesOf(held.textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json().then((data) => use(figure, data));
}

function circuitView(figure, data) {
  const find = (selector) => figure.querySelector(selector);
  const stage = find(".stage"), graph = find(".graph"), tip = find(".tip"), inspector = find(".inspector");
  const edges = readEdges(data), nodes = [...graph.querySelectorAll(".node")];
  const canvas = edgeCanvas(figure, edges), controls = viewerControls(figure, data);
  const rows = [...figure.querySelectorAll(".edges-table tbody tr")], stepper = find(".stepper"), option = find(".stepper div");
  const scores = Float64Array.from(edges, (edge) => edge.score);
  const examples = data.examples ? data.examples.map((each) => ({ text: each.text, weights: exampleWeights(each) })) : [];
  const state = { shown: [], kept: [], pinned: null, example: -1, attended: 0, step: 0, found: null };
  const view = {
    figure, data, edges, examples, state, sentence, rolesOf, around, pin, changed,
    roles: { roles: structuredClone(data.roles ? data.roles.roles : {}), labels: { ...(data.roles ? data.roles.labels : {}) } },
    weights: () => (state.example < 0 ? scores : examples[state.example].weights),
    weightTag: (i) => signedTag(view.weights()[i]),
    refresh: () => showPicked(state.pinned, true),
  };
  const roles = rolesPanel(view, find(".roles-panel"));

  function sentence(i) {
    const edge = edges[i], name = `${data.nodes[edge.source]} \u2192 ${edge.target}`;
    const where = state.example < 0 ? "" : ` on prompt ${state.example + 1}`;
    return `${name}, ${signed(view.weights()[i])}${where}, rank ${i + 1}`;
  }

  function rolesOf(n) {
    return Object.keys(view.roles.roles).filter((role) => view.roles.roles[role].includes(data.nodes[n]));
  }

  /* Shown edges that a node reads and writes, strongest first. */
  function around(n) {
    return {
      into: state.shown.filter((i) => edges[i].feeds.includes(n)),
      from: state.shown.filter((i) => edges[i].source === n),
    };
  }

  /* ---- what is picked ---- */

  function showPicked(picked, pinned) {
    let hot = [], near = new Set(), lone = null;
    if (picked && picked.edge !== undefined) {
      hot = [picked.edge];
      near = new Set([edges[picked.edge].source, ...edges[picked.edge].feeds]);
      inspector.replaceChildren(...edgePanel(view, picked.edge, pinned));
    } else if (picked) {
      const { into, from } = around(picked.node);
      hot = [...into, ...from];
      near = new Set([picked.node, ...into.map((i) => edges[i].source), ...from.flatMap((i) => edges[i].feeds)]);
      lone = picked.node;
      inspector.replaceChildren(...nodePanel(view, picked.node, pinned));
    } else if (state.found) {
      hot = state.found.edges;
      near = new Set([...state.found.nodes, ...hot.flatMap((i) => [edges[i].source, ...edges[i].feeds])]);
      inspector.replaceChildren(element("span", "quiet", "Choose a result of the search, or press Escape in its field to end it."));
    } else {
      inspector.replaceChildren(element("span", "quiet", "Nothing picked. Hover a node or an edge, or reach it with Tab and the arrow keys; click it, or press Enter on it, to keep it picked. The key / goes to the search."));
    }
    const dim = Boolean(picked || state.found);
    stage.classList.toggle("picked", dim);
    nodes.forEach((node, n) => {
      node.classList.toggle("near", near.has(n));
      node.classList.toggle("picked", lone === n);
    });
    canvas.highlight(hot);
  }

  function release() {
    tip.hidden = true;
    showPicked(state.pinned, true);
  }

  /* Keeps a node or an edge picked, or lets go of it if it is already; null lets go of all. */
  function pin(what) {
    const same = what && state.pinned && what.node === state.pinned.node && what.edge === state.pinned.edge;
    state.pinned = same ? null : what;
    nodes.forEach((node, n) => node.setAttribute("aria-pressed", String(Boolean(state.pinned) && state.pinned.node === n)));
    if (state.pinned && state.pinned.edge !== undefined) controls.say(`Picked: ${sentence(state.pinned.edge)}`);
    else if (state.pinned) controls.say(`Picked: ${nodes[state.pinned.node].getAttribute("aria-label")}`);
    else controls.say("Nothing picked");
    roles.follow();
    release();
  }

  function showTip(text, x, y) {
    const box = stage.getBoundingClientRect(), left = x - box.left + 14;
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = Math.max(0, Math.min(left, box.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(0, Math.min(y - box.top + 16, box.height - tip.offsetHeight - 2)) + "px";
  }

  /* ---- nodes ---- */

  /* One of a group is a stop of the tab key; arrow keys go on from it. */
  function reachable(chosen) {
    nodes.forEach((each) => each.setAttribute("tabindex", each === chosen ? "0" : "-1"));
  }

  /* The nearest active node in the direction of an arrow key. */
  function neighbour(from, dx, dy) {
    const centre = (n) => {
      const box = canvas.place.nodes[n];
      return [box.x + box.width / 2, nodes[n].classList.contains("bar") ? null : box.y + box.height / 2];
    };
    const [x, y] = centre(from);
    let best = null, least = Infinity;
    nodes.forEach((node, n) => {
      if (n === from || !node.classList.contains("on")) return;
      const [u, v] = centre(n), across = u - x, down = v === null || y === null ? 0 : v - y;
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
    node.addEventListener("mouseenter", (event) => {
      const text = [data.nodes[n], view.roles.labels[data.nodes[n]], ...rolesOf(n)].filter(Boolean).join(" \u00b7 ");
      showTip(text, event.clientX, event.clientY);
      if (!state.pinned && active()) showPicked({ node: n }, false);
    });
    node.addEventListener("mouseleave", () => { tip.hidden = true; if (!state.pinned) release(); });
    node.addEventListener("click", () => { if (active()) pin({ node: n }); });
    node.addEventListener("focus", () => { reachable(node); if (!state.pinned && active()) showPicked({ node: n }, false); });
    node.addEventListener("blur", () => { if (!state.pinned) release(); });
    node.addEventListener("keydown", (event) => {
      if (ARROWS[event.key]) {
        const next = neighbour(n, ...ARROWS[event.key]);
        if (next) next.focus();
      } else if (event.key === "Enter" || event.key === " ") pin({ node: n });
      else if (event.key === "Escape" && state.pinned) pin(null);
      else return;
      event.preventDefault();
    });
  });

  /* ---- edges ---- */

  let over = null;
  stage.addEventListener("mousemove", (event) => {
    if (event.target.closest(".node")) return;
    const found = canvas.under(event.clientX, event.clientY);
    const edge = found && found.edge !== undefined ? found.edge : null;
    if (edge !== over && !state.pinned) showPicked(edge === null ? null : { edge }, false);
    over = edge;
    stage.classList.toggle("over", edge !== null);
    if (!found) tip.hidden = true;
    else showTip(edge === null ? bundleSentence(found.bundle) : sentence(edge), event.clientX, event.clientY);
  });
  stage.addEventListener("mouseleave", () => { over = null; release(); });
  stage.addEventListener("click", (event) => {
    if (event.target.closest(".node")) return;
    if (over !== null) pin({ edge: over });
    else if (state.pinned) pin(null);
  });

  function bundleSentence(bundle) {
    const name = (layer) => controls.layerName(layer);
    return `${name(bundle.from)} \u2192 ${name(bundle.to)}: ${counted(bundle.edges.length, "weaker edge")}, sum of sizes ${magnitude(bundle.sum)}`;
  }

  /* The line below the drawing that steps through the shown edges, strongest first. */
  function stepTo(step, picked) {
    const n = state.shown.length;
    state.step = Math.max(0, Math.min(step, n - 1));
    const edge = state.shown[state.step];
    option.textContent = n ? `Edge ${state.step + 1} of ${grouped(n)}: ${sentence(edge)}` : "No edge is shown";
    if (!picked || !n) return;
    if (!state.pinned) showPicked({ edge }, false);
    const [x] = canvas.middle(edge), box = stage.getBoundingClientRect();
    if (x < box.left || x > box.right) stage.scrollLeft += x - box.left - box.width / 2;
  }

  stepper.addEventListener("focus", () => stepTo(state.step, true));
  stepper.addEventListener("blur", () => { if (!state.pinned) release(); });
  stepper.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (steps[event.key]) stepTo(state.step + steps[event.key], true);
    else if (event.key === "Enter" && state.shown.length) pin({ edge: state.shown[state.step] });
    else if (event.key === "Escape" && state.pinned) pin(null);
    else return;
    event.preventDefault();
  });

  /* ---- what is shown ---- */

  function update() {
    const chosen = controls.read();
    if (chosen.example >= 0 && chosen.example !== state.example) attendTo(examples[chosen.example].text);
    const weights = ((state.example = chosen.example), view.weights());
    const role = chosen.role === null ? null : new Set((view.roles.roles[chosen.role] || []).map((name) => data.nodes.indexOf(name)));
    state.kept = chosen.size === null ? edges.map(() => true) : connected(edges, chosen.size, nodes.length);
    const filter = { ...chosen, role, minimum: thresholdAt(chosen.share, data.largest) };
    state.shown = byWeight(edges.filter((edge) => state.kept[edge.i] && passes(edge, weights[edge.i], filter)).map((edge) => edge.i), weights);
    const into = new Array(nodes.length).fill(0), from = new Array(nodes.length).fill(0);
    for (const i of state.shown) {
      from[edges[i].source] += 1;
      for (const n of edges[i].feeds) into[n] += 1;
    }
    const largest = state.example < 0 ? data.largest : weights.reduce((most, each) => Math.max(most, Math.abs(each)), 0) || 1;
    canvas.show(state.shown, weights, largest);
    nodes.forEach((node, n) => {
      node.classList.toggle("on", into[n] + from[n] > 0);
      node.setAttribute("aria-label", `${nodeName(n)}: ${counted(into[n], "edge")} in, ${counted(from[n], "edge")} out`);
    });
    reachable(nodes.find((node) => node.tabIndex === 0 && node.classList.contains("on")) || nodes.find((node) => node.classList.contains("on")) || nodes[0]);
    const count = state.kept.filter(Boolean).length, on = nodes.filter((node) => node.classList.contains("on")).length;
    controls.report({ kept: count, shown: state.shown.length, on, minimum: filter.minimum });
    find(".legend .bundles").hidden = !Number(figure.dataset.bundles);
    if (state.pinned && state.pinned.node !== undefined && !nodes[state.pinned.node].classList.contains("on")) pin(null);
    else if (state.pinned && state.pinned.edge !== undefined && !state.shown.includes(state.pinned.edge)) pin(null);
    stepTo(0, false);
    roles.showFlows();
    tableSoon();
    lookUp();
  }

  /* The attention pattern follows the prompt whose weights are shown. */
  function attendTo(text) {
    const at = data.attention ? data.attention.prompts.findIndex((each) => each.text === text) : -1;
    if (at >= 0) state.attended = at;
    if (at >= 0 && state.pinned) showPicked(state.pinned, true);
  }

  function nodeName(n) {
    const name = data.nodes[n], groups = rolesOf(n), label = view.roles.labels[name];
    return [name, label, groups.length ? `role ${groups.join(", ")}` : ""].filter(Boolean).join(", ");
  }

  /* Names, labels and badges of the nodes after the roles changed. */
  function changed() {
    const names = Object.keys(view.roles.roles);
    nodes.forEach((node, n) => {
      const name = data.nodes[n], label = view.roles.labels[name], text = node.querySelector("text");
      text.dataset.own = text.dataset.own || text.textContent;
      text.textContent = label ? (label.length > 9 ? `${label.slice(0, 8)}\u2026` : label) : text.dataset.own;
      node.querySelectorAll(".badge").forEach((each) => each.remove());
      const box = canvas.place.nodes[n];
      rolesOf(n).forEach((role, k) => node.append(...badge(names.indexOf(role), box.x + box.width - 3 - 11 * k, box.y + 1)));
    });
    controls.offerRoles(names);
    roles.showRoles();
    roles.follow();
    update();
  }

  /* The number of a role on a node, in the colour of the role. */
  function badge(at, x, y) {
    const make = (tag, values, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      Object.entries({ class: `badge role-${at % 6}`, "aria-hidden": "true", ...values }).forEach(([key, value]) => made.setAttribute(key, value));
      if (text) made.textContent = text;
      return made;
    };
    return [make("circle", { cx: x, cy: y, r: 6 }), make("text", { x, y: y + 0.5 }, String(at + 1))];
  }

  /* The table follows the filter while it is open; the drawing goes first. */
  const folded = rows.length ? rows[0].closest("details") : null;
  let waiting = 0;
  function table(whole) {
    if (whole) lengthen();
    const shown = new Set(state.shown);
    rows.forEach((row, i) => {
      row.hidden = state.kept[i] && !shown.has(i);
      row.lastElementChild.textContent = state.kept[i] ? "yes" : "no";
    });
  }
  /* The page holds the strongest edges; the rest of the rows is made when the table is opened. */
  function lengthen() {
    if (rows.length === edges.length) return;
    const body = rows[0].parentNode;
    edges.slice(rows.length).forEach((edge) => {
      const row = element("tr"), score = element("td", "n");
      score.dataset.value = edge.score;
      score.append(signedTag(edge.score));
      row.append(element("td", "n", String(edge.i + 1)), element("td", "", data.nodes[edge.source]), element("td", "", edge.target), score, element("td"));
      rows.push(row);
    });
    body.append(...rows);
    folded.querySelectorAll("p.note").forEach((note) => note.remove());
  }
  function tableSoon() {
    clearTimeout(waiting);
    if (folded && folded.open) waiting = setTimeout(() => table(true), rows.length > 500 ? 120 : 0);
  }
  if (folded) folded.addEventListener("toggle", () => { if (folded.open && !("paper" in figure.dataset)) table(true); });

  /* ---- search ---- */

  function lookUp() {
    const text = controls.search.value, found = search(text, data.nodes, edges, state.shown, view.roles);
    state.found = text.trim() ? found : null;
    controls.results(state.found, {
      nodes: found.nodes.slice(0, FOUND).map((n) => [nodeName(n), () => goTo({ node: n })]),
      edges: found.edges.slice(0, FOUND).map((i) => [sentence(i), () => goTo({ edge: i })]),
    });
    release();
  }

  function goTo(what) {
    if (what.node !== undefined && !nodes[what.node].classList.contains("on")) {
      controls.say(`${data.nodes[what.node]} has no edge that is shown; widen the filter.`);
      return;
    }
    if (!state.pinned || what.node !== state.pinned.node || what.edge !== state.pinned.edge) pin(what);
    if (what.node !== undefined) nodes[what.node].focus();
    else stepper.focus();
  }

  controls.search.addEventListener("input", lookUp);
  controls.listen({ update, redraw: () => { canvas.draw(); release(); } });
  let asked = false;
  const later = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; canvas.draw(); showPicked(state.pinned, true); });
  };
  stage.addEventListener("scroll", later);
  new ResizeObserver(later).observe(stage);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  const onPaper = (now) => {
    figure.toggleAttribute("data-paper", now);
    document.documentElement.classList.toggle("on-paper", now);
    if (now) table(false);
    canvas.onPaper(now);
    if (now) stage.classList.remove("picked");
    else release();
  };
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
  inspector.hidden = stepper.hidden = false;
  changed();
  return view;
}
