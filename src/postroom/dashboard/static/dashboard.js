// Refreshes live parts while the tab is visible, opens actions in a dialog, and handles keys.
"use strict";
(function () {
  const every = Math.max(0.5, Number(document.documentElement.dataset.refresh)) * 1000;
  const dialog = document.getElementById("dialog");

  function isBusy(part) {
    const active = document.activeElement;
    const chosen = part.querySelector("input:checked, details[open] summary:focus");
    const selected = String(window.getSelection() || "") !== "";
    return (active && active !== document.body && part.contains(active)) || chosen || selected;
  }
  function refresh() {
    if (document.hidden || (dialog && dialog.open)) return;
    for (const part of document.querySelectorAll("[data-live]")) {
      if (!isBusy(part)) window.htmx.trigger(part, "refresh");
    }
  }
  window.setInterval(refresh, every);
  document.addEventListener("visibilitychange", refresh);

  // Actions open in the dialog; without JavaScript the links lead to a page of their own.
  document.addEventListener("htmx:afterSwap", function (event) {
    if (dialog && event.detail.target.id === "dialog-body" && !dialog.open) dialog.showModal();
    if (dialog && dialog.open) {
      const first = dialog.querySelector("[autofocus], textarea, input:not([type=hidden])");
      if (first) first.focus();
    }
  });
  // An error of an action is shown where its answer would be.
  document.addEventListener("htmx:beforeSwap", function (event) {
    if (event.detail.xhr.status === 401) { window.location.reload(); return; }
    if (event.detail.xhr.status >= 400 && event.detail.target.id === "dialog-body") {
      event.detail.shouldSwap = true;
      event.detail.isError = false;
    }
  });
  document.addEventListener("submit", function (event) {
    const form = event.target;
    if (form.dataset.sent) { event.preventDefault(); event.stopImmediatePropagation(); return; }
    if (form.matches("form[data-once]")) {
      form.dataset.sent = "1";
      for (const button of form.querySelectorAll("button[type=submit]")) {
        button.setAttribute("aria-busy", "true");
      }
      document.addEventListener("htmx:afterRequest", function () { delete form.dataset.sent; }, { once: true });
    }
  }, true);
  document.addEventListener("click", function (event) {
    if (event.target.closest("[data-close]") && dialog) { dialog.close(); refresh(); }
    const row = event.target.closest("[data-all]");
    if (row) {
      for (const box of document.querySelectorAll("input[name=ids]")) box.checked = row.checked;
    }
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) {
      navigator.clipboard.writeText(copy.dataset.copy);
      copy.textContent = "copied";
    }
  });
  if (dialog) dialog.addEventListener("close", function () {
    document.getElementById("dialog-body").replaceChildren();
    refresh();
  });
  document.addEventListener("keydown", function (event) {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      document.getElementById("q").focus();
    }
  });
})();
