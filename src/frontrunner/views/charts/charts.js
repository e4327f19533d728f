"use strict";
// Draws the charts of a page: the attribute data-chart of an element is a specification as JSON, or the URL of one.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // id -> { place, content, node, view, width }
  let isPrinting = false;

  // Panels fill the width; the same as `fitted` of render.py.
  function fitted(spec, width) {
    const found = structuredClone(spec);
    const needs = found.usermeta ?? {};
    const panels = found.hconcat ?? found.vconcat ?? [found.spec ?? found];
    let columns = found.hconcat ? panels.length : (found.columns ?? 1);
    if (needs.least) {
      const most = Math.max(1, Math.min(columns, Math.floor(width / needs.least)));
      const number = needs.panels ?? panels.length;
      columns = Math.ceil(number / Math.ceil(number / most));
    }
    if (found.hconcat && columns === 1) {
      found.vconcat = found.hconcat;
      delete found.hconcat;
    } else if (found.columns) found.columns = columns;
    if (panels[0] === found) found.autosize = { type: "fit-x", contains: "padding" };
    for (const panel of panels) {
      if (panel.vconcat || panel.facet) continue;
      panel.width ??= Math.max(80, Math.floor(width / columns - (needs.margin ?? 0)));
    }
    return found;
  }

  // A click on a recipe's mark opens it; the end of a drag that began there does not.
  function linkMarks(view, address) {
    let from;
    view.addEventListener("mousedown", (event) => { from = event; });
    view.addEventListener("click", (event, item) => {
      const recipe = item?.datum?.recipe;
      const isDragged = from && Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 4;
      if (recipe && !isDragged) window.location.assign(address.replace("RECIPE", encodeURIComponent(recipe)));
    });
  }

  // The signals of `zoomed` of marks.py: the part of an axis that a reader sees has two numbers.
  const zoomed = (view) => view.getState({ signals: (name) => name?.startsWith("zoom_"), data: () => false }).signals;

  async function keepZoom(from, to) {
    const known = zoomed(to);
    for (const [name, value] of Object.entries(zoomed(from))) {
      if (typeof value?.[0] === "number" && name in known) to.signal(name, value);
    }
    await to.runAsync();
  }

  // The chart is made aside and then put in place, so that nothing flickers where one is drawn again.
  async function draw(chart) {
    const { place, content } = chart;
    const reading = place.parentElement.querySelector(".reading");
    if (reading && content.reading) reading.textContent = content.reading;
    if (content.spec) {
      const width = place.clientWidth;
      const node = document.createElement("div");
      const config = window.chartThemes[dark.matches && !isPrinting ? "dark" : "light"];
      const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, logLevel: 1, config };
      const { view } = await vegaEmbed(node, fitted(content.spec, width), { ...options, tooltip: { disableDefaultStyle: true } });
      if (place.dataset.links) linkMarks(view, place.dataset.links);
      if (chart.view) {
        await keepZoom(chart.view, view);
        chart.view.finalize();
      }
      Object.assign(chart, { node, view, width });
      node.querySelector("svg").setAttribute("aria-hidden", "true"); // its place has a label
      place.replaceChildren(node);
      place.dataset.width = width;
      place.toggleAttribute("data-zooms", Object.keys(zoomed(view)).length > 0);
      if (place.scrollWidth > place.clientWidth) place.tabIndex = 0; // scrolled by keyboard
      else place.removeAttribute("tabindex");
    }
    place.dataset.drawn = content.spec ? "yes" : "no";
  }

  // One drawing after another in each place: its window may change, and outcomes arrive, in the midst of one.
  function redraw(chart) {
    chart.turn = (chart.turn ?? Promise.resolve()).then(() => draw(chart)).catch(console.error);
    return chart.turn;
  }

  async function fetched(url) {
    const response = await fetch(url, { headers: { Accept: "application/json" } });
    return response.ok ? response.json() : { reading: `Not drawn: the service answered ${response.status}.` };
  }

  async function load(place) {
    const before = drawn.get(place.id);
    const chart = { ...before, place };
    drawn.set(place.id, chart);
    if (before?.node && !place.contains(before.node)) place.append(before.node);
    const source = place.dataset.chart;
    chart.content = source.startsWith("{") ? { spec: JSON.parse(source) } : await fetched(source);
    await redraw(chart);
    watch.observe(place);
  }

  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = drawn.get(target.id);
      if (chart?.place === target && chart.content && chart.width !== target.clientWidth) redraw(chart);
    }
  });
  const all = () => drawn.forEach((chart) => { if (chart.content) redraw(chart); });
  const within = (node, wanted) => (node.querySelectorAll ? [node, ...node.querySelectorAll(wanted)] : []).filter((one) => one.matches?.(wanted));

  within(document.body, "[data-chart]").forEach(load);
  new MutationObserver((changes) => {
    for (const change of changes) for (const node of change.addedNodes) within(node, "[data-chart]").forEach(load);
  }).observe(document.body, { childList: true, subtree: true });
  document.body.addEventListener("outcomes", () => within(document.body, "[data-chart^='/']").forEach(load));
  dark.addEventListener("change", all);
  for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => { isPrinting = value; all(); });
  }
})();
