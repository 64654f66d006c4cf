/* The designs: a plot of each figure, and the table of all. */

const WIDTH = 560, BAR = 20, NAME = 190;

function plot([title, cells]) {
  const values = cells.map(([, value]) => value);
  const most = Math.max(...values.map((value) => value ?? 0), 0) || 1;
  const length = (value) => (WIDTH - NAME - 150) * (value / most);
  const height = BAR * cells.length + 6;
  return el("figure", { class: "plot" }, el("figcaption", {}, title),
    svg("svg", { class: "timeline", width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}: ${cells.map(([text], at) => `${data.columns[at]} ${text}`).join("; ")}` },
      cells.map(([text, value], at) => {
        const y = BAR * at + 4;
        return svg("g", { class: `k${at ? 0 : 2}` },
          svg("text", { x: NAME - 6, y: y + 13, "text-anchor": "end" }, data.columns[at]),
          value !== null && svg("rect", { class: "mark", x: NAME, y, width: Math.max(1, length(value)), height: BAR - 5 }),
          svg("text", { x: NAME + (value === null ? 0 : length(value)) + 6, y: y + 13 }, text),
          svg("title", {}, `${data.columns[at]}: ${text}`));
      }),
      values[0] !== null && svg("line", { class: "lane", x1: NAME + length(values[0]), x2: NAME + length(values[0]), y1: 0, y2: height })));
}

const says = el("p", { class: "says mono", "aria-live": "polite" });
const rows = data.figures.map(([title, cells]) => [el("span", {}, title), ...cells.map(([text]) => el("span", {}, text))]);
document.body.append(
  heading("unwindlab variants", `${count(data.columns.length, "kernel")} in ${data.seconds.toFixed(0)} s`),
  el("main", {},
    el("p", { class: "dim" }, `The line in a plot is ${data.columns[0] ?? "the first kernel"}.`),
    el("div", { class: "plots" }, data.figures.filter(([, cells]) => cells.some(([, value]) => value !== null)).map(plot)),
    el("h3", {}, "All figures"),
    grid("figures", ["", ...data.columns], rows, (row, column) => { says.textContent = column ? `${data.columns[column - 1]}, ${data.figures[row][0]}: ${data.figures[row][1][column - 1][0]}` : data.figures[row][0]; }), says,
    data.notes.length > 0 && el("pre", { class: "text" }, data.notes.join("\n"))));
