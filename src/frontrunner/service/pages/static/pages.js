"use strict";
// What htmx alone does not do: bodies as JSON, and details that stay open when their surroundings are replaced.
(() => {
  const NUMBERS = new Set(["steps"]);
  const BOOLEANS = new Set(["anyway"]);

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

  document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
    const open = event.detail.target.querySelectorAll("details[open][id]");
    for (const details of open) {
      const next = event.detail.fragment.querySelector(`#${details.id}`);
      if (next) next.open = true;
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

  // Errors are shown where the page has room for them, and what was done before is no longer said.
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.requestConfig.verb !== "get") document.getElementById("notice").replaceChildren();
  });
})();
