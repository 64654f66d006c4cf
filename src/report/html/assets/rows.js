/* A list of very many rows, of which only those in sight are nodes. */

const ROW = 20;

/* `render` makes the cells of an item, `choose` is told which item was chosen. */
function rowList(label, render, choose) {
  const sheet = el("div", { class: "sheet" });
  const view = el("div", { class: "rows", role: "listbox", tabindex: 0, "aria-label": label, keydown: press, click, scroll: () => draw() }, sheet);
  let items = [], at = 0;

  function draw() {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - 5);
    const last = Math.min(items.length, first + Math.ceil(view.clientHeight / ROW) + 10);
    const nodes = [];
    for (let index = first; index < last; index += 1) {
      const node = el("div", { class: "line", role: "option", id: `${label}-${index}`, "aria-selected": String(index === at), "aria-posinset": index + 1, "aria-setsize": items.length, "data-index": index });
      node.append(...render(items[index], node));
      node.style.top = `${index * ROW}px`;
      nodes.push(node);
    }
    sheet.replaceChildren(...nodes);
    view.setAttribute("aria-activedescendant", `${label}-${at}`);
  }

  function go(index, middle) {
    if (!items.length) return;
    at = Math.max(0, Math.min(items.length - 1, index));
    const top = at * ROW;
    if (middle) view.scrollTop = top - view.clientHeight / 3;
    else if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
    draw();
    choose(items[at]);
  }

  function press(event) {
    const page = Math.max(1, Math.floor(view.clientHeight / ROW) - 1);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to, false);
  }

  function click(event) {
    const line = event.target.closest(".line");
    if (line) go(Number(line.dataset.index), false);
  }

  return {
    view,
    draw,
    /* Shows these items; stays at the chosen one if it is among them. */
    set(list) {
      const chosen = items[at];
      items = list;
      sheet.style.height = `${items.length * ROW}px`;
      at = Math.max(0, items.indexOf(chosen));
      draw();
    },
    /* Chooses an item. */
    to(item) {
      const index = items.indexOf(item);
      if (index >= 0) go(index, true);
      return index >= 0;
    },
    /* Chooses the next or the previous item for which `test` holds, around the end. */
    find(test, by) {
      for (let step = 1; step <= items.length; step += 1) {
        const index = (((at + by * step) % items.length) + items.length) % items.length;
        if (test(items[index])) return go(index, true);
      }
    },
  };
}
