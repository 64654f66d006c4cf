/* The instructions around an NMI. */

function codeTable(code, place, known) {
  const rows = code.rows.flatMap((row) => {
    const cells = el("tr", { class: row.here ? (known ? "known-here" : "here") : "" },
      el("td", { class: "hits", title: "NMIs of this trial that interrupted it" }, row.hits ? `▼${row.hits}` : ""),
      el("td", { class: "at" }, row.offset), el("td", {}, row.text), row.source && el("td", { class: "dim" }, row.source));
    if (!row.here) return [cells];
    const nmi = el("tr", { class: known ? "known-nmi" : "nmi" }, el("td", { colspan: 4 }, `⚡ the NMI comes here, before ${place}`));
    return [nmi, cells];
  });
  return el("div", { class: "scroll" }, el("table", { class: "code" },
    el("caption", { class: "dim" }, `${code.function}; ▼: how many NMIs of this trial interrupted the instruction`), el("tbody", {}, rows)));
}
