/* What stands beside the drawing of a circuit viewer: what is picked, attention patterns, roles. */

const LISTED = 12;  // edges of a list beside the drawing
const TOKEN_ROOM = 84;  // pixels for the tokens beside an attention pattern
const WIDEST_PATTERN = 320;  // pixels of an attention pattern

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, className, act, name) {
  const made = element("button", className, text);
  made.type = "button";
  if (name) made.setAttribute("aria-label", name);
  made.addEventListener("click", act);
  return made;
}

/* The channel of a head that an edge enters, as " -> q"; of a key/value head that heads share, as " -> kv1.k". */
function channel(target) {
  const end = /\.((?:kv\d+\.)?[qkv])$/.exec(target);
  return end ? ` \u2192 ${end[1]}` : "";
}

/* Edges of a node under a heading, each a button that picks it. */
function edgeList(title, indices, view, name) {
  const part = element("div"), items = element("ol");
  part.append(element("h4", "", `${title} ${counted(indices.length, "edge")}`), items);
  indices.slice(0, LISTED).forEach((i) => {
    const item = element("li");
    item.append(button(name(i), "plain", () => view.pin({ edge: i }), view.sentence(i)), view.weightTag(i));
    items.append(item);
  });
  if (indices.length > LISTED) part.append(element("span", "quiet", `and ${counted(indices.length - LISTED, "edge")} more`));
  return part;
}

/* What a node reads and writes, its roles and label, and its attention. */
function nodePanel(view, n, pinned) {
  const { into, from } = view.around(n), name = view.data.nodes[n], lists = element("div", "lists");
  const groups = view.rolesOf(n), label = view.roles.labels[name];
  const heading = element("h3", "", name + (pinned ? " (picked)" : ""));
  if (label) heading.append(element("span", "quiet", ` ${label}`));
  if (groups.length) heading.append(element("span", "quiet", ` \u00b7 ${groups.join(", ")}`));
  if (n > 0) lists.append(edgeList("reads", into, view, (i) => view.data.nodes[view.edges[i].source] + channel(view.edges[i].target)));
  if (n < view.data.nodes.length - 1) lists.append(edgeList("writes", from, view, (i) => view.edges[i].target));
  const attention = pinned ? attentionPanel(view, name) : null;
  return [heading, lists, ...(attention ? [attention] : [])];
}

/* What is known of an edge, and its weight on every example. */
function edgePanel(view, i, pinned) {
  const edge = view.edges[i], examples = view.examples;
  const parts = [element("h3", "", `${view.data.nodes[edge.source]} \u2192 ${edge.target}${pinned ? " (picked)" : ""}`)];
  parts.push(element("p", "", view.sentence(i) + "."));
  if (pinned && examples.length) {
    const table = element("table"), body = element("tbody");
    table.append(element("caption", "quiet", "Weight on each prompt"), body);
    examples.forEach((each, at) => {
      const row = element("tr"), head = element("th", "", each.text);
      head.scope = "row";
      const cell = element("td", "n");
      cell.append(signedTag(each.weights[i]));
      row.append(head, cell);
      if (at === view.state.example) row.className = "chosen";
      body.append(row);
    });
    parts.push(table);
  }
  return parts;
}

function signedTag(value) {
  return element("span", value < 0 ? "minus" : "plus", signed(value));
}

/* The attention pattern of a head on the chosen prompt, as a picture and as its largest entries. */
function attentionPanel(view, name) {
  const attention = view.data.attention;
  if (!/^a\d+\.h\d+$/.test(name)) return null;
  if (!attention || !attention.heads[name]) {
    const why = attention ? attention.note || "This page holds no pattern of this head." : "This page holds no attention patterns.";
    return element("p", "quiet", why);
  }
  const at = Math.max(0, Math.min(view.state.attended, attention.prompts.length - 1)), prompt = attention.prompts[at];
  const rows = attentionRows(attention.heads[name][at], prompt.tokens.length);
  const part = element("div", "attention"), canvas = element("canvas"), label = element("label", "", "Prompt ");
  const choice = element("select");
  attention.prompts.forEach((each, k) => choice.append(new Option(each.text, k, k === at, k === at)));
  choice.addEventListener("change", () => { view.state.attended = Number(choice.value); view.refresh(); });
  label.append(choice);
  const strongest = rows.flatMap((row, query) => row.slice(0, query + 1).map((share, key) => ({ share, query, key })))
    .filter((each) => each.query > 0).sort((a, b) => b.share - a.share).slice(0, 8);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Attention of ${name}: queries as rows, keys as columns; the largest shares are listed beside it`);
  const list = element("ol", "attended");
  strongest.forEach(({ share, query, key }) => list.append(element("li", "",
    `${prompt.tokens[query]} (${query}) attends to ${prompt.tokens[key]} (${key}): ${Math.round(100 * share)}\u202f%`)));
  const said = element("p", "quiet", "Point at a cell to read it.");
  const cell = paintPattern(canvas, rows, prompt.tokens, paletteOf(view.figure));
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [query, key] = [event.clientY - box.top, event.clientX - box.left - TOKEN_ROOM].map((place) => Math.floor(place / cell));
    if (!rows[query] || rows[query][key] === undefined) return;
    said.textContent = `${prompt.tokens[query]} (${query}) attends to ${prompt.tokens[key]} (${key}): ${(100 * rows[query][key]).toFixed(1)}\u202f%`;
  });
  const picture = element("div");
  picture.append(canvas, said);
  const words = element("div");
  words.append(element("h4", "", "Largest shares"), list);
  part.append(element("h4", "", `Attention of ${name}: rows attend to columns`), label, picture, words);
  return part;
}

/* Paints a pattern with its tokens beside the rows; returns the pixels of a cell. */
function paintPattern(canvas, rows, tokens, palette) {
  const n = rows.length, cell = Math.max(3, Math.min(18, Math.floor(WIDEST_PATTERN / n)));
  canvas.width = TOKEN_ROOM + cell * n;
  canvas.height = cell * n;
  const context = canvas.getContext("2d");
  context.fillStyle = palette.tint;
  context.fillRect(TOKEN_ROOM, 0, cell * n, cell * n);
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.font = "11px sans-serif";
  rows.forEach((row, query) => {
    context.globalAlpha = 1;
    context.fillStyle = palette.muted;
    if (cell >= 9) context.fillText(tokens[query].trim().slice(0, 12), TOKEN_ROOM - 6, (query + 0.5) * cell);
    context.fillStyle = palette.supports;
    row.forEach((share, key) => {
      context.globalAlpha = Math.sqrt(share);
      context.fillRect(TOKEN_ROOM + key * cell, query * cell, cell - 1, cell - 1);
    });
  });
  return cell;
}

/* ---- roles ---- */

/* Adds, shows, saves and loads roles and labels; `view.changed()` follows every change. */
function rolesPanel(view, panel) {
  const [role, label, file] = ["role", "label", "file"].map((name) => panel.querySelector(`[name="${name}"]`));
  const [add, set, save, load] = ["add", "set-label", "save", "load"].map((name) => panel.querySelector(`.${name}`));
  const list = panel.querySelector(".roles-list"), flows = panel.querySelector(".flows");
  const said = panel.querySelector(".said"), options = panel.querySelector("datalist"), chosen = panel.querySelector(".chosen-node");
  const say = (text, wrong) => { said.textContent = text; said.classList.toggle("wrong", Boolean(wrong)); };
  const picked = () => (view.state.pinned && view.state.pinned.node !== undefined ? view.data.nodes[view.state.pinned.node] : null);

  function addRole() {
    const name = role.value.trim(), node = picked();
    if (!node) return say("Pick a node first: click it, or press Enter on it.", true);
    if (!name) return say("Give the role a name, e.g. name mover.", true);
    const members = view.roles.roles[name] || (view.roles.roles[name] = []);
    if (!members.includes(node)) members.push(node);
    say(`${node} is in the role ${name}.`);
    view.changed();
  }

  function setLabel() {
    const node = picked(), text = label.value.trim();
    if (!node) return say("Pick a node first: click it, or press Enter on it.", true);
    if (text) view.roles.labels[node] = text;
    else delete view.roles.labels[node];
    say(text ? `${node} is labelled ${text}.` : `${node} has no label.`);
    view.changed();
  }

  function saveFile() {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(rolesFile(view.data, view.roles), null, 1)], { type: "application/json" }));
    link.download = "roles.json";
    link.click();
    URL.revokeObjectURL(link.href);
    say("Saved as roles.json.");
  }

  async function loadFile() {
    if (!file.files.length) return;
    try {
      const read = readRoles(await file.files[0].text(), view.data);
      view.roles.roles = read.roles;
      view.roles.labels = read.labels;
      say(`Loaded ${counted(Object.keys(read.roles).length, "role")} and ${counted(Object.keys(read.labels).length, "label")}.`);
      view.changed();
    } catch (error) {
      say(error.message, true);
    }
    file.value = "";
  }

  function remove(name, node) {
    view.roles.roles[name] = view.roles.roles[name].filter((each) => each !== node);
    if (!view.roles.roles[name].length) delete view.roles.roles[name];
    say(`${node} is no longer in the role ${name}.`);
    view.changed();
  }

  function showRoles() {
    const names = Object.keys(view.roles.roles);
    panel.classList.toggle("empty", !names.length);
    options.replaceChildren(...names.map((name) => new Option(name)));
    list.replaceChildren(...names.map((name, at) => {
      const item = element("li");
      item.append(element("span", `badge role-${at % 6}`, String(at + 1)), element("b", "", name), " ");
      view.roles.roles[name].forEach((node) => item.append(
        button(`${node} \u00d7`, "member", () => remove(name, node), `Remove ${node} from ${name}`)));
      return item;
    }));
  }

  /* The table of edges between roles follows the filter, so it is made when it is seen. */
  function showFlows() {
    const found = panel.open ? roleFlows(view.roles, view.data.nodes, view.edges, view.weights(), view.state.shown) : [];
    flows.hidden = !found.length;
    flows.querySelector("tbody").replaceChildren(...found.slice(0, 40).map((flow) => {
      const row = element("tr"), sum = element("td", "n");
      sum.append(signedTag(flow.sum));
      row.append(element("td", "", flow.writer), element("td", "", flow.reader), element("td", "n", grouped(flow.count)), sum);
      return row;
    }));
  }

  function follow() {
    const node = picked();
    chosen.textContent = node ? `Picked: ${node}` : "Pick a node to name its role or give it a label.";
    label.value = (node && view.roles.labels[node]) || "";
  }

  add.addEventListener("click", addRole);
  set.addEventListener("click", setLabel);
  save.addEventListener("click", saveFile);
  load.addEventListener("click", () => file.click());
  file.addEventListener("change", loadFile);
  for (const [field, act] of [[role, addRole], [label, setLabel]]) {
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); act(); } });
  }
  panel.addEventListener("toggle", showFlows);
  return { showRoles, showFlows, follow };
}
