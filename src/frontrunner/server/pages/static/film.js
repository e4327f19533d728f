"use strict";
// The film of a search: how its probes filled a map of two dimensions, and what was expected of each.
(() => {
  const root = document.getElementById("film");
  if (!root) return;
  const find = (name) => root.querySelector(name);
  const map = find(".film-map"), course = find(".film-course"), scrub = find(".film-scrub input"), play = find("button");
  const words = find(".film-words"), HEIGHT = 320, FONT = "11.5px system-ui, sans-serif", PLAYED_S = 15, LONGEST_S = 0.5;
  let film, colors, timer = 0, asked = 0;

  const thousands = (value) => Math.round(value).toLocaleString("en");
  const shown = (value) => (value === true ? "yes" : value === false ? "no" : String(value));
  const until = () => Number(scrub.value);

  function readColors() {
    const style = getComputedStyle(root);
    colors = Object.fromEntries(["low", "high", "measured", "failed", "best"].map((name) => [name, style.getPropertyValue(`--film-${name}`).trim()]));
    for (const name of ["ink", "quiet", "edge", "paper", "danger"]) colors[name] = style.getPropertyValue(`--${name}`).trim();
  }

  function pen(canvas) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    canvas.style.height = `${HEIGHT}px`;
    const found = canvas.getContext("2d");
    found.scale(ratio, ratio);
    found.font = FONT;
    found.textBaseline = "middle";
    return found;
  }

  const fastest = () => Math.max(1e-9, ...film.shots.map((shot) => shot.tokens_per_s ?? 0));

  function cells() {
    const found = new Map();
    for (const shot of film.shots.slice(0, until())) {
      const key = `${film.x_values.indexOf(shot.x)} ${film.y_values.indexOf(shot.y)}`;
      const cell = found.get(key) ?? { rates: new Map(), tried: 0, failed: 0 };
      cell.rates.set(shot.recipe_id, shot.pooled_tokens_per_s ?? 0);
      found.set(key, { ...cell, tried: cell.tried + 1, failed: cell.failed + (shot.outcome !== "measured") });
    }
    for (const cell of found.values()) cell.best = Math.max(...cell.rates.values());
    return found;
  }

  // What was expected at the places of the map when the last recipe was chosen, by row and column.
  const belief = () => film.shots.slice(0, until()).findLast((shot) => shot.belief)?.belief;

  function drawMap() {
    const paint = pen(map), left = 88, bottom = HEIGHT - 40;
    const wide = (map.clientWidth - left) / film.x_values.length, high = bottom / film.y_values.length;
    const found = cells(), believed = belief(), last = film.shots[until() - 1];
    const short = (value) => (wide < 60 ? `${thousands(value / 1000)}k` : thousands(value));
    const slowest = Math.min(fastest(), ...film.shots.filter((shot) => shot.tokens_per_s).map((shot) => shot.tokens_per_s));
    film.x_values.forEach((x, column) => film.y_values.forEach((y, row) => {
      const cell = found.get(`${column} ${row}`), x0 = left + column * wide, y0 = bottom - (row + 1) * high;
      paint.strokeStyle = colors.edge;
      paint.strokeRect(x0 + 0.5, y0 + 0.5, wide - 1, high - 1);
      const expected = believed?.[row][column] ?? null;
      if (!cell) {
        if (expected === null || wide < 34 || high < 15) return;
        paint.fillStyle = colors.quiet;
        paint.textAlign = "center";
        paint.font = `italic ${FONT}`;
        const lines = high > 32 && wide > 70 ? ["expected", short(expected)] : [short(expected)];
        lines.forEach((line, index) => paint.fillText(line, x0 + wide / 2, y0 + high / 2 + (index - (lines.length - 1) / 2) * 14, wide - 4));
        paint.font = FONT;
        return;
      }
      const share = fastest() > slowest ? (cell.best - slowest) / (fastest() - slowest) : 1;
      paint.fillStyle = cell.best ? colors.low : colors.edge;
      paint.fillRect(x0 + 1, y0 + 1, wide - 2, high - 2);
      if (cell.best) {
        paint.globalAlpha = Math.max(share, 0);
        paint.fillStyle = colors.high;
        paint.fillRect(x0 + 1, y0 + 1, wide - 2, high - 2);
        paint.globalAlpha = 1;
      }
      if (wide < 34 || high < 15) return;
      paint.fillStyle = cell.best && share > 0.55 ? colors.paper : colors.ink;
      paint.textAlign = "center";
      const lines = [cell.best ? short(cell.best) : "failed"];
      if (high > 32) lines.push(wide > 96 ? `${cell.tried} tried${cell.failed ? `, ${cell.failed} failed` : ""}` : `${cell.tried}`);
      if (expected !== null && high > 46 && wide > 96) lines.push(`expected ${short(expected)}`);
      lines.forEach((line, index) => paint.fillText(line, x0 + wide / 2, y0 + high / 2 + (index - (lines.length - 1) / 2) * 14, wide - 4));
    }));
    paint.strokeStyle = colors.danger;
    paint.lineWidth = 2.5;
    paint.strokeRect(left + film.x_values.indexOf(last.x) * wide + 1.5, bottom - (film.y_values.indexOf(last.y) + 1) * high + 1.5, wide - 3, high - 3);
    paint.fillStyle = colors.quiet;
    paint.textAlign = "center";
    film.x_values.forEach((x, column) => paint.fillText(shown(x), left + (column + 0.5) * wide, bottom + 12, wide));
    paint.fillText(film.x, left + (map.clientWidth - left) / 2, bottom + 30);
    paint.textAlign = "right";
    film.y_values.forEach((y, row) => paint.fillText(shown(y), left - 8, bottom - (row + 0.5) * high, left - 24));
    paint.save();
    paint.translate(8, bottom / 2);
    paint.rotate(-Math.PI / 2);
    paint.textAlign = "center";
    paint.fillText(film.y, 0, 0, bottom);
    paint.restore();
  }

  function drawCourse() {
    const paint = pen(course), left = 60, bottom = HEIGHT - 40, shots = film.shots;
    const most = 1.08 * Math.max(fastest(), ...shots.map((shot) => shot.expected?.tokens_per_s ?? 0));
    const x = (place) => left + ((place + 0.5) / shots.length) * (course.clientWidth - left);
    const y = (value) => bottom - 6 - (value / most) * (bottom - 12);
    paint.strokeStyle = colors.edge;
    paint.strokeRect(left, 0.5, course.clientWidth - left - 1, bottom);
    paint.fillStyle = colors.quiet;
    paint.textAlign = "right";
    for (const share of [0, 0.5, 1]) paint.fillText(thousands(share * fastest()), left - 6, y(share * fastest()));
    const size = Math.max(1.5, Math.min(4.5, (course.clientWidth - left) / shots.length / 2.5));
    const dot = (place, value, fill, stroke) => {
      paint.beginPath();
      paint.arc(x(place), y(value), size, 0, 2 * Math.PI);
      if (fill) {
        paint.fillStyle = fill;
        paint.fill();
      } else {
        paint.strokeStyle = stroke;
        paint.lineWidth = 1.2;
        paint.stroke();
      }
    };
    shots.slice(0, until()).forEach((shot, place) => {
      if (shot.expected) {
        paint.strokeStyle = colors.edge;
        paint.beginPath();
        paint.moveTo(x(place), y(shot.expected.tokens_per_s));
        paint.lineTo(x(place), y(shot.tokens_per_s ?? 0));
        paint.stroke();
        dot(place, shot.expected.tokens_per_s, null, colors.quiet);
      }
      if (shot.tokens_per_s !== null) dot(place, shot.tokens_per_s, colors.measured);
      else {
        paint.strokeStyle = colors.failed;
        paint.lineWidth = 1.8;
        paint.beginPath();
        for (const side of [-1, 1]) {
          paint.moveTo(x(place) - size, y(0) - side * size);
          paint.lineTo(x(place) + size, y(0) + side * size);
        }
        paint.stroke();
      }
    });
    paint.strokeStyle = colors.best;
    paint.lineWidth = 1.6;
    paint.beginPath();
    shots.slice(0, until()).forEach((shot, place) => {
      if (shot.best_tokens_per_s === null) return;
      paint.lineTo(x(place - 0.5), y(shot.best_tokens_per_s));
      paint.lineTo(x(place + 0.5), y(shot.best_tokens_per_s));
    });
    paint.stroke();
    paint.textAlign = "left";
    let at = left;
    const used = [["measured", colors.measured], ["failed", colors.failed], ["best so far", colors.best]];
    if (shots.some((shot) => shot.expected)) used.push(["expected (ring)", colors.quiet]);
    for (const [name, color] of used) {
      paint.fillStyle = color;
      paint.fillText(name, at, bottom + 20);
      at += paint.measureText(name).width + 18;
    }
  }

  function write() {
    const shot = film.shots[until() - 1], link = document.createElement("a");
    link.href = root.dataset.recipe.replace("RECIPE", shot.recipe_id);
    link.textContent = shot.describe;
    const ended = shot.tokens_per_s === null ? shot.outcome : `${thousands(shot.tokens_per_s)} tokens/s`;
    const belief = shot.expected ? `; expected ${thousands(shot.expected.tokens_per_s)} tokens/s, chance to run ${Math.round(100 * shot.expected.chance)} %` : "";
    const gain = shot.expected?.expected_improvement ? `, expected gain ${(100 * shot.expected.expected_improvement).toPrecision(2)} %` : "";
    const best = shot.best_tokens_per_s === null ? "nothing measured yet" : `best so far ${thousands(shot.best_tokens_per_s)}`;
    words.replaceChildren(`${until()} of ${film.shots.length}: `, link, `: ${ended}${belief}${gain}; ${best}.`);
    scrub.setAttribute("aria-valuetext", `outcome ${until()} of ${film.shots.length}`);
  }

  function draw() {
    if (!film?.shots.length || !map.clientWidth) return;
    drawMap();
    drawCourse();
    write();
  }

  function fill() {
    for (const name of ["x", "y"]) {
      find(`select[name=${name}]`).replaceChildren(...film.dimensions.map((one) => new Option(one, one, false, one === film[name])));
    }
    const atEnd = scrub.dataset.seen === undefined || until() === Number(scrub.max);
    scrub.max = Math.max(film.shots.length, 1);
    if (atEnd) scrub.value = scrub.max;
    scrub.dataset.seen = "";
    const notes = [film.has_beliefs ? "What was expected is what the strategy stored when it chose a recipe." : "The strategy stored no expectation."];
    if (film.map_has_beliefs) notes.push("On the map it is that of the fastest recipe at each place which it expected to run, tried or not.");
    else if (film.believed) notes.push(`It stored what it expected of recipes that it did not choose over ${film.believed.join(" and ")} alone.`);
    find(".film-map-title").textContent = film.map_has_beliefs ? "Best tokens/s so far, and what the strategy expected" : "Best tokens/s so far";
    if (film.outcomes > film.shots.length) notes.push(`Of ${thousands(film.outcomes)} outcomes the first ${thousands(film.shots.length)} are shown.`);
    find(".film-notes").textContent = notes.join(" ");
    map.setAttribute("aria-label", `best tokens/s by ${film.x} and ${film.y}, after each outcome${film.map_has_beliefs ? ", with what was expected" : ""}`);
    course.setAttribute("aria-label", `${film.shots.length} outcomes in their order${film.has_beliefs ? ", each beside what was expected" : ""}`);
  }

  async function ask() {
    const mine = ++asked, address = new URL(root.dataset.source, window.location.href);
    for (const name of ["x", "y"]) {
      const value = find(`select[name=${name}]`).value;
      if (value) address.searchParams.set(name, value);
    }
    const answer = await fetch(address), found = await answer.json();
    if (mine !== asked) return;
    if (!answer.ok || !found.shots.length) {
      words.textContent = answer.ok ? "Nothing has ended yet." : found.detail;
      for (const part of root.querySelectorAll(".film-panels, .film-controls")) part.hidden = !film;
      return;
    }
    for (const part of root.querySelectorAll(".film-panels, .film-controls")) part.hidden = false;
    film = found;
    readColors();
    fill();
    draw();
    root.dataset.drawn = `${film.x} ${film.y}`;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (until() === Number(scrub.max)) scrub.value = 1;
    draw();
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    const each = Math.min(LONGEST_S, PLAYED_S / film.shots.length), step = Math.max(1, Math.round(0.05 / each));
    timer = setInterval(() => {
      scrub.value = until() + step;
      draw();
      if (until() === Number(scrub.max)) stop();
    }, 1000 * Math.max(each, 0.05));
  });
  scrub.addEventListener("input", draw);
  for (const box of root.querySelectorAll("select")) box.addEventListener("change", ask);
  root.addEventListener("toggle", () => root.open && ask());
  document.body.addEventListener("outcomes", () => root.open && ask()); // of a live page
  new ResizeObserver(draw).observe(root);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!film) return;
    readColors();
    draw();
  });
})();
