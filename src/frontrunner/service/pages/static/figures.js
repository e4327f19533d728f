"use strict";
// Draws the figures that a page names, in the colours of the reader's surroundings, and again when outcomes arrive.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  const known = new Map();

  function colours() {
    return dark.matches
      ? { ink: "#e6edf3", grid: "#2a313a", card: "#151b23" }
      : { ink: "#1f2328", grid: "#e4e8ec", card: "#ffffff" };
  }

  function dressed(layout, height) {
    const { ink, grid, card } = colours();
    const found = structuredClone(layout);
    Object.assign(found, {
      height,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif" },
      autosize: true,
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

  function draw(place) {
    const answer = known.get(place);
    const reading = place.parentElement.querySelector(".reading");
    reading.textContent = answer.reading;
    if (answer.figure) {
      const { data, layout } = answer.figure;
      Plotly.react(place, structuredClone(data), dressed(layout, place.clientHeight), config);
    }
    place.dataset.drawn = answer.figure ? "yes" : "no";
  }

  async function fetchAndDraw(place) {
    const response = await fetch(place.dataset.figure, { headers: { Accept: "application/json" } });
    if (!response.ok) {
      place.parentElement.querySelector(".reading").textContent = `Not drawn: the service answered ${response.status}.`;
      return;
    }
    known.set(place, await response.json());
    draw(place);
  }

  const places = () => document.querySelectorAll("[data-figure]");
  const refresh = () => places().forEach((place) => { fetchAndDraw(place).catch(console.error); });
  refresh();
  document.body.addEventListener("outcomes", refresh);
  dark.addEventListener("change", () => known.forEach((_, place) => draw(place)));
})();
