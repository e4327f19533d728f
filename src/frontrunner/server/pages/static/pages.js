"use strict";
// Additions to htmx: bodies as JSON, and what a reader has opened, scrolled or checked is kept when a section is
// replaced. (htmx itself keeps the focus, by id.)
(() => {
  const NUMBERS = new Set(["steps"]);
  const scrolled = new Map();
  const BOOLEANS = new Set(["anyway", "hidden"]);

  htmx.defineExtension("json-body", {
    onEvent(name, event) {
      if (name === "htmx:configRequest") {
        event.detail.headers["Content-Type"] = "application/json";
        event.detail.headers.Accept = "text/html"; // errors then come as HTML too
      }
      return true;
    },
    encodeParameters(_xhr, parameters) {
      const values = {};
      for (const [key, value] of parameters.entries()) {
        values[key] = NUMBERS.has(key) ? Number(value) : BOOLEANS.has(key) ? value === "on" : value;
      }
      return JSON.stringify(values);
    },
  });

  // The content below a table that grows and shrinks must not move while a reader is there.
  function keepHeight(section, next) {
    if (section.hasAttribute("data-keeps-height")) next.style.minHeight = `${section.offsetHeight}px`;
  }

  document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
    keepHeight(event.detail.target, event.detail.fragment.firstElementChild);
    for (const details of event.detail.target.querySelectorAll("details[id]")) {
      const next = event.detail.fragment.querySelector(`#${details.id}`);
      if (next) next.open = details.open;
    }
    for (const place of event.detail.target.querySelectorAll("[id]")) {
      if (place.scrollLeft || place.scrollTop) scrolled.set(place.id, { left: place.scrollLeft, top: place.scrollTop });
    }
    for (const log of event.detail.fragment.querySelectorAll("pre.log[id]")) {
      const last = document.getElementById(log.id);
      scrolled.set(log.id, { top: last?.dataset.placed && !isAtEnd(last) ? last.scrollTop : Infinity });
    }
    for (const box of event.detail.target.querySelectorAll("input:checked[id]")) {
      const next = event.detail.fragment.querySelector(`#${CSS.escape(box.id)}`);
      if (next) next.checked = true;
    }
  });

  let opened = [];
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    opened = [...event.detail.target.querySelectorAll("details[open][id]")].map((details) => details.id);
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    for (const details of opened.map((id) => document.getElementById(id))) if (details) details.open = true;
  });

  document.body.addEventListener("htmx:oobAfterSwap", () => {
    for (const [id, where] of scrolled) {
      const place = document.getElementById(id);
      if (place?.matches("pre.log")) placeLog(place, where.top);
      else place?.scrollTo(where);
    }
    scrolled.clear();
  });

  // Logs are shown at their end, which they follow unless a reader has scrolled up.
  const isAtEnd = (log) => log.scrollHeight - log.clientHeight - log.scrollTop < 4;
  function placeLog(log, top) {
    if (!log.clientHeight) return; // its details are closed
    log.scrollTop = Math.min(top, log.scrollHeight);
    log.dataset.placed = "yes";
  }
  const placeNew = (within) => within.querySelectorAll("pre.log:not([data-placed])").forEach((log) => placeLog(log, Infinity));
  placeNew(document);
  document.addEventListener("toggle", (event) => placeNew(event.target), true);

  // Lines to be copied get a button, where the browser lets pages copy: on https and on this machine.
  for (const code of navigator.clipboard ? document.querySelectorAll("pre.code") : []) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
    button.setAttribute("aria-label", `Copy: ${code.getAttribute("aria-label")}`);
    const text = code.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.append(button);
  }

  // The bar of sections marks the one that is read; links to sections that a page hides are hidden.
  const jumps = [...document.querySelectorAll(".jump a")];
  if (jumps.length) {
    const mark = () => {
      const shown = jumps.filter((link) => {
        const section = document.getElementById(link.hash.slice(1));
        link.hidden = !section || section.hidden;
        return !link.hidden;
      });
      const top = (link) => document.getElementById(link.hash.slice(1)).getBoundingClientRect().top;
      const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 4;
      const read = atEnd ? shown.at(-1) : shown.filter((link) => top(link) < 120).at(-1);
      for (const link of jumps) {
        if (link === read) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    let due = 0;
    const soon = () => { due ||= requestAnimationFrame(() => { due = 0; mark(); }); };
    window.addEventListener("scroll", soon, { passive: true });
    new ResizeObserver(soon).observe(document.body); // sections come, go and grow
  }

  // Messages are shown over the page, at the bottom of its window; a new request clears the last one.
  const notice = document.getElementById("notice");
  document.getElementById("dismiss").addEventListener("click", () => notice.replaceChildren());
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.requestConfig.verb !== "get") notice.replaceChildren();
  });
})();
