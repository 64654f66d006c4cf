"use strict";
/* What all reports share: the data, and nodes. Text becomes text nodes, never markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((it) => it !== null && it !== undefined && it !== false));
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/* A word and a sign besides the colour, for those who do not see it. */
const SIGNS = { good: "✓", known: "≈", bad: "✗", untested: "–" };
const classOf = (result) => (result.outcome === "expected-failure" ? "known" : result.class);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

/* A list in which the arrow keys move the choice. `choose` gets the index. */
function listbox(node, choose) {
  const items = () => [...node.querySelectorAll("[role=option]:not([hidden])")];
  const select = (item, focus) => {
    for (const other of node.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
    for (const other of node.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    item.setAttribute("aria-selected", "true");
    item.tabIndex = 0;
    if (focus) item.focus();
    item.scrollIntoView({ block: "nearest" });
    choose(Number(item.dataset.index));
  };
  node.addEventListener("click", (event) => {
    const item = event.target.closest("[role=option]");
    if (item) select(item, true);
  });
  node.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.findIndex((it) => it.getAttribute("aria-selected") === "true");
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const item = all[Math.max(0, Math.min(all.length - 1, to))];
    if (item) select(item, true);
  });
  return { items, select };
}

/* The bar on top. */
function heading(title, details, ...more) {
  return el("header", {}, el("div", { class: "row" }, el("h1", {}, title), el("span", { class: "dim" }, details)), ...more);
}

/* Keys of the whole page; not while somebody types. */
function keys(table) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (typing && event.key !== "Escape") return;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const act = table[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
}
