"use strict";
// The explorer of a campaign's recipes. Its state is the address: filters, order, columns and pins. Each change is a new
// address, whose page gives the filters and the table, and whose points are drawn by two canvases that are linked.
(() => {
  const explorer = document.getElementById("explorer");
  if (!explorer) return;
  const byId = (id) => document.getElementById(id);
  const [parallel, scatter, reading] = ["parallel", "scatter", "reading"].map(byId);
  const hint = document.body.appendChild(document.createElement("div"));
  hint.className = "vg-tooltip";
  const REPLACED = ["filters", "found"];
  const SPEED = "tokens_per_s", PEAK = "peak_memory_bytes_max_rank";
  const LIVE_MS = 15000;
  let data = null, asked = 0, hovered = -1, brush = null, ink = {};

  // -- the address ------------------------------------------------------------------------------------------------

  async function go(search, push = true) {
    const url = location.pathname + (search ? `?${search}` : "");
    if (push) history.pushState(null, "", url);
    const mine = ++asked;
    explorer.setAttribute("aria-busy", "true");
    try {
      const [page, points] = await Promise.all([
        fetch(url, { headers: { Accept: "text/html" } }),
        fetch(`${explorer.dataset.points}${search ? `?${search}` : ""}`),
      ]);
      const html = new DOMParser().parseFromString(await page.text(), "text/html");
      if (mine !== asked) return;
      if (page.ok) show(html);
      else byId("notice").replaceChildren(...html.querySelectorAll("main p.warning, body > p:not(.home)"));
      if (points.ok) {
        data = prepared(await points.json());
        draw();
      }
    } finally {
      if (mine === asked) explorer.removeAttribute("aria-busy");
    }
  }

  function show(html) {
    const held = document.activeElement?.id;
    const at = byId("rows").scrollLeft;
    const open = ["columns-box", "python"].filter((id) => byId(id)?.open);
    for (const id of REPLACED) byId(id).replaceWith(document.adoptNode(html.getElementById(id)));
    for (const id of open) byId(id).open = true;
    byId("rows").scrollLeft = at;
    if (held) byId(held)?.focus({ preventScroll: true });
    htmx.process(explorer);
  }

  function typed() {
    const found = new Map();
    const isDefault = ![...byId("filters").elements].some((one) => one.name === "columns" && one.checked !== one.defaultChecked)
      && byId("filters").querySelector("[data-default]");
    for (const [name, value] of new FormData(byId("filters"))) {
      if (value === "" || (name === "columns" && isDefault)) continue;
      found.set(name, [...(found.get(name) ?? []), value]);
    }
    return query(found);
  }

  const query = (found) => [...found].map(([name, values]) => `${name}=${values.map(encodeURIComponent).join(",")}`).join("&");

  function filtered(changes) {
    const found = new Map([...new URLSearchParams(location.search)].map(([name, value]) => [name, value.split(",")]));
    found.delete("page");
    for (const [name, values] of Object.entries(changes)) {
      if (values?.length) found.set(name, values.map(String));
      else found.delete(name);
    }
    go(query(found));
  }

  explorer.addEventListener("change", (event) => {
    if (event.target.dataset.go) go(event.target.dataset.go.split("?")[1] ?? "");
    else if (event.target.form?.id === "filters") go(typed());
  });
  explorer.addEventListener("submit", (event) => {
    event.preventDefault();
    go(typed());
  });
  explorer.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.button) return;
    const link = event.target.closest("a[data-go]");
    if (link) {
      event.preventDefault();
      go(link.search.slice(1));
    } else if (event.target.closest("tr[data-recipe]") && !event.target.closest("a, input") && !getSelection().toString()) {
      open(event.target.closest("tr").dataset.recipe);
    }
  });
  window.addEventListener("popstate", () => go(location.search.slice(1), false));
  const open = (recipe) => location.assign(explorer.dataset.recipe.replace("RECIPE", encodeURIComponent(recipe)));
  function pin(recipe) {
    const pins = data.pins.includes(recipe) ? data.pins.filter((one) => one !== recipe) : [...data.pins, recipe];
    filtered({ pin: pins });
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  function prepared(found) {
    found.speed = found.axes.find((axis) => axis.name === SPEED);
    found.peak = found.axes.find((axis) => axis.name === PEAK);
    const [low, high] = found.speed?.ends ?? [0, 1];
    found.shade = found.ids.map((_, row) => {
      const speed = found.speed?.at[row];
      return speed == null ? null : high > low ? (speed - low) / (high - low) : 1;
    });
    found.shift = found.ids.map((id) => parseInt(id.slice(-4), 16) / 65536 - 0.5 || 0);
    // The faded first, then from the slowest to the fastest, and pinned recipes above all.
    const height = (row) => (found.pins.includes(found.ids[row]) ? 4 : found.met[row] ? 2 + (found.shade[row] ?? -1) : 0);
    found.order = found.ids.map((_, row) => row).sort((a, b) => height(a) - height(b));
    hovered = -1;
    return found;
  }

  const TURN = 0.75; // the share of the fastest speed from which lines turn orange
  const mixed = (a, b, share) => a.map((part, at) => Math.round(part + (b[at] - part) * share));
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  function colorOf(row, alpha = 1) {
    if (!data.met[row] && !data.pins.includes(data.ids[row])) return `rgba(${rgb(ink.quiet)},${0.13 * alpha})`;
    const shade = data.shade[row];
    if (shade == null) return `rgba(${rgb(ink.danger)},${0.35 * alpha})`;
    const part = shade < TURN ? mixed(rgb(ink.slow), rgb(ink.line), shade / TURN) : mixed(rgb(ink.line), rgb(ink.fast), (shade - TURN) / (1 - TURN));
    return `rgba(${part},${alpha})`;
  }

  function canvas(place, height) {
    const width = place.clientWidth, scale = window.devicePixelRatio || 1;
    place.width = width * scale;
    place.height = height * scale;
    const pen = place.getContext("2d");
    pen.scale(scale, scale);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return [pen, width, height];
  }

  const rounded = (number) => (Math.abs(number) >= 100 ? Math.round(number).toLocaleString("en-US") : String(Number(number.toPrecision(3))));
  function cutTo(pen, text, room) {
    let kept = text;
    while (kept && pen.measureText(kept).width > room) kept = kept.slice(0, -1);
    return kept.length < text.length ? `${kept.slice(0, -1)}…` : text;
  }

  const TOP = 38, BOTTOM = 14;
  function heightOf(axis, row, height) {
    const room = height - TOP - BOTTOM, at = axis.at[row];
    if (at == null) return null;
    if (!axis.values) return TOP + room * (1 - (axis.ends[1] > axis.ends[0] ? (at - axis.ends[0]) / (axis.ends[1] - axis.ends[0]) : 0.5));
    const band = room / axis.values.length;
    return TOP + room - (at + 0.5) * band + data.shift[row] * Math.min(18, band * 0.5);
  }

  function drawParallel() {
    const place = byId("parallel-wide"), { axes } = data;
    parallel.style.width = `${Math.max(place.clientWidth, axes.length * 58)}px`;
    const [pen, width, height] = canvas(parallel, 350);
    // Values stand to the right of their axis, so the last one has room for its own.
    const last = axes.at(-1), values = last?.values ?? last?.ends.map(rounded) ?? [];
    const right = Math.max(30, ...values.map((text) => Math.min(pen.measureText(text).width, 90) + 10));
    const step = (width - 24 - right) / Math.max(1, axes.length - 1);
    data.x = axes.map((_, at) => 24 + step * at);
    data.y = axes.map((axis) => data.ids.map((_, row) => heightOf(axis, row, height)));
    const line = (row) => {
      pen.beginPath();
      let isOn = false;
      data.x.forEach((x, at) => {
        const y = data.y[at][row];
        if (y == null) isOn = false;
        else if (isOn) pen.lineTo(x, y);
        else { pen.moveTo(x, y); isOn = true; }
      });
      pen.stroke();
    };
    const many = data.matching > 300 ? 0.45 : 0.8;
    for (const row of data.order) {
      const isPinned = data.pins.includes(data.ids[row]);
      pen.lineWidth = isPinned ? 3 : 1.3;
      pen.strokeStyle = isPinned ? ink.pin : colorOf(row, many);
      line(row);
    }
    if (hovered >= 0) {
      pen.lineWidth = 3.5;
      pen.strokeStyle = ink.ink;
      line(hovered);
    }
    const isStaggered = axes.some((axis) => pen.measureText(axis.label).width > step - 6);
    axes.forEach((axis, at) => {
      drawName(pen, axis, data.x[at], isStaggered ? [2 * step - 8, at % 2 ? 27 : 11] : [step - 6, 18], width);
      drawAxis(pen, axis, data.x[at], at < axes.length - 1 ? step : right, height);
    });
    if (brush?.place === parallel) {
      pen.fillStyle = `rgba(${rgb(ink.accent)},.22)`;
      pen.fillRect(data.x[brush.axis] - 9, Math.min(brush.from.y, brush.to.y), 18, Math.abs(brush.to.y - brush.from.y));
    }
  }

  const isFilter = (axis) => axis.chosen?.some((one) => one !== null);

  function drawName(pen, axis, x, [most, y], width) {
    const shown = cutTo(pen, axis.label, most), half = pen.measureText(shown).width / 2;
    pen.textAlign = "center";
    pen.fillStyle = isFilter(axis) ? ink.accent : ink.ink;
    pen.fillText(shown, Math.min(Math.max(x, half), width - half), y);
  }

  function drawAxis(pen, axis, x, step, height) {
    const bottom = height - BOTTOM, room = bottom - TOP, isFiltered = isFilter(axis);
    pen.lineWidth = isFiltered ? 2 : 1;
    pen.strokeStyle = isFiltered ? ink.accent : ink.edge;
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, bottom);
    pen.stroke();
    const label = (text, y, isChosen) => {
      const shown = cutTo(pen, text, step - 6);
      pen.textAlign = "left";
      pen.lineWidth = 3.5;
      pen.strokeStyle = ink.paper;
      pen.strokeText(shown, x + 6, y + 4);
      pen.fillStyle = isChosen ? ink.accent : ink.ink;
      pen.fillText(shown, x + 6, y + 4);
    };
    if (axis.values) {
      const band = room / axis.values.length, every = Math.max(1, Math.ceil(13 / band));
      axis.values.forEach((value, at) => {
        if (at % every === 0) label(value, bottom - (at + 0.5) * band, axis.chosen?.includes(value));
      });
    } else {
      const [low, high] = axis.ends;
      for (const share of low < high ? [0, 0.25, 0.5, 0.75, 1] : [0.5]) label(rounded(low + (high - low) * share), bottom - room * share, false);
      if (isFiltered) {
        const at = (value) => bottom - room * Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
        const [from, to] = [at(axis.chosen[0] ?? low), at(axis.chosen[1] ?? high)];
        pen.fillStyle = `rgba(${rgb(ink.accent)},.22)`;
        pen.fillRect(x - 6, to, 12, Math.max(2, from - to));
      }
    }
  }

  const LEFT = 62, RIGHT = 14, FOOT = 36, HEAD = 16;
  function drawScatter() {
    const [pen, width, height] = canvas(scatter, 350);
    pen.fillStyle = ink.quiet;
    if (!data.peak || !data.speed) {
      pen.fillText(data.speed ? "The peak memory of no recipe is known." : "Nothing has been measured yet.", 12, 40);
      data.spots = [];
      return;
    }
    const wide = ([low, high]) => [low - (high - low) * 0.04 || low * 0.9, high + (high - low) * 0.06 || high * 1.1];
    const [x0, x1] = wide(data.peak.ends), [, y1] = wide(data.speed.ends);
    const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const y = (value) => height - FOOT - (value / y1) * (height - FOOT - HEAD);
    data.back = { x: (at) => x0 + ((at - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0), y: (at) => ((height - FOOT - at) / (height - FOOT - HEAD)) * y1 };
    pen.strokeStyle = ink.edge;
    pen.lineWidth = 1;
    for (let tick = 0; tick <= 4; tick++) {
      const value = (y1 / 1.06) * (tick / 4), across = x0 + (x1 - x0) * (tick / 4);
      pen.beginPath();
      pen.moveTo(LEFT, y(value));
      pen.lineTo(width - RIGHT, y(value));
      pen.stroke();
      pen.textAlign = "right";
      pen.fillText(rounded(value), LEFT - 6, y(value) + 4);
      pen.textAlign = tick === 4 ? "right" : "center";
      pen.fillText(rounded(across), x(across), height - FOOT + 16);
    }
    pen.textAlign = "left";
    pen.fillText("tokens/s", 4, 12);
    pen.textAlign = "right";
    pen.fillText("peak memory of the fullest rank, GiB", width - RIGHT, height - 4);
    if (data.limit_gib <= x1) {
      pen.setLineDash([5, 4]);
      pen.strokeStyle = ink.quiet;
      pen.beginPath();
      pen.moveTo(x(data.limit_gib), HEAD);
      pen.lineTo(x(data.limit_gib), height - FOOT);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText("device", x(data.limit_gib) - 4, HEAD + 12);
    }
    data.spots = [];
    const spot = (row, radius, color, edge) => {
      const [peak, speed] = [data.peak.at[row], data.speed.at[row]];
      if (peak == null || speed == null) return;
      data.spots.push([row, x(peak), y(speed)]);
      pen.beginPath();
      pen.arc(x(peak), y(speed), radius, 0, 7);
      pen.fillStyle = color;
      pen.fill();
      if (edge) {
        pen.strokeStyle = edge;
        pen.lineWidth = 2;
        pen.stroke();
      }
    };
    for (const row of data.order) {
      const isPinned = data.pins.includes(data.ids[row]);
      spot(row, isPinned ? 6.5 : data.met[row] ? 4.2 : 3, colorOf(row, 0.85), isPinned ? ink.pin : null);
    }
    if (hovered >= 0) spot(hovered, 6.5, colorOf(hovered), ink.ink);
    if (brush?.place === scatter) {
      pen.fillStyle = `rgba(${rgb(ink.accent)},.18)`;
      pen.fillRect(brush.from.x, brush.from.y, brush.to.x - brush.from.x, brush.to.y - brush.from.y);
    }
  }

  function draw() {
    if (!data) return;
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "quiet", "edge", "paper", "accent", "danger", "slow", "line", "fast", "pin"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
    drawParallel();
    drawScatter();
    const failed = data.ids.filter((_, row) => data.met[row] && data.shade[row] == null).length;
    const some = data.drawn < data.matching ? `${data.drawn.toLocaleString("en-US")} of ${data.matching.toLocaleString("en-US")} recipes are drawn: the fastest and an even selection. ` : "";
    reading.textContent = `${some}Lines run from slow (grey) over blue to the fastest (orange)${failed ? "; red ones have no measurement" : ""}. Click opens a recipe, Shift and click pins it.`;
    explorer.dataset.drawn = data.matching;
  }

  // -- pointers -----------------------------------------------------------------------------------------------------

  const NEAR = 14;
  const inside = (place, event) => {
    const box = place.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const axisAt = (x) => data.x.findIndex((at) => Math.abs(at - x) < NEAR);

  function nearest(place, { x, y }) {
    let [found, least] = [-1, 9];
    if (place === scatter) {
      for (const [row, left, top] of data.spots) {
        const away = Math.hypot(left - x, top - y);
        if (data.met[row] && away <= least) [found, least] = [row, away];
      }
      return found;
    }
    const after = data.x.findIndex((at) => at >= x);
    if (after < 1) return -1;
    const share = (x - data.x[after - 1]) / (data.x[after] - data.x[after - 1]);
    for (const row of data.order) {
      const [from, to] = [data.y[after - 1][row], data.y[after][row]];
      if (!data.met[row] || from == null || to == null) continue;
      const away = Math.abs(from + (to - from) * share - y);
      if (away <= least) [found, least] = [row, away];
    }
    return found;
  }

  function hover(row, event) {
    if (row !== hovered) {
      hovered = row;
      draw();
      for (const line of explorer.querySelectorAll("tr.linked")) line.classList.remove("linked");
      if (row >= 0) explorer.querySelector(`tr[data-recipe="${data.ids[row]}"]`)?.classList.add("linked");
    }
    hint.classList.toggle("visible", row >= 0 && Boolean(event));
    if (row < 0 || !event) return;
    const rank = data.ranks[row] ? `#${data.ranks[row]} ` : "";
    const lines = [`${rank}${data.ids[row]}${data.shade[row] == null ? `, ${data.outcomes[row]}` : ""}`];
    for (const axis of data.axes) {
      const at = axis.at[row];
      if (at != null) lines.push(`${axis.label}: ${axis.values ? axis.values[at] : rounded(at)}`);
    }
    hint.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    hint.style.left = `${Math.min(event.clientX + 16, innerWidth - hint.offsetWidth - 8)}px`;
    hint.style.top = `${Math.max(8, Math.min(event.clientY + 12, innerHeight - hint.offsetHeight - 8))}px`;
  }

  for (const place of [parallel, scatter]) {
    place.addEventListener("pointerdown", (event) => {
      if (!data || event.button) return;
      const from = inside(place, event), axis = place === parallel ? axisAt(from.x) : 0;
      brush = { place, axis, from, to: from };
      if (axis >= 0 && event.pointerType === "mouse") place.setPointerCapture(event.pointerId);
    });
    place.addEventListener("pointermove", (event) => {
      if (!data) return;
      const at = inside(place, event);
      if (brush?.place === place && brush.axis >= 0 && Math.hypot(at.x - brush.from.x, at.y - brush.from.y) > 4) {
        brush.to = at;
        hover(-1);
        draw();
        return;
      }
      const row = nearest(place, at);
      place.classList.toggle("on-recipe", row >= 0);
      place.classList.toggle("on-axis", place === parallel && axisAt(at.x) >= 0);
      hover(row, event);
    });
    place.addEventListener("pointerleave", () => { if (data && !brush) hover(-1); });
    place.addEventListener("pointercancel", () => { brush = null; });
    place.addEventListener("pointerup", (event) => {
      if (!data || brush?.place !== place) return;
      const { axis, from, to } = brush;
      brush = null;
      if (to !== from && axis >= 0) brushed(place, axis, from, to);
      else {
        const row = place === parallel && axis >= 0 ? -1 : nearest(place, from);
        if (row >= 0 && event.shiftKey) pin(data.ids[row]);
        else if (row >= 0) open(data.ids[row]);
        else if (place === parallel && axis >= 0) tapped(data.axes[axis], from.y);
      }
      draw();
    });
  }

  function brushed(place, axis, from, to) {
    const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
    if (place === scatter) {
      const [x0, x1] = sorted(data.back.x(from.x), data.back.x(to.x)), [y0, y1] = sorted(data.back.y(from.y), data.back.y(to.y));
      filtered({ ...range(PEAK, x0, x1), ...range(SPEED, y0, y1) });
      return;
    }
    const chosen = data.axes[axis], room = parallel.clientHeight - TOP - BOTTOM;
    const [low, high] = sorted(1 - (to.y - TOP) / room, 1 - (from.y - TOP) / room);
    if (chosen.values) {
      const count = chosen.values.length;
      const within = chosen.values.filter((_, at) => (at + 0.5) / count >= low && (at + 0.5) / count <= high);
      filtered({ [chosen.name]: within.length === count ? [] : within });
    } else {
      const [least, most] = chosen.ends;
      filtered(range(chosen.name, least + low * (most - least), least + high * (most - least)));
    }
  }

  function tapped(axis, y) {
    if (!axis.values) {
      filtered({ [`${axis.name}_from`]: [], [`${axis.name}_to`]: [] });
      return;
    }
    const room = parallel.clientHeight - TOP - BOTTOM, count = axis.values.length;
    const value = axis.values[Math.min(count - 1, Math.max(0, Math.floor((1 - (y - TOP) / room) * count)))];
    const chosen = axis.chosen ?? [];
    filtered({ [axis.name]: chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value] });
  }

  const digits = (number) => Number(Math.max(0, number).toPrecision(4));
  const range = (name, low, high) => ({ [`${name}_from`]: [digits(low)], [`${name}_to`]: [digits(high)] });

  explorer.addEventListener("pointerover", (event) => {
    const line = event.target.closest?.("tr[data-recipe]");
    if (data && line && !brush) hover(data.ids.indexOf(line.dataset.recipe));
  });

  if (window.matchMedia("(max-width: 900px)").matches) byId("filters-box").open = false;
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => draw()).observe(byId("linked"));
  go(location.search.slice(1), false);
  if ("live" in explorer.dataset) {
    setInterval(() => { if (!document.hidden && !brush) go(location.search.slice(1), false); }, LIVE_MS);
  }
})();
