/* The report of a run: outcomes on the left, one scenario on the right. */

const results = data.results;
const outcomes = [...new Set(results.map((it) => it.outcome))];
const hidden = new Set();
const search = el("input", { type: "search", placeholder: "name ( / )", "aria-label": "name contains", input: filter });
const main = el("main", { tabindex: -1, id: "detail" });
const list = el("ul", { class: "list", role: "listbox", "aria-label": "scenarios" }, results.map((it, index) =>
  el("li", { role: "option", tabindex: -1, "aria-selected": "false", "data-index": index, title: it.outcome },
    el("span", { class: classOf(it) }, SIGNS[classOf(it)]), el("span", { class: "name" }, it.name),
    el("span", { class: "dim" }, it.outcome === "pass" ? "" : it.outcome))));
const box = listbox(list, show);

const buttons = outcomes.map((outcome) => {
  const of = results.filter((it) => it.outcome === outcome);
  return el("button", { type: "button", "aria-pressed": "true", class: classOf(of[0]), click: (event) => {
    if (!hidden.delete(outcome)) hidden.add(outcome);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(outcome)));
    filter();
  } }, `${SIGNS[classOf(of[0])]} ${outcome} ${of.length}`);
});

function filter() {
  const text = search.value.toLowerCase();
  for (const item of list.children) {
    const it = results[item.dataset.index];
    item.hidden = hidden.has(it.outcome) || !it.name.toLowerCase().includes(text);
  }
}

function show(index) {
  const it = results[index];
  history.replaceState(null, "", `#${encodeURIComponent(it.name)}`);
  main.replaceChildren(...detail(it));
  main.scrollTop = 0;
}

function detail(it) {
  const [samples, deferred, late, lost, injections] = it.counts;
  const known = classOf(it) === "known";
  const replay = it.files.find(([kind]) => kind === "replay");
  return [
    el("div", { class: "row" }, el("h2", {}, it.name), el("span", { class: `chip ${classOf(it)}` }, `${SIGNS[classOf(it)]} ${it.outcome}`),
      el("span", { class: "dim" }, `${count(samples, "sample")}, ${deferred} deferred, ${late} late, ${lost} lost, ${count(injections, "injection")}` +
        `${it.trials ? `, ${count(it.trials, "trial")}` : ""}, ${it.seconds.toFixed(1)} s`)),
    it.reasons.length > 0 && el("pre", { class: "text" }, it.reasons.join("\n")),
    it.violations.map((violation) => card(violation, known || violation.finding !== null)),
    Object.keys(it.more).length > 0 && el("p", {}, `Not shown, of the same kind or beyond the first ${it.violations.length}: ` +
      Object.entries(it.more).map(([id, n]) => `${n} more of ${id}`).join(", ")),
    it.last && it.last.records.length > 0 && [el("h3", {}, "The last records before the end"), Object.values(timeline(it.last, false, null))],
    it.difference.length > 0 && [el("h3", {}, "Difference from the snapshot"), el("pre", { class: "text" }, it.difference.join("\n"))],
    replay && [el("h3", {}, "Once more"), el("pre", { class: "command" }, `unwindlab replay ${quoted(replay[1])} --trace --instructions 5`)],
    it.files.length > 0 && [el("h3", {}, "Files"), el("table", {}, it.files.map(([kind, path]) => el("tr", {}, el("th", {}, kind), el("td", { class: "mono" }, path))))],
    el("details", {}, el("summary", {}, `${count(it.held.length, "invariant")} held, ${it.open} not exercised`),
      el("table", {}, it.held.map(([id, n]) => el("tr", {}, el("th", {}, id), el("td", {}, data.invariants[id] ?? ""), el("td", { class: "dim" }, `on ${n}`))))),
  ].flat(2).filter((node) => node);
}

function step(by) {
  const items = box.items().filter((it) => classOf(results[it.dataset.index]) !== "good");
  if (!items.length) return;
  const at = items.findIndex((it) => it.getAttribute("aria-selected") === "true");
  box.select(items[(at + by + items.length) % items.length], true);
}

document.body.append(
  heading(`unwindlab run on ${data.setting["kernel-release"]}`, `${data.summary}, kernel ${data.setting["kernel-spec"]}, KVM host ${data.setting["kvm-host"]}`,
    el("div", { class: "row" }, buttons, search, el("span", { class: "dim" }, "keys: ↑ ↓ scenarios, n p failures, / search, Tab and ← → records"))),
  el("div", { class: "split" }, list, main));
keys({ "/": () => search.focus(), n: () => step(1), p: () => step(-1), Escape: () => { search.value = ""; filter(); (list.querySelector("[tabindex='0']") ?? list).focus(); } });
const named = results.findIndex((it) => `#${encodeURIComponent(it.name)}` === location.hash);
const worst = ["bad", "known", "untested", "good"].map((kind) => results.findIndex((it) => classOf(it) === kind)).find((at) => at >= 0);
const begin = named >= 0 ? named : worst;
if (begin !== undefined) box.select(list.children[begin], false);
else main.append(el("p", {}, "No scenario was run."));
