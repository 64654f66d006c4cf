/* The mutation score: the tables, and the source with its mutants beside the lines. */

const KINDS = {
  survived: ["✗", "survived"], refuted: ["‼", "killed, so its argument is wrong"], "not-covered": ["○", "not covered"], untested: ["?", "not tested"],
  argued: ["≈", "not killed, argued"], killed: ["✓", "killed"], twin: ["=", "twin of another"], same: ["≡", "changes no object"], "no-code": ["–", "does not compile"] };
const WRONG = ["survived", "refuted", "not-covered", "untested"];
const COLUMNS = { killed: "killed", survived: "survived", argued: "argued", "not covered": "not-covered", untested: "untested" };

const { mutants } = data;
const hidden = new Set();
const sign = (kind) => el("span", { class: `m-${kind}`, "data-kind": kind, title: KINDS[kind][1], hidden: hidden.has(kind) }, KINDS[kind][0]);

function table({ head, rows }) {
  const cell = (number, column) => el("td", { class: !number ? "dim" : COLUMNS[head[column + 1]] && `m-${COLUMNS[head[column + 1]]}` }, number);
  return el("details", { open: true }, el("summary", {}, `by ${head[0]}`), el("div", { class: "scroll" }, el("table", { class: "counts mono" },
    el("thead", {}, el("tr", {}, head.map((it) => el("th", { scope: "col" }, it)))),
    el("tbody", {}, rows.map(([name, numbers]) => el("tr", {}, el("th", { scope: "row" }, name), numbers.map(cell)))))));
}

function described(it) {
  const change = (mark, lines) => lines.map((line) => el("div", { class: "dim" }, `  ${mark}${line}`));
  return el("li", { "data-kind": it.kind, hidden: hidden.has(it.kind) },
    el("div", {}, el("span", { class: `m-${it.kind}` }, `${KINDS[it.kind][0]} ${it.name}`), ` in ${it.function}: ${it.told}`),
    change("-", it.old), it.new.map((line) => el("div", {}, `  +${line}`)), it.remarks.map((remark) => el("div", { class: "dim" }, `  ${remark}`)));
}

/* The row of a line; what its mutants are is below it while it is open. */
function sourceRow(row) {
  if (!row) return el("tr", { class: "dim" }, el("td", { colspan: 3 }, "⋯"));
  const [number, text, indexes] = row;
  const here = indexes.map((index) => mutants[index]);
  let below = null;
  const toggle = () => {
    if (below) {
      below.remove();
      below = null;
    } else {
      below = el("tr", { class: "open" }, el("td", { colspan: 3 }, el("ul", {}, here.map(described))));
      line.after(below);
    }
    button.setAttribute("aria-expanded", String(below !== null));
  };
  const button = here.length > 0 && el("button", { type: "button", "aria-expanded": "false", "aria-label": `line ${number}: ${count(here.length, "mutant")}`, click: toggle }, here.map((it) => sign(it.kind)));
  const line = el("tr", { class: here.some((it) => WRONG.includes(it.kind)) && "wrong" }, el("td", {}, button), el("td", { class: "dim" }, number), el("td", {}, text));
  return line;
}

function sourceFile(file) {
  const here = file.rows.flatMap((row) => (row ? row[2] : [])).map((index) => mutants[index].kind);
  const told = Object.keys(KINDS).map((kind) => [kind, here.filter((it) => it === kind).length]).filter(([, number]) => number);
  return el("details", { open: true }, el("summary", { class: "mono" }, `${file.name}  `, told.map(([kind, number]) => el("span", { class: `m-${kind}`, title: KINDS[kind][1] }, `${KINDS[kind][0]} ${number}  `))),
    el("table", { class: "code mutants" }, el("tbody", {}, file.rows.map(sourceRow))));
}

const source = el("div", {}, data.files.map(sourceFile));

/* Shows the mutants of those kinds that are not hidden. */
function filter() {
  for (const node of source.querySelectorAll("button [data-kind], li[data-kind]")) node.hidden = hidden.has(node.dataset.kind);
  for (const button of source.querySelectorAll("tr button")) button.hidden = !button.querySelector("[data-kind]:not([hidden])");
}

const kinds = Object.keys(KINDS).filter((kind) => mutants.some((it) => it.kind === kind)).map((kind) => el("button", { type: "button", class: `m-${kind}`, "aria-pressed": "true", click: (event) => {
  if (!hidden.delete(kind)) hidden.add(kind);
  event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(kind)));
  filter();
} }, `${KINDS[kind][0]} ${KINDS[kind][1]} ${mutants.filter((it) => it.kind === kind).length}`));

/* The next or the previous line with a mutant that is not as it should be, around the end. */
function step(by) {
  const lines = [...source.querySelectorAll("tr.wrong button:not([hidden])")];
  if (!lines.length) return;
  const at = lines.indexOf(document.activeElement);
  const next = lines[at < 0 ? (by > 0 ? 0 : lines.length - 1) : (at + by + lines.length) % lines.length];
  next.closest("details").open = true;
  next.focus();
  next.scrollIntoView({ block: "center" });
  if (next.getAttribute("aria-expanded") === "false") next.click();
}

document.body.append(
  heading("unwindlab mutants --generate", `${count(mutants.length, "mutant")} in ${data.seconds.toFixed(0)} s`),
  el("main", {},
    el("pre", { class: "text" }, data.summary.join("\n")),
    mutants.length > 0 && data.tables.map(table),
    el("p", { class: "row" }, kinds),
    el("p", { class: "dim" }, "a line's signs open what became of its mutants; keys: n p lines with a mutant that is not killed, argued or equivalent"),
    source));
keys({ n: () => step(1), p: () => step(-1) });
