"use strict";
// Draws the figures that a page names, in the colours of the reader's surroundings, and again when outcomes arrive.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, displayModeBar: false };
  const known = new Map();
  const widths = new Map();
  const turns = new Map();
  const GAP = 0.85; // of the room for a square that it takes
  const DIGIT = 6.5; // pixels that a character in a square is wide

  function colours() {
    return dark.matches
      ? { ink: "#e6edf3", grid: "#2a313a", card: "#151b23" }
      : { ink: "#1f2328", grid: "#e4e8ec", card: "#ffffff" };
  }

  function dressed(layout, width, height) {
    const { ink, grid, card } = colours();
    const found = structuredClone(layout);
    Object.assign(found, {
      width,
      height,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif" },
    });
    found.hoverlabel = { ...found.hoverlabel, bgcolor: card, bordercolor: grid, font: { color: ink } };
    for (const [key, axis] of Object.entries(found)) {
      if (/^[xy]axis/.test(key)) Object.assign(axis, { gridcolor: grid, linecolor: grid, tickcolor: grid });
    }
    // Plotly writes bold text as a style attribute, which the page's policy forbids; a font's weight is allowed.
    for (const note of found.annotations || []) {
      if (/<b>/.test(note.text)) note.font = { ...note.font, weight: "bold" };
      note.text = note.text.replace(/<\/?b>/g, "");
    }
    return found;
  }

  // How far apart the categories of an axis are drawn, in pixels.
  function pitch(axis) {
    return axis._length / Math.abs(axis.range[1] - axis.range[0]);
  }

  // Squares of a map never cover one another, however narrow the page is; a number that does not fit in is left out.
  async function fitSquares(place, data) {
    const layout = place._fullLayout;
    for (const [number, trace] of data.entries()) {
      if (trace.meta !== "cells") continue;
      const rooms = [layout[trace.xaxis.replace("x", "xaxis")], layout[trace.yaxis.replace("y", "yaxis")]].map(pitch);
      const size = Math.floor(Math.min(trace.marker.size, GAP * Math.min(...rooms)));
      const text = trace.text.map((words) => (words.length * DIGIT <= size ? words : ""));
      await Plotly.restyle(place, { "marker.size": size, text: [text] }, [number]);
    }
  }

  // A figure across the page is as high as it asks for, and its place never shrinks: what is below stays where it is.
  function heightOf(place, layout) {
    if (!place.closest(".full")) return place.clientHeight;
    place.style.minHeight = `${Math.max(place.clientHeight, layout.height)}px`;
    return layout.height;
  }

  async function drawNow(place) {
    const answer = known.get(place);
    const reading = place.parentElement.querySelector(".reading");
    reading.textContent = answer.reading;
    if (answer.figure) {
      const { data, layout } = answer.figure;
      const height = heightOf(place, layout);
      widths.set(place, place.clientWidth);
      await Plotly.react(place, structuredClone(data), dressed(layout, place.clientWidth, height), config);
      await fitSquares(place, data);
    }
    place.dataset.drawn = answer.figure ? "yes" : "no";
  }

  // One drawing after another in each place: the window may change its size, and outcomes arrive, in the midst of one.
  function draw(place) {
    const drawing = (turns.get(place) ?? Promise.resolve()).then(() => drawNow(place));
    turns.set(place, drawing.catch(() => {}));
    return drawing;
  }

  async function fetchAndDraw(place) {
    const response = await fetch(place.dataset.figure, { headers: { Accept: "application/json" } });
    if (!response.ok) {
      place.parentElement.querySelector(".reading").textContent = `Not drawn: the service answered ${response.status}.`;
      return;
    }
    known.set(place, await response.json());
    await draw(place);
  }

  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (known.has(target) && widths.get(target) !== target.clientWidth) draw(target).catch(console.error);
    }
  });

  const places = () => document.querySelectorAll("[data-figure]");
  const refresh = () => places().forEach((place) => { fetchAndDraw(place).catch(console.error); });
  refresh();
  places().forEach((place) => watch.observe(place));
  document.body.addEventListener("outcomes", refresh);
  dark.addEventListener("change", () => known.forEach((_, place) => draw(place).catch(console.error)));
})();
