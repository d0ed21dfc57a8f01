// Refreshes the flights of a page. Stops while the page is hidden, and for good where the answer is not what was expected.
"use strict";
(() => {
  const INTERVAL = 2000;
  const GENTLE = 4; // at least so many times as long as an answer took
  const place = document.querySelector("[data-live]");
  const says = document.querySelector("[data-says]");
  const button = document.querySelector("[data-pause]");
  const lost = document.querySelector("[data-lost]");
  if (!place) return;

  let timer = null;
  let request = null;
  let paused = false;
  let over = false;

  const say = (text) => {
    if (says.textContent !== text) says.textContent = text; // a screen reader speaks what changes
  };

  const tell = () => {
    const count = place.querySelector("[data-flights]").dataset.count || "";
    say([count, paused ? says.dataset.paused : says.dataset.running].filter(Boolean).join(". "));
  };

  const stop = () => {
    clearTimeout(timer);
    if (request) request.abort();
    timer = request = null;
  };

  const isReading = () => {
    const selection = document.getSelection();
    return !selection.isCollapsed && place.contains(selection.anchorNode);
  };

  const show = (fresh) => {
    const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
    place.replaceChildren(document.importNode(fresh, true));
    const again = focused && document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
  };

  const lose = () => {
    over = true;
    stop();
    say("");
    button.hidden = true;
    lost.hidden = false;
  };

  const next = (delay) => {
    stop();
    if (!paused && !over && !document.hidden) timer = setTimeout(ask, delay);
  };

  const ask = () => {
    const address = new URL(place.dataset.live, document.baseURI).href;
    const begun = performance.now();
    const mine = (request = new XMLHttpRequest());
    mine.open("GET", address);
    mine.responseType = "document";
    mine.setRequestHeader("X-Requested-With", "XMLHttpRequest");
    mine.onload = () => {
      if (mine !== request) return;
      const fresh = mine.response && mine.response.querySelector("[data-flights]");
      if (mine.status !== 200 || mine.responseURL !== address || !fresh) return lose();
      if (!isReading()) {
        show(fresh);
        tell();
      }
      next(Math.max(INTERVAL, GENTLE * (performance.now() - begun)));
    };
    mine.onerror = () => mine === request && lose();
    mine.send();
  };

  const label = () => {
    button.textContent = paused ? button.dataset.resume : button.dataset.pause;
    tell();
  };

  button.addEventListener("click", () => {
    paused = !paused;
    label();
    next(0);
  });
  document.addEventListener("visibilitychange", () => next(0));
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", () => next(INTERVAL));
  button.hidden = false;
  label();
})();
