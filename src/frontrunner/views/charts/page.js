"use strict";
// Draws the figures whose values lie in the page, in the colours of the reader's surroundings, and light on paper.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  function colours(isDark) {
    const ink = isDark ? "#e6edf3" : "#1f2328";
    const grid = isDark ? "#2a313a" : "#e4e8ec";
    return { ink, grid, card: isDark ? "#151b23" : "#ffffff" };
  }

  function dressed(layout, isDark) {
    const { ink, grid, card } = colours(isDark);
    const found = structuredClone(layout);
    Object.assign(found, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 13, family: "system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif" },
      autosize: true,
    });
    found.hoverlabel = { ...found.hoverlabel, bgcolor: card, bordercolor: grid, font: { color: ink } };
    for (const [key, axis] of Object.entries(found)) {
      if (/^[xy]axis/.test(key)) Object.assign(axis, { gridcolor: grid, linecolor: grid, tickcolor: grid });
    }
    return found;
  }

  function draw(isDark) {
    for (const [name, figure] of Object.entries(figures)) {
      const data = structuredClone(figure.data);
      for (const trace of data) {
        if (trace.type === "parcoords") trace.labelfont = trace.tickfont = { color: colours(isDark).ink, size: 12 };
      }
      Plotly.react(`plot-${name}`, data, dressed(figure.layout, isDark), config);
    }
  }

  draw(dark.matches);
  dark.addEventListener("change", () => draw(dark.matches));
  window.addEventListener("beforeprint", () => draw(false));
  window.addEventListener("afterprint", () => draw(dark.matches));
})();
