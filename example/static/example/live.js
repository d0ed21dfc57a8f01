// Draws the picture anew while the page is seen.
"use strict";
(() => {
  const INTERVAL = 500;
  const place = document.querySelector("[data-live]");
  const ask = () => {
    if (document.hidden) return again();
    const request = new XMLHttpRequest();
    request.open("GET", place.dataset.live);
    request.responseType = "document";
    request.onloadend = () => {
      const fresh = request.status === 200 && request.response && request.response.querySelector("[data-picture]");
      if (fresh) place.replaceChildren(document.importNode(fresh, true));
      again();
    };
    request.send();
  };
  const again = () => setTimeout(ask, INTERVAL);
  again();
})();
