/* A table in which arrow keys go from cell to cell. `rows` are lists of nodes, the first of each a heading. */

function grid(label, head, rows, say) {
  const line = (cells) => el("tr", {}, cells.map((cell, index) => {
    if (!(cell instanceof Node)) return el("th", { scope: "row" }, cell);
    const node = el(index ? "td" : "th", { tabindex: -1 }, cell);
    node.className = cell.dataset.kind ? `is-${cell.dataset.kind}` : "";
    return node;
  }));
  const body = el("tbody", {}, rows.map(line));
  const table = el("table", { class: "grid", "aria-label": label }, el("thead", {}, el("tr", {}, head.map((it, index) => el("th", { scope: "col" }, index ? el("span", { class: "steep" }, it) : it)))), body);
  const cell = (row, column) => body.rows[row]?.cells[column];
  body.addEventListener("keydown", (event) => {
    const at = event.target.closest("td, th");
    const [row, column] = [at.parentNode.rowIndex - 1, at.cellIndex];
    const to = { ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], Home: [row, 0], End: [row, at.parentNode.cells.length - 1] }[event.key];
    const next = to && cell(...to);
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  body.addEventListener("focusin", (event) => {
    const at = event.target.closest("td, th");
    for (const other of body.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    at.tabIndex = 0;
    say(at.parentNode.rowIndex - 1, at.cellIndex);
  });
  body.addEventListener("click", (event) => event.target.closest("td, th")?.focus());
  const first = cell(0, 0);
  if (first) first.tabIndex = 0;
  return el("div", { class: "scroll tall" }, table);
}
