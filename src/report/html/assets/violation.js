/* A violation: what must hold, the timeline, the instructions around the NMI. */

function card(violation, known) {
  const drawn = timeline(violation.timeline, known, violation.place);
  const broken = [...new Set(violation.timeline.arcs.filter((arc) => arc.broken).map((arc) => arc.cookie))];
  const kind = known ? "known" : "bad";
  const shown = violation.timeline.records;
  return el("section", { class: `card ${known ? "known" : ""}`, "aria-label": violation.invariant },
    el("p", { class: "statement" }, el("span", { class: kind }, `${violation.invariant} is violated`), `: ${data.invariants[violation.invariant] ?? "not a known invariant"}`),
    el("p", { class: "mono" }, violation.message),
    el("div", { class: "row" },
      violation.place && el("span", { class: `chip ${kind} mono` }, `⚡ NMI at ${violation.place}`),
      broken.map((cookie) => el("span", { class: `chip ${kind} mono` }, `✗ cookie ${cookie}`)),
      violation.finding && el("span", { class: "chip known" }, `${violation.finding}: ${data.findings[violation.finding] ?? ""}`)),
    !shown.some((record) => record.bad) && el("p", { class: "dim" }, shown.length ? "It names no record; these are the last ones." : "It names no record."),
    shown.length > 0 && drawn.picture,
    el("div", { class: violation.code ? "side" : "" },
      violation.code && el("div", {}, el("h3", {}, "Instructions"), codeTable(violation.code, violation.place, known)),
      shown.length > 0 && el("div", {}, el("h3", {}, "Records"), drawn.lines)),
    violation.stacks && [el("h3", {}, "Stacks"), el("pre", { class: "text scroll wide" }, violation.stacks)],
    el("p", { class: "dim" }, "More: ", el("code", {}, `unwindlab explain ${violation.finding ?? violation.invariant}`)));
}

/* A word of a shell. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
