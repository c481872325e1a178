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
  // What is folded has no size yet, and asking for it would lay it out.
  const check = () => boxes.filter((box) => !box.closest("details:not([open])")).forEach(scrollable);
  check();
  window.addEventListener("resize", check);
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", check));
}

function sortable(table) {
  const body = table.tBodies[0];
  let original = null;
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (!("sort" in cell.dataset)) return;
    const button = element("button", "", cell.textContent);
    button.type = "button";
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      original = original || [...body.rows];
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
  const viewers = [...document.querySelectorAll("figure.viewer")];
  viewers.forEach((figure) => withData(figure, circuitView));
  if (viewers.length) searchKey(viewers);
  document.querySelectorAll("table.sortable").forEach(sortable);
  scrollables();
  openForPrint();
} else if (typeof module !== "undefined") {
  module.exports = {
    connected, interpolate, signed, strokeWidth, passes, byWeight, drawingPlan, search, readRoles, rolesFile, roleFlows,
    exampleWeights, attentionRows, readEdges,
  };
}
