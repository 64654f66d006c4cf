/* The report of a sweep: the path as a picture and as a list, its instructions, the source, and each distinct failure. */

const { steps, functions, instructions } = data.path;
const number = steps.length;
const tried = new Uint32Array(number), bad = new Uint32Array(number), known = new Uint32Array(number);
let filled = 0;
for (const [trials, times] of data.trials) { tried.fill(trials, filled, filled + times); filled += times; }
for (const failure of data.failures) {
  for (const [at, trials] of Object.entries(failure.at)) (failure.known ? known : bad)[at] += trials;
}
const missed = new Set(data.missed), unsteady = new Set(data.unsteady);
const classes = Array.from(steps, (_, at) => bad[at] ? "bad" : known[at] ? "known" : missed.has(at) || unsteady.has(at) ? "untested" : tried[at] ? "good" : "none");
/* Where the next boundary stands for one, its class is the next one's. */
for (const at of data.alike.toReversed()) if (classes[at] === "none") classes[at] = classes[at + 1];
const NAMES = { bad: "✗ fails", known: "≈ finding", untested: "? not steady, or not reached", good: "✓ passes", none: "· not tried" };
const SHORT = { bad: "✗", known: "≈", untested: "?", good: "✓", none: "·" };

const place = (instruction) => `${instruction[0] === null ? "" : functions[instruction[0]]}${instruction[1]}`;
const placeOf = (at) => place(instructions[steps[at]]);
const failuresAt = (at) => data.failures.filter((failure) => failure.at[at]).map((failure) => failure.what).join("; ");
const share = (failed, all) => (failed ? `heat heat${Math.min(4, Math.ceil((4 * failed) / Math.max(1, all)))}` : "heat");

/* All that is known of each distinct instruction. */
const totals = instructions.map(() => ({ times: 0, tried: 0, bad: 0, known: 0, at: -1 }));
steps.forEach((index, at) => {
  const total = totals[index];
  if (total.at < 0 || (classes[total.at] !== "bad" && (classes[at] === "bad" || (classes[at] === "known" && classes[total.at] !== "known")))) total.at = at;
  total.times += 1;
  total.tried += tried[at];
  total.bad += bad[at];
  total.known += known[at];
});
const classOfTotal = (it) => (it.bad ? "bad" : it.known ? "known" : classes[it.at]);

const cells = (kind, failed, all, instruction, last, numbers) => [
  el("span", { class: "dim" }, numbers), el("span", { class: kind, title: NAMES[kind] }, SHORT[kind]),
  el("span", { class: `${share(failed, all)} ${kind}` }, failed ? `${failed}/${all}` : all > 1 ? `0/${all}` : ""),
  el("span", {}, place(instruction)), el("span", {}, instruction[2]), el("span", { class: "dim" }, last)];
const pathList = rowList("path", (at, node) => {
  node.classList.add(`is-${classes[at]}`);
  return cells(classes[at], bad[at] + known[at], tried[at], instructions[steps[at]], failuresAt(at) || instructions[steps[at]][3] || "", at);
}, chosen);
const codeList = rowList("instructions", (index, node) => {
  const it = totals[index];
  node.classList.add(`is-${classOfTotal(it)}`);
  return cells(classOfTotal(it), it.bad + it.known, it.tried, instructions[index], failuresAt(it.at) || instructions[index][3] || "", `×${it.times}`);
}, (index) => chosen(totals[index].at));

const detail = el("p", { class: "mono says", "aria-live": "polite" });
function chosen(at) {
  const failing = data.failures.find((failure) => failure.at[at]);
  const point = data.pairs && failing?.first ? failing.first[0] : at;
  detail.replaceChildren(`point ${at}: ${placeOf(at)}  ${NAMES[classes[at]]} ${failuresAt(at)}`, el("br"),
    el("code", {}, `unwindlab sweep ${data.setting.scenario}${data.pairs ? " --pairs" : ""} --point ${point} --trace --instructions 5`));
}

/* Boundaries that fail and are next to each other on the path. */
function groups() {
  const found = [];
  for (let at = 0; at < number; at += 1) {
    if (!bad[at] && !known[at]) continue;
    const last = found.at(-1);
    const what = failuresAt(at);
    if (last && at - last.to <= 1 && last.what === what) last.to = at;
    else found.push({ from: at, to: at, what });
  }
  return found;
}

/* The views of which one is shown. */
const which = el("select", { "aria-label": "which", change: filter }, ["all", ...RANK.toReversed()].map((it) => el("option", { value: it }, NAMES[it] ?? "all points")));
const search = el("input", { type: "search", placeholder: "function ( / )", "aria-label": "function contains", input: filter });
const views = { path: pathList.view, instructions: codeList.view };
if (data.files.length) views.source = el("div", { class: "source", tabindex: 0 }, data.files.map(sourceFile));
const holder = el("div", { class: "holder" });
const tabs = el("div", { class: "row tabs" }, Object.keys(views).map((name) => el("button", { type: "button", "data-view": name, click: () => view(name) }, name)), which, search);
let current = "path";

function view(name) {
  current = name;
  for (const tab of tabs.querySelectorAll("button")) tab.setAttribute("aria-pressed", String(tab.dataset.view === name));
  holder.replaceChildren(views[name]);
  filter();
}

function filter() {
  const [wanted, text] = [which.value, search.value.toLowerCase()];
  const fits = (kind, index) => (wanted === "all" || kind === wanted) && (!text || place(instructions[index]).toLowerCase().includes(text));
  if (current === "path") pathList.set([...steps.keys()].filter((at) => fits(classes[at], steps[at])));
  if (current === "instructions") codeList.set([...totals.keys()].filter((index) => fits(classOfTotal(totals[index]), index)));
}

function sourceFile(file) {
  const rows = file.rows.map((row) => {
    if (!row) return el("tr", { class: "dim" }, el("td", { colspan: 4 }, "⋯"));
    const [line, counts, text] = row;
    const [times, executed, tried, failed] = counts ?? [];
    const kind = !counts ? "" : failed ? "bad" : tried ? "good" : executed ? "untested" : "none";
    return el("tr", { class: kind && `is-${kind}` }, el("td", {}, counts ? (failed ? "✗" : tried ? "✓" : executed ? "·" : "–") : ""), el("td", { class: "dim" }, counts ? `×${times} ${tried}/${executed}` : ""), el("td", { class: "dim" }, line), el("td", {}, text));
  });
  const [code, executed, tries] = file.counts;
  return el("details", { open: true }, el("summary", {}, `${file.name}: ${count(code, "line")} with code, ${executed} executed, ${tries} tried`), el("table", { class: "code" }, el("tbody", {}, rows)));
}

function failureCard(failure, index) {
  const kind = failure.known ? "known" : "bad";
  const at = Object.keys(failure.at).map(Number);
  const places = [...new Set(at.map(placeOf))];
  return el("section", { class: `card ${failure.known ? "known" : ""}` },
    el("p", { class: "statement" }, el("span", { class: kind }, `${SHORT[kind]} ${failure.what}`), ` at ${count(failure.points, "point")}`),
    el("p", { class: "mono" }, places.slice(0, 12).join("  "), places.length > 12 && ` and ${places.length - 12} other places`),
    el("details", { open: index === 0 }, el("summary", {}, failure.first ? `the trial at point ${failure.first[0]}` : "messages"),
      el("pre", { class: "text" }, failure.messages.join("\n")),
      failure.first && failure.first[1].map((it) => card(it, failure.known || it.finding !== null))));
}

const summary = `${data.tried.toLocaleString("en")} trials at ${count(tried.filter((it) => it).length, "point")} of a path of ${number.toLocaleString("en")} boundaries${data.alike.length ? `, which stand for ${data.alike.length.toLocaleString("en")} more` : ""}: ` +
  `${data.passed} passed, ${count(data.failures.length, "distinct failure")}; ${data.seconds.toFixed(1)} s${data.cut ? `; ${data.cut}` : ""}`;
const legend_ = el("p", { class: "row dim" }, RANK.toReversed().map((kind) => el("span", {}, el("span", { class: `swatch sw-${kind}` }), ` ${NAMES[kind]} ${classes.filter((it) => it === kind).length}`)));
const found = groups();
document.body.append(
  heading(`sweep of ${data.setting.scenario} on ${data.setting["kernel-release"]}`, `${summary}; kernel ${data.setting["kernel-spec"]}, KVM host ${data.setting["kvm-host"]}`),
  el("main", {},
    strip(classes, (at) => { view("path"); pathList.to(at); }), legend_,
    el("div", { class: "row" }, found.slice(0, 12).map((group) => el("button", { type: "button", class: classes[group.from], click: () => { view("path"); pathList.to(group.from); } },
      `${SHORT[classes[group.from]]} ${placeOf(group.from)}${group.to > group.from ? ` … ${placeOf(group.to)}` : ""}: ${group.what}`)),
      found.length > 12 && el("span", { class: "dim" }, `and ${found.length - 12} other places`)),
    tabs, holder, detail, el("p", { class: "dim" }, "keys: n p what fails, / search, ↑ ↓ PageUp PageDown Home End in a list"),
    data.failures.map(failureCard)));
const isFailing = { path: (at) => bad[at] + known[at] > 0, instructions: (index) => totals[index].bad + totals[index].known > 0 };
const jump = (by) => ({ path: pathList, instructions: codeList })[current]?.find(isFailing[current], by);
keys({ "/": () => search.focus(), n: () => jump(1), p: () => jump(-1), Escape: () => { search.value = ""; which.value = "all"; filter(); views[current].focus(); } });
view("path");
if (found.length) pathList.to(found[0].from);
else if (number) pathList.to(0);
