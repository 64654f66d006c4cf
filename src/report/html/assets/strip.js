/* The whole path in one picture: a bar for each boundary, or for some that are next to each other. What failed is tallest,
   then what failed as a finding says, what passed, what was not tried: the colour says nothing that the height does not. */

const HEIGHTS = { bad: 1, known: 0.8, untested: 0.55, good: 0.35, none: 0.1 };
const RANK = ["none", "good", "untested", "known", "bad"];

/* `classes[i]` is the class of boundary i; `choose` gets the boundary that was clicked. */
function strip(classes, choose) {
  const canvas = el("canvas", { class: "strip", role: "img", click: (event) => choose(pick(event.offsetX / canvas.clientWidth)),
    "aria-label": `${classes.length.toLocaleString("en")} boundaries of the path, from left to right` });

  function span(x, width) {
    const from = Math.floor((x * classes.length) / width);
    return [from, Math.max(from + 1, Math.floor(((x + 1) * classes.length) / width))];
  }

  function worst(from, to) {
    let rank = 0;
    for (let index = from; index < to && index < classes.length; index += 1) rank = Math.max(rank, RANK.indexOf(classes[index]));
    return RANK[rank];
  }

  /* What failed near the place is meant. */
  function pick(share) {
    const at = Math.min(classes.length - 1, Math.floor(share * classes.length));
    const near = Math.ceil((6 * classes.length) / canvas.clientWidth);
    for (let far = 0; far <= near; far += 1) {
      for (const index of [at - far, at + far]) if (classes[index] === "bad" || classes[index] === "known") return index;
    }
    return at;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(RANK.map((name) => [name, style.getPropertyValue(`--${name === "untested" ? "c2" : name}`)]));
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const paper = canvas.getContext("2d");
    paper.scale(scale, scale);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    for (const wanted of RANK) {
      paper.fillStyle = colours[wanted];
      paper.globalAlpha = wanted === "good" ? 0.6 : 1;
      const wide = wanted === "bad" || wanted === "known" ? 3 : 1;
      for (let x = 0; x < width; x += 1) {
        if (worst(...span(x, width)) === wanted) paper.fillRect(x - (wide - 1) / 2, height * (1 - HEIGHTS[wanted]), wide, height * HEIGHTS[wanted]);
      }
    }
  }

  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return canvas;
}
