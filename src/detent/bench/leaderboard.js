"use strict";
// The filter and the order of the first table are kept in the address: a view can be linked.
(() => {
  const filter = document.querySelector("#filter");
  const heads = [...document.querySelectorAll("#leaderboard th")];
  const said = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const remember = () => {
    const view = new URLSearchParams();
    if (filter.value) view.set("filter", filter.value);
    const sorted = heads.find((head) => head.hasAttribute("aria-sort"));
    if (sorted) view.set("sort", (sorted.getAttribute("aria-sort") === "descending" ? "-" : "") + sorted.textContent);
    history.replaceState(null, "", `#${view}`);
  };
  if (said.get("filter")) {
    filter.value = said.get("filter");
    filter.dispatchEvent(new Event("input"));
  }
  const order = said.get("sort");
  if (order) {
    const head = heads.find((one) => one.textContent === order.replace(/^-/, ""));
    head?.click();
    if (order.startsWith("-")) head?.click();
  }
  filter.addEventListener("input", remember);
  for (const head of heads) head.addEventListener("click", () => setTimeout(remember));
})();
