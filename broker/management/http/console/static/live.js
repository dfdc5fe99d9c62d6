// Keeps the part of a page that has data-live as the server sends it; without this file the page
// stays as it was loaded. A hidden page has no stream: browsers have six connections for one host.
"use strict";
(() => {
  const part = document.querySelector("[data-live]");
  if (!part) return;
  const state = document.getElementById("live-state");
  const AGAIN_MS = 3000;
  let source = null;
  let timer = 0;

  function say(text) {
    if (state.textContent !== text) state.textContent = text;
  }
  function close() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }
  function follow() {
    close();
    if (document.hidden) return;
    source = new EventSource(part.dataset.live);
    source.addEventListener("update", (event) => {
      htmx.swap(part, event.data, { swapStyle: "innerHTML" });
      say("");
    });
    source.addEventListener("refused", (event) => {
      say(event.data);
      again();
    });
    source.onerror = () => {
      if (!state.textContent) {
        const now = new Date().toISOString().slice(11, 19);
        say(`This node does not answer since ${now}: what you see is of then. Trying again.`);
      }
      again();
    };
  }
  function again() {
    close();
    timer = setTimeout(follow, AGAIN_MS);
  }

  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) follow();
  });
  follow();
})();
