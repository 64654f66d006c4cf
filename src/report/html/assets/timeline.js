/* A timeline: a lane for each vCPU and task, and an arc from each request to its answer. */

const LEFT = 92, HEAD = 34, CPU_LANE = 30, TASK_LANE = 112;

/* `place` is the instruction that the NMI in question interrupted. */
function timeline(it, known, place) {
  const COLUMN = Math.max(40, Math.min(84, 1000 / (it.records.length + 1)));
  const width = LEFT + COLUMN * (it.records.length + 1) + 60;
  const cpuY = (index) => HEAD + CPU_LANE * (index + 0.5);
  const taskY = (index) => HEAD + CPU_LANE * it.cpus.length + TASK_LANE * (index + 1) - 34;
  const x = (index) => LEFT + COLUMN * (index + 0.8);
  const height = taskY(it.tasks.length - 1) + 64;
  const says = el("p", { class: "says mono", "aria-live": "polite" }, it.records.length ? "Arrow keys go from record to record." : "");
  const lines = eventList(it);
  const say = (index) => {
    says.textContent = it.records[index].line;
    for (const on of picture.querySelectorAll(".on")) on.classList.remove("on");
    for (const on of lines.querySelectorAll(".on")) on.classList.remove("on");
    nodes[index].classList.add("on");
    lines.querySelector(`[data-index="${index}"]`).classList.add("on");
  };
  const nodes = it.records.map((record, index) => item(it, record, index, [x(index), cpuY(record.cpu), taskY(record.task)], isNmi(record, place), say));
  const picture = svg("svg", { class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "timeline: lanes of vCPUs and tasks" },
    it.cpus.map((cpu, index) => lane(`CPU ${cpu}`, cpuY(index), width)),
    it.tasks.map((task, index) => lane(task, taskY(index), width)),
    it.records.map((record, index) => isNmi(record, place) && svg("line", { class: "strike", x1: x(index), x2: x(index), y1: HEAD - 8, y2: taskY(record.task) - 11 })),
    it.arcs.filter((arc) => !arc.broken).map((arc) => drawArc(it, arc, x, taskY, COLUMN)),
    it.arcs.filter((arc) => arc.broken).map((arc) => drawArc(it, arc, x, taskY, COLUMN)),
    nodes,
    alarms(it, x, place),
    brokenCookies(it, x, taskY, width),
    times(it, x, height, COLUMN));
  picture.addEventListener("keydown", (event) => move(event, nodes));
  const first = Math.max(0, it.records.findIndex((record) => record.bad));
  if (nodes[first]) nodes[first].setAttribute("tabindex", "0");
  const scroll = el("div", { class: "scroll" }, picture);
  requestAnimationFrame(() => { scroll.scrollLeft = x(first) - scroll.clientWidth / 2; });
  return { picture: el("div", { class: known ? "known" : "" }, scroll, legend(), says), lines };
}

/* Whether a record is of the NMI that the violation is about. */
const isNmi = (record, place) => record.bad && record.hit && (!place || record.hit === place);

function lane(name, y, width) {
  return svg("g", {}, svg("line", { class: "lane", x1: LEFT, x2: width, y1: y, y2: y }),
    svg("text", { x: LEFT - 10, y: y + 4, "text-anchor": "end" }, name));
}

/* A record: on the lane of its vCPU and on that of its task. */
function item(it, record, index, [x, cpuY, taskY], alarm, say) {
  const colour = it.arcs.find((arc) => arc.cookie === record.cookie);
  const marks = {
    request: svg("circle", { class: "mark", cx: x, cy: taskY, r: 6 }),
    answer: svg("rect", { class: "mark", x: x - 6, y: taskY - 6, width: 12, height: 12 }),
    sample: svg("circle", { class: "arc", cx: x, cy: taskY, r: 5 }),
    in: svg("path", { class: "dimmed", d: `M${x - 4} ${taskY - 6}l8 6l-8 6z` }),
    out: svg("path", { class: "dimmed", d: `M${x + 4} ${taskY - 6}l-8 6l8 6z` }),
    other: svg("circle", { class: "dimmed", cx: x, cy: taskY, r: 3 }),
  };
  return svg("g", { class: `item k${colour ? colour.colour % 6 : 0}`, tabindex: -1, role: "img", "aria-label": record.line, click: () => say(index), focus: () => say(index) },
    svg("rect", { class: "hit", x: x - 13, y: HEAD - 6, width: 26, height: taskY - HEAD + 22, rx: 5 }),
    svg("line", { class: "join", x1: x, x2: x, y1: cpuY, y2: taskY }),
    record.hit ? svg("path", alarm ? { class: "alarm", d: `M${x - 9} ${cpuY - 11}h18l-9 17z` } : { class: "mark", d: `M${x - 6} ${cpuY - 7}h12l-6 11z` }) : svg("circle", { class: "dimmed", cx: x, cy: cpuY, r: 3 }),
    marks[record.role],
    record.bad && svg("circle", { class: "ring", cx: x, cy: taskY, r: 11 }),
    svg("title", {}, record.line));
}

function drawArc(it, arc, x, taskY, column) {
  const kind = `k${arc.colour % 6}`;
  const y = (index) => taskY(it.records[index].task) - 8;
  const whole = arc.from !== undefined && arc.to !== undefined;
  const [a, b] = [x(arc.from ?? arc.to), x(arc.to ?? arc.from)];
  let path, label;
  if (whole) {
    const low = Math.min(y(arc.from), y(arc.to));
    const up = Math.min(58, 20 + Math.abs(b - a) / 5);
    path = `M${a} ${y(arc.from)}C${a} ${low - up} ${b} ${low - up} ${b} ${y(arc.to)}`;
    label = arc.broken || Math.abs(b - a) < 96 ? null : svg("text", { class: "cookie", x: (a + b) / 2, y: low - up * 0.75 - 4, "text-anchor": "middle" }, arc.cookie);
  } else {
    const [low, end] = [y(arc.from ?? arc.to), a + (arc.from === undefined ? -1 : 1) * Math.min(34, column * 0.7)];
    path = `M${a} ${low}C${a} ${low - 34} ${end} ${low - 34} ${end} ${low - 44}`;
    label = arc.broken && svg("text", { class: "alarm", x: end, y: low - 46, "text-anchor": "middle" }, arc.missing === "not-shown" ? "" : "✗");
  }
  const line = whole ? (arc.from > arc.to ? "stub" : "") : arc.missing === "not-shown" ? "faint" : "stub";
  return svg("g", { class: kind }, svg("path", { class: `arc ${arc.broken ? "broken" : ""} ${line}`, d: path }, svg("title", {}, `cookie ${arc.cookie}`)), label);
}

/* What is wrong with a cookie stands under the record that shows it. */
function brokenCookies(it, x, taskY, width) {
  const said = new Set();
  return it.arcs.filter((arc) => arc.broken && !said.has(arc.cookie) && said.add(arc.cookie)).map((arc, row) => {
    const of = it.arcs.filter((other) => other.cookie === arc.cookie);
    const ends = of.flatMap((other) => [other.from, other.to]).filter((at) => at !== undefined);
    const at = ends.find((end) => it.records[end].bad) ?? ends[0];
    const missing = { request: ": no sample got it", answer: ": never answered" }[of.find((other) => other.missing)?.missing] ?? "";
    const text = `✗ cookie ${arc.cookie}${missing}`;
    const half = text.length * 4.1;
    return svg("text", { class: "alarm", x: Math.max(half + 4, Math.min(width - half, x(at))), y: taskY(it.records[at].task) + 27 + 15 * (row % 2), "text-anchor": "middle" }, text);
  });
}

/* Where the NMI of a record that the violation names came. */
function alarms(it, x, place) {
  let end = 0;
  return it.records.map((record, index) => {
    if (!isNmi(record, place)) return null;
    const text = `⚡ NMI at ${record.hit}`;
    if (x(index) < end) return null;
    end = x(index) + 8 * text.length;
    return svg("text", { class: "alarm", x: x(index) - 6, y: 18 }, text);
  });
}

/* Microseconds since the first record, and what is left out. */
function times(it, x, height, column) {
  const first = it.records.findIndex((record) => record.time);
  const ns = (time) => { const [s, n] = time.split("."); return Number(s) * 1e9 + Number(n); };
  return it.records.map((record, index) => [
    record.gap > 0 && svg("text", { class: "dimmed", x: x(index) - column / 2, y: height - 6, "text-anchor": "middle" }, index ? `⋯${record.gap}⋯` : "⋯"),
    record.time && index % 3 === 0 && svg("text", { class: "dimmed", x: x(index), y: height - 22, "text-anchor": "middle" },
      index === first ? `${record.time.slice(0, -3)} s` : `+${((ns(record.time) - ns(it.records[first].time)) / 1000).toLocaleString("en", { maximumFractionDigits: 0 })} µs`),
  ]).flat();
}

function move(event, nodes) {
  const at = nodes.indexOf(event.target.closest(".item"));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: nodes.length - 1 }[event.key];
  if (to === undefined || !nodes[to]) return;
  event.preventDefault();
  if (at >= 0) nodes[at].setAttribute("tabindex", "-1");
  nodes[to].setAttribute("tabindex", "0");
  nodes[to].focus();
}

function legend() {
  const signs = ["▼ NMI on its vCPU", "● request: a sample gets a cookie", "■ answer: the stack for a cookie", "○ sample without a cookie", "▸ ◂ switched in, out",
    "dashed: the sample came after the answer, or an end is missing"];
  return el("p", { class: "row dim" }, signs.map((sign) => el("span", {}, sign)), el("span", {}, "Columns are records in order, not to scale."));
}

function eventList(it) {
  const list = el("ol", { class: "events" });
  it.records.forEach((record, index) => {
    if (record.gap > 0) list.append(el("li", { class: "gap" }, `⋯ ${count(record.gap, "record")} ⋯`));
    list.append(el("li", { class: record.bad ? "marked" : "", "data-index": index }, `${record.bad ? "> " : "  "}${record.line}`));
  });
  return list;
}
