/* The kill matrix: mutants by scenarios, or by invariants. */

const says = el("p", { class: "says mono", "aria-live": "polite" });
const holder = el("div", {});
const only = el("select", { "aria-label": "which mutants", change: draw }, [["all", "all"], ["bad", "✗ not as it should be"], ["untested", "– not tested"], ["good", "✓ killed, or passes"]].map(([value, text]) => el("option", { value }, text)));
let by = "scenarios";

const mark = (text, kind) => el("span", { "data-kind": kind }, text);
const unique = (list) => [...new Set(list)];

/* Of a cell: the invariants that were named for the mutant and fell, and how many others. */
function fell(row, cell) {
  const named = cell.fell.filter((id) => row.falls.includes(id));
  const others = cell.fell.length - named.length;
  return [named, `${named.join(" ")}${others ? ` +${others}` : ""}`.trim()];
}

function byScenario(row, scenario) {
  const cell = row.cells.find((it) => it.scenario === scenario);
  if (!cell) return [mark("", ""), "not run"];
  if (cell.what === "pass") return [mark("·", "none"), "passes"];
  if (cell.what !== "fell") return [mark(cell.what, "untested"), cell.what];
  const [named, text] = fell(row, cell);
  return [mark(named.length ? `✓ ${text}` : `✗ ${text}`, named.length ? "good" : "known"), `${cell.fell.join(", ")} fell`];
}

function byInvariant(row, id) {
  const where = row.cells.filter((cell) => cell.fell.includes(id)).map((cell) => cell.scenario);
  const named = row.falls.includes(id);
  if (!where.length) return [mark(named ? "○" : "", named ? "none" : ""), named ? "named for it, and did not fall" : "did not fall"];
  return [mark(`${named ? "✓" : "+"} ${where.length}`, named ? "good" : "known"), `${named ? "named for it" : "not named for it"}, fell in ${where.join(", ")}`];
}

function draw() {
  const rows = data.rows.filter((row) => only.value === "all" || row.class === only.value);
  const columns = by === "scenarios" ? unique(rows.flatMap((row) => row.cells.map((cell) => cell.scenario)))
    : unique(rows.flatMap((row) => [...row.falls, ...row.cells.flatMap((cell) => cell.fell)])).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const cell = by === "scenarios" ? byScenario : byInvariant;
  const told = rows.map((row) => columns.map((column) => cell(row, column)));
  const name = (row) => el("span", { class: row.class === "good" ? "good" : row.class === "bad" ? "bad" : "untested" }, `${SIGNS[row.class]} ${row.name}`);
  holder.replaceChildren(grid("kill matrix", ["", ...columns], rows.map((row, at) => [name(row), ...told[at].map(([node]) => node)]), (at, column) => {
    const row = rows[at];
    says.textContent = column ? `${row.name}, ${columns[column - 1]}: ${told[at][column - 1][1]}${data.invariants[columns[column - 1]] ? ` (${data.invariants[columns[column - 1]]})` : ""}`
      : `${row.name}: ${row.told}${row.falls.length ? `; named for it: ${row.falls.join(", ")}` : ""}`;
  }));
  for (const tab of tabs.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.textContent === `by ${by}`));
}

const tabs = el("div", { class: "row tabs" }, ["scenarios", "invariants"].map((it) => el("button", { type: "button", click: () => { by = it; draw(); } }, `by ${it}`)), only);
document.body.append(
  heading("unwindlab mutants", `${data.summary}; ${count(data.rows.length, "row")} in ${data.seconds.toFixed(0)} s`),
  el("main", {}, tabs,
    el("p", { class: "row dim" }, ["✓ an invariant that was named for the mutant fell", "+N and others", "✗ only others fell", "· the scenario passes: it does not catch the mutant", "empty: not run"].map((it) => el("span", {}, it))),
    holder, says, el("p", { class: "dim" }, "keys: Tab to the table, then the arrow keys, Home, End")));
draw();
