/* The controls above the drawing of a circuit viewer: what they say, and what they are asked. */

function viewerControls(figure, data) {
  const box = figure.querySelector(".controls"), field = (name) => box.querySelector(`[name="${name}"]`);
  const [query, size, share, from, to, sign, role, example] =
    ["search", "size", "minimum", "from", "to", "sign", "role", "example"].map(field);
  const output = box.querySelector("output");
  const found = figure.querySelector(".found"), status = figure.querySelector(".status");
  const graph = figure.querySelector(".graph"), stage = figure.querySelector(".stage"), least = parseFloat(graph.style.minWidth);
  const zooms = [1, 1.5, 2, 3, 4];
  let zoom = 0;

  function layerName(layer) {
    if (layer === 0) return "input";
    return layer === data.graph.n_layers + 1 ? "logits" : `layer ${layer - 1}`;
  }

  const layers = [...Array(data.graph.n_layers + 2).keys()];
  from.append(...layers.slice(0, -1).map((layer) => new Option(layerName(layer), layer)));
  to.append(...layers.slice(1).map((layer) => new Option(layerName(layer), layer)));
  (data.examples || []).forEach((each, at) => example.append(new Option(each.text, at)));

  /* What the reader asked for. */
  function read() {
    const layer = (select) => (select.value === "" ? null : Number(select.value));
    return {
      size: size ? Number(size.value) : null,
      share: Number(share.value) / 1000,
      from: layer(from), to: layer(to), sign: sign ? sign.value : "", role: role.value || null,
      example: example && example.value !== "" ? Number(example.value) : -1,
    };
  }

  /* Says in figures what is shown. */
  function report({ kept, shown, on, minimum }) {
    const wanted = read(), parts = [];
    if (size) {
      const joined = kept === wanted.size ? "all" : `${grouped(kept)} of them`;
      const text = `${grouped(wanted.size)}, ${joined} connected`;
      parts.push(element("b", "", text), ` \u00b7 ${(100 * kept / data.total).toFixed(1)}\u202f% of all`);
      const value = kept && data.curve ? interpolate(data.curve.n_edges, data.curve.values, wanted.size) : null;
      if (value !== null) parts.push(` \u00b7 normalised faithfulness about ${value.toFixed(2)}`);
      size.setAttribute("aria-valuetext", text);
    } else {
      parts.push(element("b", "", counted(kept, "edge")));
    }
    if (shown < kept) parts.push(` \u00b7 the filter shows ${grouped(shown)}`);
    parts.push(` \u00b7 ${on} of ${data.nodes.length} nodes`);
    output.replaceChildren(...parts);
    const least = minimum ? magnitude(minimum) : "none";
    share.setAttribute("aria-valuetext", least);
    box.querySelector(".least").textContent = least;
    box.querySelector(".reset").disabled = untouched();
  }

  /* What a search found, as buttons. */
  function results(what, entries) {
    found.hidden = !what;
    if (!what) return;
    const list = (each) => {
      const items = element("ul");
      items.append(...each.map(([text, act]) => { const item = element("li"); item.append(button(text, "plain", act)); return item; }));
      return items;
    };
    const head = `${counted(what.nodes.length, "node")} and ${counted(what.edges.length, "shown edge")} found`;
    const cut = what.nodes.length > entries.nodes.length || what.edges.length > entries.edges.length;
    found.replaceChildren(element("p", "quiet", cut ? `${head}; the first of each are listed` : head), list(entries.nodes), list(entries.edges));
    say(head);
  }

  function say(text) {
    if (status.textContent !== text) status.textContent = text;
  }

  function offerRoles(names) {
    const now = role.value;
    role.replaceChildren(new Option("any node", ""), ...names.map((name) => new Option(name, name)));
    role.value = names.includes(now) ? now : "";
    role.closest("label").hidden = !names.length;
  }

  function untouched() {
    return (!size || Number(size.value) === data.size) && share.value === "0" &&
      [from, to, sign, role, example].every((each) => !each || each.value === "");
  }

  function reset() {
    if (size) size.value = data.size;
    share.value = 0;
    [from, to, sign, role, example].forEach((each) => { if (each) each.value = ""; });
  }

  /* A larger or smaller drawing around the same middle. */
  function setZoom(step, redraw) {
    const before = zooms[zoom], middle = stage.scrollLeft + stage.clientWidth / 2;
    zoom = Math.max(0, Math.min(zooms.length - 1, zoom + step));
    const now = zooms[zoom];
    graph.style.width = `${100 * now}%`;
    graph.style.minWidth = `${least * now}px`;
    stage.classList.toggle("zoomed", now > 1);
    stage.scrollLeft = middle * now / before - stage.clientWidth / 2;
    box.querySelector(".zoom-out").disabled = zoom === 0;
    box.querySelector(".zoom-in").disabled = zoom === zooms.length - 1;
    say(`Zoom ${100 * now} per cent`);
    redraw();
  }

  function listen({ update, redraw }) {
    box.querySelectorAll("input:not([type=search]), select").forEach((each) => each.addEventListener("input", update));
    box.querySelector(".reset").addEventListener("click", () => { reset(); update(); query.focus(); });
    box.querySelector(".zoom-in").addEventListener("click", () => setZoom(1, redraw));
    box.querySelector(".zoom-out").addEventListener("click", () => setZoom(-1, redraw));
    query.addEventListener("keydown", (event) => {
      const first = found.querySelector("button");
      if (event.key === "Escape") { query.value = ""; query.dispatchEvent(new Event("input")); }
      else if ((event.key === "Enter" || event.key === "ArrowDown") && first) {
        if (event.key === "Enter") first.click();
        else first.focus();
      } else return;
      event.preventDefault();
    });
    found.addEventListener("keydown", (event) => {
      const all = [...found.querySelectorAll("button")], at = all.indexOf(document.activeElement);
      if (event.key === "ArrowDown" && all[at + 1]) all[at + 1].focus();
      else if (event.key === "ArrowUp") (all[at - 1] || query).focus();
      else if (event.key === "Escape") query.focus();
      else return;
      event.preventDefault();
    });
  }

  box.hidden = false;
  if (size) size.value = data.size;
  return { read, report, results, say, offerRoles, layerName, listen, search: query };
}

/* The key / goes to the search of the viewer that is in sight. */
function searchKey(figures) {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    const seen = figures.find((figure) => figure.contains(document.activeElement)) ||
      figures.find((figure) => { const box = figure.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; }) || figures[0];
    event.preventDefault();
    seen.querySelector("[name=search]").focus();
  });
}
