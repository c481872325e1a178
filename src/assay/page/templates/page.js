"use strict";

/* A table whose rows a click on a heading sorts: upwards, downwards, as it was. */
function sortable(table) {
  const body = table.tBodies[0], original = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    if (!("sort" in cell.dataset)) return;
    const button = document.createElement("button");
    button.append(...cell.childNodes);
    cell.replaceChildren(button);
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[cell.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      table.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      if (order) cell.setAttribute("aria-sort", order);
      const numeric = cell.classList.contains("n"), sign = order === "descending" ? -1 : 1;
      const rows = !order ? original : [...original].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true }));
      });
      body.append(...rows);
    });
  });
}

document.documentElement.classList.add("script");
document.querySelectorAll("table.sortable").forEach(sortable);
