"use strict";
// The step simulator: what each pipeline rank does when, what it holds meanwhile, and on which devices.
(() => {
  const root = document.getElementById("step");
  if (!root) return;
  const find = (name) => root.querySelector(name);
  const lanes = find(".step-lanes"), memory = find(".step-memory"), map = find(".step-devices");
  const form = find(".step-choices"), scrub = find(".step-scrub input"), play = find(".step-play");
  const zoom = find(".step-zoom"), rankBox = find(".step-rank"), deviceBox = find(".step-pick input");
  const PARTS = 1e6; // of a step: the unit of all moments
  const PLAYED_S = 12; // seconds in which a step is played
  // Colors by kind of action, in the order of the server's list, and by part of a pass.
  const KINDS = ["forward", "backward", "backward", "weights", "PP", "send", "replicas", "reduce", "host", "optimizer", "gather", "bubble"];
  // Collectives within a pass have the color of their group of devices.
  const WITHIN = { tensor_parallel: "TP", context_parallel: "CP", expert_parallel: "EP", recompute: "recompute" };
  const PASSES = "FBIW", BUBBLE = 11;
  const GROUP_COLORS = { TP: "--step-tp", PP: "--step-pp", CP: "--step-cp", DP: "--step-dp", EP: "--step-ep", ETP: "--step-etp" };
  const split = new Map(); // what `segments` found, for a step and its colors
  let step, colors, moment = 0, chosenRank = 0, chosenDevice = 0, frame = 0, from = 0;

  const gib = (bytes) => (bytes === 0 ? "0" : bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  // As the server's `text.seconds`.
  function seconds(s) {
    if (s === 0) return "0 s";
    if (s < 0.9995) return `${Number((1000 * s).toPrecision(3))} ms`;
    if (s < 100) return `${Number(s.toPrecision(3))} s`;
    return s < 6000 ? `${Math.floor(s / 60)} min ${two(s % 60)} s` : `${Math.floor(s / 3600)} h ${two((s % 3600) / 60)} min`;
  }
  const at = (parts) => seconds((parts / PARTS) * step.step_s);

  function readColors() {
    split.clear();
    const style = getComputedStyle(root);
    const names = ["forward", "backward", "weights", "recompute", "send", "replicas", "reduce", "host", "optimizer", "gather", "bubble", "text"];
    colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--step-${name}`).trim()]));
    for (const name of ["ink", "quiet", "edge", "danger", "accent", "paper"]) colors[name] = style.getPropertyValue(`--${name}`).trim();
    for (const [label, name] of Object.entries(GROUP_COLORS)) colors[label] = style.getPropertyValue(name).trim();
  }

  // A canvas of this size in CSS pixels, sharp on every screen.
  function pen(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const found = canvas.getContext("2d");
    found.scale(ratio, ratio);
    found.font = "11.5px system-ui, sans-serif";
    found.textBaseline = "middle";
    return found;
  }

  // Where the axis ends: with the step, or with the profiled one if that took longer.
  const axisEnd = () => PARTS * Math.max(1, (step.measured?.step_time_s ?? 0) / step.step_s);

  // The part of the axis that is seen: around the moment where it is zoomed.
  function seen() {
    const span = axisEnd() / Number(zoom.value);
    const begin = Math.min(Math.max(moment - span / 2, 0), axisEnd() - span);
    return [begin, begin + span];
  }

  function across(left, width) {
    const [begin, end] = seen();
    return (parts) => left + ((parts - begin) / (end - begin)) * (width - left);
  }

  const gutter = () => (lanes.clientWidth < 500 ? 30 : 62);
  const rowHeight = () => Math.max(8, Math.min(26, 480 / step.ranks.length));

  const inGap = () => step.gap && moment > step.gap[0] && moment < step.gap[1];

  // What a rank does at the moment; of a time whose actions are not sent, what it mostly does.
  function doing(rank) {
    const { actions: held, shares } = step.ranks[rank];
    if (moment > PARTS) return [BUBBLE, null, null, PARTS, moment];
    if (inGap()) {
      const [kind, stage] = shares.reduce((most, one) => (one[2] > most[2] ? one : most));
      return [kind, stage, null, ...step.gap];
    }
    let low = 0, high = held.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (held[middle][3] <= moment) low = middle;
      else high = middle - 1;
    }
    return held[low];
  }

  // An action's parts as (color, share): of a pass what it is spent on, else the whole.
  function segments([kind, stage]) {
    const name = `${kind} ${stage}`;
    if (!split.has(name)) split.set(name, segmented(kind, stage));
    return split.get(name);
  }

  function segmented(kind, stage) {
    const own = KINDS[kind], letter = PASSES[kind];
    if (!letter) return [[colors[own], 1]];
    const sums = { recompute: 0, compute: 0 };
    for (const row of letter === "B" ? [step.parts.I?.[stage], step.parts.W?.[stage]] : [step.parts[letter]?.[stage]]) {
      for (const [name, value] of Object.entries(row ?? {})) sums[name] = (sums[name] ?? 0) + value;
    }
    const total = Object.values(sums).reduce((sum, value) => sum + value, 0) || 1;
    return Object.entries(sums).map(([name, value]) => [colors[WITHIN[name] ?? own], value / total]);
  }

  // A time of which no single action is sent: each rank's shares of it, one above the other.
  function drawShares(paint, rank, y, height, x) {
    const [left, right] = step.gap.map(x);
    let top = y;
    for (const one of rank.shares) {
      for (const [color, share] of segments(one)) {
        paint.fillStyle = color;
        paint.fillRect(left, top, right - left, height * one[2] * share);
        top += height * one[2] * share;
      }
    }
  }

  function drawLanes() {
    const height = rowHeight(), left = gutter(), width = lanes.clientWidth, [begin, end] = seen();
    const paint = pen(lanes, width, step.ranks.length * height + 20);
    const x = across(left, width);
    paint.save();
    paint.beginPath();
    paint.rect(left, 0, width - left, step.ranks.length * height + 2);
    paint.clip();
    step.ranks.forEach((rank, row) => {
      const y = row * height + 1;
      paint.fillStyle = colors.bubble;
      paint.fillRect(left, y, x(PARTS) - left, height - 2);
      for (const action of rank.actions) {
        const [kind, , number, starts, ends] = action;
        if (kind === BUBBLE || ends < begin || starts > end) continue;
        const x0 = x(starts), wide = Math.max(x(ends) - x0, 0.4);
        let place = x0;
        for (const [color, share] of segments(action)) {
          paint.fillStyle = color;
          paint.fillRect(place, y, wide * share, height - 2);
          place += wide * share;
        }
        if (kind > 3 || wide < 3) continue;
        paint.fillStyle = colors.paper;
        paint.fillRect(x0 + wide - 0.5, y, 0.5, height - 2);
        if (wide > 20 && height > 13) {
          paint.fillStyle = colors.text;
          paint.fillText(String(number), x0 + 4, y + height / 2 - 1);
        }
      }
      if (step.gap) {
        paint.fillStyle = colors.bubble;
        paint.fillRect(x(step.gap[0]), y, x(step.gap[1]) - x(step.gap[0]), height - 2);
        drawShares(paint, rank, y, height - 2, x);
      }
    });
    for (const one of step.gap ?? []) line(paint, x(one), step.ranks.length * height, colors.ink, [4, 3]);
    paint.restore();
    step.ranks.forEach((rank, row) => {
      paint.fillStyle = row === chosenRank ? colors.ink : colors.quiet;
      paint.font = `${row === chosenRank ? "650 " : ""}11.5px system-ui, sans-serif`;
      const words = left > 40 ? `rank ${rank.rank}` : String(rank.rank);
      if (row % Math.ceil(13 / height) === 0) paint.fillText(words, 0, Math.max(row * height + height / 2, 6));
    });
    paint.strokeStyle = colors.ink;
    paint.lineWidth = 1;
    paint.strokeRect(left + 0.5, chosenRank * height + 0.5, width - left - 1, height - 1);
    line(paint, x(moment), step.ranks.length * height);
    drawEnds(paint, left, width, step.ranks.length * height + 12);
    if (!step.gap) return;
    const [from, to] = step.gap.map((one) => Math.min(Math.max(x(one), left + 70), width - 90)), words = "each rank's shares of this time";
    paint.textAlign = "center";
    if (to - from > paint.measureText(words).width) paint.fillText(words, (from + to) / 2, step.ranks.length * height + 12);
  }

  // The moments at both ends of what is seen, below a picture.
  function drawEnds(paint, left, width, bottom) {
    const [begin, end] = seen();
    paint.fillStyle = colors.quiet;
    paint.textAlign = "left";
    paint.fillText(at(begin), left, bottom);
    paint.textAlign = "right";
    paint.fillText(at(end), width, bottom);
  }

  const PROFILED = {
    compute: "forward", optimizer: "optimizer", data: "weights", "reduce-scatter": "replicas", "all-reduce": "reduce", "all-gather": "gather",
    "all-to-all": "EP", broadcast: "CP", "other collective": "TP", "send/recv": "PP", "host-device copy": "host", idle: "bubble",
  };
  const profiled = (part) => colors[PROFILED[part]];

  // What a profile measured, on the axis of the timeline above.
  function drawMeasured() {
    find(".step-profile").hidden = !step.measured;
    if (!step.measured) return;
    const { ranks, step_time_s: whole } = step.measured, canvas = find(".step-measured");
    const height = Math.max(8, Math.min(26, 480 / ranks.length)), left = gutter(), width = canvas.clientWidth;
    const paint = pen(canvas, width, ranks.length * height + 20), x = across(left, width);
    const placed = (time) => Math.min(Math.max(x((PARTS * time) / step.step_s), left), width);
    ranks.forEach((rank, row) => {
      paint.fillStyle = colors.bubble;
      paint.fillRect(placed(0), row * height + 1, placed(whole) - placed(0), height - 2);
      for (const [part, begin, end] of rank) {
        const from = placed(begin), to = placed(end);
        if (from === width || to === left) continue;
        paint.fillStyle = profiled(part);
        paint.fillRect(from, row * height + 1, Math.max(to - from, 0.4), height - 2);
      }
      paint.fillStyle = row === chosenRank ? colors.ink : colors.quiet;
      if (row % Math.ceil(13 / height) === 0) paint.fillText(left > 40 ? `rank ${row}` : row, 0, row * height + height / 2);
    });
    drawEnds(paint, left, width, ranks.length * height + 12);
    canvas.setAttribute("aria-label", `the profiled step of ${ranks.length} pipeline ranks, ${seconds(whole)}`);
    listed(find(".step-profile .step-legend"), [...new Set(ranks.flat().map(([part]) => part))].map((part) => [profiled(part), part]));
  }

  function line(paint, x, height, color = colors.danger, dashes = []) {
    paint.strokeStyle = color;
    paint.lineWidth = 1.5;
    paint.setLineDash(dashes);
    paint.beginPath();
    paint.moveTo(x, 0);
    paint.lineTo(x, height);
    paint.stroke();
    paint.setLineDash([]);
  }

  function drawMemory() {
    const width = memory.clientWidth, height = 240, left = 56;
    const paint = pen(memory, width, height + 18);
    const most = 1.06 * Math.max(step.limit_bytes, ...step.ranks.map((rank) => rank.peak));
    const x = across(left, width);
    const y = (bytes) => height - (bytes / most) * height;
    const draw = (rank, color, thick) => {
      paint.strokeStyle = color;
      paint.lineWidth = thick;
      paint.beginPath();
      let last = null;
      for (const [starts, bytes] of rank.memory) {
        if (last === null) paint.moveTo(x(starts), y(bytes));
        else {
          paint.lineTo(x(starts), y(last));
          paint.lineTo(x(starts), y(bytes));
        }
        last = bytes;
      }
      paint.lineTo(x(PARTS), y(last));
      paint.stroke();
    };
    paint.save();
    paint.beginPath();
    paint.rect(left, 0, width - left, height);
    paint.clip();
    for (const rank of step.ranks) draw(rank, colors.edge, 1);
    draw(step.ranks[chosenRank], colors.accent, 1.8);
    line(paint, x(moment), height);
    paint.restore();
    paint.strokeStyle = colors.danger;
    paint.setLineDash([5, 4]);
    paint.beginPath();
    paint.moveTo(left, y(step.limit_bytes));
    paint.lineTo(width, y(step.limit_bytes));
    paint.stroke();
    paint.setLineDash([]);
    paint.strokeStyle = colors.edge;
    paint.strokeRect(left, 0.5, width - left - 1, height - 1);
    paint.fillStyle = colors.danger;
    paint.textAlign = "right";
    paint.fillText(`a device has ${gib(step.limit_bytes)}`, width - 6, y(step.limit_bytes) + 10);
    paint.fillStyle = colors.quiet;
    for (const share of [0, 0.5]) paint.fillText(gib(share * step.limit_bytes).replace(/\.\d+/, ""), left - 6, Math.min(y(share * step.limit_bytes), height - 6));
    drawEnds(paint, left, width, height + 10);
  }

  // Nodes as boxes of devices, in the order of their ranks.
  function layout() {
    const across = Math.max(1, Math.min(4, step.per_node)), down = Math.ceil(Math.min(step.per_node, step.devices) / across);
    const nodes = Math.ceil(step.devices / step.per_node);
    const size = step.devices <= 8 ? 56 : step.devices <= 32 ? 40 : step.devices <= 64 ? 26 : step.devices <= 512 ? 16 : 9;
    const node = { width: across * size + 8, height: down * size + 8 };
    const columns = Math.max(1, Math.min(nodes, Math.floor(map.parentElement.clientWidth / node.width)));
    const place = (device) => {
      const of = Math.floor(device / step.per_node), inside = device % step.per_node;
      return [
        (of % columns) * node.width + 4 + (inside % across) * size,
        Math.floor(of / columns) * node.height + 4 + Math.floor(inside / across) * size,
      ];
    };
    return { size, node, nodes, columns, place };
  }

  const pipelineRank = (device) => Math.floor(device / step.stride) % step.ranks.length;

  // The devices of one's group of a kind, itself included.
  function members(group, device) {
    if (group.distance) {
      const own = Math.floor(device / group.distance) % group.ranks;
      return Array.from({ length: group.ranks }, (_, other) => device + (other - own) * group.distance);
    }
    const ranks = step.ranks.length, [parts, ways] = step.experts, block = step.stride * ranks;
    const within = (one) => Math.floor(one / block) * step.stride + (one % step.stride);
    const whole = (one) => Math.floor(one / step.stride) * block + pipelineRank(device) * step.stride + (one % step.stride);
    const first = Math.floor(within(device) / (parts * ways)) * parts * ways, place = within(device) - first;
    const others = group.label === "EP"
      ? Array.from({ length: parts }, (_, part) => part * ways + (place % ways))
      : Array.from({ length: ways }, (_, way) => Math.floor(place / ways) * ways + way);
    return others.map((other) => whole(first + other));
  }

  function drawDevices() {
    const { size, node, nodes, columns, place } = layout();
    map.style.width = `${columns * node.width}px`;
    const paint = pen(map, columns * node.width, Math.ceil(nodes / columns) * node.height + 2);
    const kinds = step.ranks.map((_, rank) => doing(rank)[0]), now = kinds.map((kind) => colors[KINDS[kind]]);
    paint.strokeStyle = colors.edge;
    for (let one = 0; one < nodes; one++) {
      paint.strokeRect((one % columns) * node.width + 1.5, Math.floor(one / columns) * node.height + 1.5, node.width - 4, node.height - 4);
    }
    const groups = step.groups.map((group) => ({ ...group, members: members(group, chosenDevice) }));
    const lit = new Set([chosenDevice, ...groups.flatMap((group) => group.members)]);
    for (let device = 0; device < step.devices; device++) {
      const [x, y] = place(device);
      paint.globalAlpha = lit.has(device) || !groups.length ? 1 : 0.38;
      paint.fillStyle = now[pipelineRank(device)];
      paint.fillRect(x + 1, y + 1, size - 2, size - 2);
      if (size < 40) continue;
      paint.fillStyle = kinds[pipelineRank(device)] === BUBBLE ? colors.quiet : colors.text;
      paint.fillText(String(device), x + 5, y + 10);
    }
    paint.globalAlpha = 1;
    // Links as wide as they are fast, those of a group above those of the next.
    const fastest = Math.max(...groups.map((group) => group.gb_per_s ?? 0), 1);
    groups.forEach((group, index) => {
      const height = size * (0.3 + (0.4 * (index + 0.5)) / groups.length);
      paint.strokeStyle = colors[group.label];
      paint.lineWidth = Math.max(1, (size / 5) * Math.sqrt((group.gb_per_s ?? fastest / 4) / fastest));
      paint.beginPath();
      for (const other of group.members) {
        const [x, y] = place(other);
        paint.lineTo(x + size / 2, y + height);
      }
      paint.stroke();
    });
    groups.forEach((group, index) => {
      paint.fillStyle = colors[group.label];
      for (const other of group.members) {
        const [x, y] = place(other), part = (size - 2) / groups.length;
        paint.fillRect(x + 1 + index * part, y + size - 1 - size / 4, part, size / 4);
      }
    });
    const [x, y] = place(chosenDevice);
    paint.strokeStyle = colors.ink;
    paint.lineWidth = 2.5;
    paint.strokeRect(x, y, size, size);
  }

  function swatch(color) {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    shape.setAttribute("aria-hidden", "true");
    for (const [name, value] of Object.entries({ width: 12, height: 12, rx: 2, fill: color })) box.setAttribute(name, value);
    shape.append(box);
    return shape;
  }

  function listed(place, rows) {
    place.replaceChildren(...rows.map(([color, words]) => {
      const item = document.createElement("li");
      item.append(swatch(color), words);
      return item;
    }));
  }

  function write() {
    const rank = step.ranks[chosenRank], [kind, stage, number, begin, end] = doing(chosenRank);
    const now = rank.memory.findLast(([starts]) => starts <= moment)?.[1] ?? rank.memory[0][1];
    const which = inGap() ? `mostly ${step.kinds[kind]}, from ${at(begin)} to ${at(end)}` : `${step.kinds[kind]}${number === null ? "" : `, micro-batch ${number}, stage ${stage}`} (${at(end - begin)})`;
    const what = moment > PARTS ? "its step is over" : which;
    find(".step-readout").textContent =
      `At ${at(moment)} rank ${rank.rank} (stage${rank.stages.length > 1 ? "s" : ""} ${rank.stages.join(", ")}; ${rank.layers} layers): ${what}. It holds ${gib(now)}, at most ${gib(rank.peak)}; it waits ${percent(rank.bubble)} of the step.`;
    scrub.setAttribute("aria-valuetext", at(moment));
  }

  function draw() {
    if (!step || !lanes.clientWidth) return;
    drawLanes();
    drawMeasured();
    drawMemory();
    drawDevices();
    write();
  }

  function show(parts) {
    moment = Math.min(Math.max(parts, 0), axisEnd());
    scrub.value = Math.round((1000 * moment) / axisEnd());
    draw();
  }

  function chooseRank(rank) {
    if (rank < 0 || rank >= step.ranks.length || rank === chosenRank) return;
    chosenRank = rank;
    rankBox.value = rank;
    chooseDevice(Math.floor(chosenDevice / (step.stride * step.ranks.length)) * step.stride * step.ranks.length + rank * step.stride + (chosenDevice % step.stride));
  }

  function chooseDevice(device) {
    if (!(device >= 0 && device < step.devices)) return;
    chosenDevice = device;
    chosenRank = pipelineRank(device);
    rankBox.value = chosenRank;
    deviceBox.value = device;
    listed(find(".step-groups"), step.groups.map((group) => [colors[group.label], `${group.kind} of ${group.ranks}: ${group.words}; ${group.exchange}`]));
    draw();
  }

  function fill() {
    const { chosen, choices } = step;
    form.elements.schedule.replaceChildren(...choices.schedule.map((name) => new Option(name, name, false, name === chosen.schedule)));
    for (const name of ["pipeline_parallel", "virtual_stages", "micro_batch_seqs"]) {
      const box = form.elements[name], values = choices[name];
      box.max = Math.max(values.length - 1, 0);
      box.value = values.indexOf(chosen[name]);
      box.disabled = values.length < 2;
      tell(box);
    }
    rankBox.replaceChildren(...step.ranks.map((rank) => new Option(`${rank.rank}`, rank.rank)));
    deviceBox.max = step.devices - 1;
    const stands = `${step.ranks[0].devices.toLocaleString("en")} device${step.ranks[0].devices > 1 ? "s" : ""}`;
    const numbers = [[percent(step.bubble), "bubble, mean of the ranks"], [seconds(step.step_s), "per step"], [gib(Math.max(...step.ranks.map((rank) => rank.peak))), "fullest rank"], [stands, "that do the same, per row"]];
    find(".step-numbers").replaceChildren(...numbers.map(([value, words]) => {
      const item = document.createElement("div"), bold = document.createElement("b"), rest = document.createElement("span");
      bold.textContent = value;
      rest.textContent = words;
      item.append(bold, rest);
      return item;
    }));
    const waits = step.ranks.map(({ shares }) => shares.reduce((sum, [kind, , share]) => sum + (kind === BUBBLE ? share : 0), 0));
    const mean = waits.reduce((sum, share) => sum + share, 0) / waits.length;
    const gap = step.gap ? [`From ${at(step.gap[0])} to ${at(step.gap[1])} there are ${step.gap_actions.toLocaleString("en")} actions: of this time each rank's shares are drawn, one above the other; ${percent(mean)} of it are bubble.`] : [];
    const own = step.is_own ? [] : [`Not the recipe itself but ${step.describe}.`];
    find(".step-notes").textContent = [...own, ...step.differences, ...gap].join(" ");
    const used = new Set(step.ranks.flatMap((rank) => [...rank.actions, ...rank.shares].map(([kind]) => kind)));
    const rows = [...used].sort((a, b) => a - b).map((kind) => [colors[KINDS[kind]], step.kinds[kind]]);
    const inside = new Set(Object.values(step.parts).flat().flatMap(Object.keys));
    for (const name of Object.keys(WITHIN)) {
      if (inside.has(name)) rows.push([colors[WITHIN[name]], name === "recompute" ? name : `${name.replace("_", "-")} collectives`]);
    }
    listed(find(".step-legend"), rows);
    lanes.setAttribute("aria-label", `timeline of one step of ${step.describe}: ${step.ranks.length} pipeline ranks, ${seconds(step.step_s)}, bubble ${percent(step.bubble)}`);
    memory.setAttribute("aria-label", `memory over one step: at most ${gib(Math.max(...step.ranks.map((rank) => rank.peak)))} of ${gib(step.limit_bytes)}`);
    map.setAttribute("aria-label", `${step.devices} devices, in nodes of ${step.per_node}`);
  }

  function tell(box) {
    const value = step.choices[box.name][box.value] ?? step.chosen[box.name];
    box.parentElement.querySelector("output").textContent = value;
    box.setAttribute("aria-valuetext", String(value));
  }

  async function ask(changes) {
    const mine = ++from, address = new URL(root.dataset.source, window.location.href);
    for (const [name, value] of Object.entries(changes)) address.searchParams.set(name, value);
    root.classList.add("waiting");
    const answer = await fetch(address, { headers: { Accept: "application/json" } });
    const found = await answer.json();
    if (mine !== from) return;
    root.classList.remove("waiting");
    root.hidden = false;
    if (!answer.ok) {
      const words = document.createElement("p");
      words.className = "wrong";
      words.textContent = found.detail;
      if (step) find(".step-numbers").append(words);
      else root.replaceChildren(root.querySelector("h2"), words);
      return;
    }
    step = found;
    readColors();
    chosenRank = Math.min(chosenRank, step.ranks.length - 1);
    fill();
    chooseDevice(Math.min(chosenDevice, step.devices - 1));
    show(moment);
    root.dataset.drawn = step.describe;
  }

  // Another schedule has virtual stages of its own; without a pipeline there is no schedule to keep.
  function changes(changed) {
    const found = { ...step.chosen };
    if (found.schedule === "none") delete found.schedule;
    if (changed.name === "schedule") {
      found.schedule = changed.value;
      delete found.virtual_stages;
    } else found[changed.name] = step.choices[changed.name][changed.value];
    if (changed.name === "pipeline_parallel" && step.chosen.schedule === "none") delete found.virtual_stages;
    return found;
  }

  form.addEventListener("input", (event) => {
    if (event.target.type === "range") tell(event.target);
  });
  form.addEventListener("change", (event) => ask(changes(event.target)));
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    ask({});
  });
  scrub.addEventListener("input", () => show((scrub.value / 1000) * axisEnd()));
  zoom.addEventListener("change", draw);
  rankBox.addEventListener("change", () => chooseRank(Number(rankBox.value)));
  deviceBox.addEventListener("input", () => chooseDevice(Number(deviceBox.value)));

  function stop() {
    cancelAnimationFrame(frame);
    frame = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }
  play.addEventListener("click", () => {
    if (frame) return stop();
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    if (moment >= axisEnd()) moment = 0;
    let last = performance.now();
    const tick = (now) => {
      const span = PLAYED_S * Math.sqrt(Number(zoom.value)) * 1000;
      show(moment + ((now - last) / span) * axisEnd());
      last = now;
      if (moment >= axisEnd()) stop();
      else frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  });

  function pointed(event) {
    const box = lanes.getBoundingClientRect(), left = gutter(), [begin, end] = seen();
    const share = (event.clientX - box.left - left) / (box.width - left);
    return { rank: Math.floor((event.clientY - box.top) / rowHeight()), parts: begin + share * (end - begin) };
  }
  lanes.addEventListener("pointermove", (event) => {
    if (!step) return;
    chooseRank(pointed(event).rank);
    if (event.buttons && zoom.value === "1") show(pointed(event).parts);
  });
  lanes.addEventListener("click", (event) => step && show(pointed(event).parts));
  map.addEventListener("pointermove", (event) => {
    if (!step) return;
    const box = map.getBoundingClientRect(), { size, node, columns, place } = layout();
    const across = event.clientX - box.left, down = event.clientY - box.top;
    const of = Math.floor(down / node.height) * columns + Math.min(Math.floor(across / node.width), columns - 1);
    for (let device = of * step.per_node; device < Math.min((of + 1) * step.per_node, step.devices); device++) {
      const [x, y] = place(device);
      if (across >= x && across < x + size && down >= y && down < y + size && device !== chosenDevice) chooseDevice(device);
    }
  });
  new ResizeObserver(draw).observe(root);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!step) return;
    readColors();
    fill();
    chooseDevice(chosenDevice);
  });
  ask({});
})();
