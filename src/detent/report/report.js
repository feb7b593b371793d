"use strict";
// What a reader does on the page: choose nodes, color, zoom, filter, sort, light or dark. All that is shown is in the
// page already; text is moved and never parsed as HTML.
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const root = document.documentElement;
  const graph = $("#graph"), canvas = $("#canvas"), panel = $("#panel"), filter = $("#filter");

  // --- light and dark ---------------------------------------------------------------------------------------------
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = $("#theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // --- the graph: zoom and move -------------------------------------------------------------------------------------
  let view = null, size = null;
  const show = () => {
    graph.setAttribute("viewBox", view.map((part) => part.toFixed(1)).join(" "));
    graph.classList.toggle("far", unit() > 2.4);  // colors to see, no names to read
  };
  const whole = () => { view = [...size]; show(); };
  // What one pixel of the screen is in the drawing.
  const unit = () => Math.max(view[2] / canvas.clientWidth, view[3] / canvas.clientHeight);
  // All of it, from the top, and not larger than nodes need.
  const fit = () => {
    whole();
    const u = Math.max(unit(), 0.8), w = u * canvas.clientWidth;
    view = [size[0] - (w - size[2]) / 2, size[1], w, u * canvas.clientHeight];
    show();
  };
  const zoom = (factor, x, y) => {
    const box = canvas.getBoundingClientRect();
    // In the shape of the canvas, so that what lies under the pointer stays there.
    const u = unit(), w = u * box.width, h = u * box.height;
    const left = view[0] + view[2] / 2 - w / 2, top = view[1] + view[3] / 2 - h / 2;
    const least = 0.2, most = Math.max(size[2] / box.width, size[3] / box.height, 1) * 1.5;
    const next = Math.min(Math.max(u * factor, least), most) / u;
    const fx = x === undefined ? 0.5 : (x - box.left) / box.width, fy = y === undefined ? 0.5 : (y - box.top) / box.height;
    view = [left + w * fx * (1 - next), top + h * fy * (1 - next), w * next, h * next];
    show();
  };
  // Begin where names can be read, if the whole is too large for that.
  const begin = () => {
    fit();
    if (unit() > 1.6) {
      view = [0, 0, canvas.clientWidth * 1.25, canvas.clientHeight * 1.25];
      show();
    }
  };
  const reveal = (node) => {
    const box = node.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
    const u = unit();
    let dx = 0, dy = 0;
    if (box.left < frame.left + 20) dx = box.left - frame.left - 60;
    if (box.right > frame.right - 20) dx = box.right - frame.right + 60;
    if (box.top < frame.top + 20) dy = box.top - frame.top - 60;
    if (box.bottom > frame.bottom - 20) dy = box.bottom - frame.bottom + 60;
    if (dx || dy) { view[0] += dx * u; view[1] += dy * u; show(); }
  };

  // --- the graph: choose ----------------------------------------------------------------------------------------------
  const neighbors = (node, way) => (node.dataset[way] || "").split(" ").filter(Boolean);
  const choose = (key, { focus = true } = {}) => {
    const node = document.getElementById(key);
    if (!node) return;
    for (const old of $$(".node.chosen")) { old.classList.remove("chosen"); old.setAttribute("tabindex", "-1"); }
    for (const edge of $$(".edge.near")) edge.classList.remove("near");
    node.classList.add("chosen");
    node.setAttribute("tabindex", "0");
    for (const edge of $$(".edge")) {
      if (edge.dataset.from === key || edge.dataset.to === key) edge.classList.add("near");
    }
    if (focus) node.focus({ preventScroll: true });
    reveal(node);
    tell(key, node);
  };
  const tell = (key, node) => {
    const about = document.getElementById(`about-${key}`);
    if (!about) { panel.replaceChildren(paragraph(node.getAttribute("aria-label"))); return; }
    panel.replaceChildren(about.content.cloneNode(true));
    for (const place of $$("[data-figure]", panel)) {
      const figure = $$("#distributions figure").find((one) => one.dataset.tensor === place.dataset.figure);
      if (!figure) { place.remove(); continue; }
      const copy = figure.cloneNode(true);
      copy.classList.remove("late", "filtered");
      place.replaceWith(copy);
    }
    panel.scrollTop = 0;
  };
  const paragraph = (text) => {
    const made = document.createElement("p");
    made.textContent = text;
    return made;
  };
  const nothing = panel ? [...panel.children] : [];
  const forget = () => {
    for (const old of $$(".node.chosen")) old.classList.remove("chosen");
    for (const edge of $$(".edge.near")) edge.classList.remove("near");
    panel.replaceChildren(...nothing.map((part) => part.cloneNode(true)));
  };
  const step = (node, way) => {
    const near = neighbors(node, way);
    if (near.length) return choose(near[0]);
    if (way === "left" || way === "right") {  // on to the next in order
      const all = $$(".node"), at = all.indexOf(node) + (way === "left" ? -1 : 1);
      if (all[at]) choose(all[at].id);
    }
  };

  if (graph) {
    size = graph.dataset.size.split(" ").map(Number);
    begin();
    addEventListener("resize", () => show());
    addEventListener("beforeprint", whole);
    addEventListener("afterprint", fit);
    const color = (by) => {
      $("#network").dataset.by = by;
      for (const button of $$("#colorings button")) button.setAttribute("aria-pressed", String(button.dataset.by === by));
    };
    color("bits");
    $("#colorings").addEventListener("click", (event) => { if (event.target.dataset.by) color(event.target.dataset.by); });
    $("#zoom").addEventListener("click", (event) => {
      const way = event.target.dataset.zoom;
      if (way === "fit") fit();
      else if (way) zoom(way === "in" ? 0.75 : 1.33);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;  // a page scrolls
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.004), event.clientX, event.clientY);
    }, { passive: false });
    let held = null, moved = false;
    graph.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; moved = false; });
    addEventListener("pointermove", (event) => {
      if (!held) return;
      const dx = event.clientX - held[0], dy = event.clientY - held[1];
      if (!moved && Math.hypot(dx, dy) < 4) return;
      moved = true;
      graph.classList.add("dragging");
      const u = unit();
      view[0] -= dx * u; view[1] -= dy * u;
      held = [event.clientX, event.clientY];
      show();
    });
    addEventListener("pointerup", () => { held = null; graph.classList.remove("dragging"); });
    graph.addEventListener("click", (event) => {
      const node = event.target.closest(".node");
      if (node && !moved) choose(node.id);
    });
    graph.addEventListener("keydown", (event) => {
      const node = event.target.closest(".node");
      const way = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" }[event.key];
      if (!node) return;
      if (way) { event.preventDefault(); step(node, way); }
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node.id); }
    });
    const first = $(".node");
    if (first) first.setAttribute("tabindex", "0");
    // A row or a dot leads to its node.
    document.addEventListener("click", (event) => {
      const link = event.target.closest("[data-node]");
      if (!link) return;
      event.preventDefault();
      $("#network").scrollIntoView();
      choose(link.dataset.node);
    });
  }

  // --- filter -----------------------------------------------------------------------------------------------------------
  let role = "all";
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (element) => words.every((word) => element.dataset.text.includes(word));
    root.classList.toggle("finding", words.length > 0);
    for (const element of $$("tr[data-text], figure[data-text]")) {
      const wanted = role === "all" || !element.dataset.role || element.dataset.role === role;
      element.classList.toggle("filtered", !(wanted && fits(element)));
    }
    for (const node of $$(".node[data-text]")) node.classList.toggle("dim", words.length > 0 && !fits(node));
  };
  filter.addEventListener("input", apply);
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const found = $(".node[data-text]:not(.dim)");
    if (found && filter.value) { $("#network").scrollIntoView(); choose(found.id); }
  });
  $("#roles")?.addEventListener("click", (event) => {
    if (!event.target.dataset.role) return;
    role = event.target.dataset.role;
    for (const button of $$("#roles button")) button.setAttribute("aria-pressed", String(button.dataset.role === role));
    apply();
  });
  $("#more")?.addEventListener("click", (event) => {
    $("#distributions .figures").classList.add("all");
    event.target.remove();
  });

  // --- sort ----------------------------------------------------------------------------------------------------------------
  const key = (row, column) => {
    const text = row.cells[column].textContent, number = parseFloat(text.replace(/,/g, ""));
    if (text === "equal") return Infinity;
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const before = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  for (const head of $$(".sortable th")) {
    if (!head.textContent) continue;
    head.setAttribute("tabindex", "0");
    const sort = () => {
      const table = head.closest("table"), down = head.getAttribute("aria-sort") === "ascending";
      for (const other of $$("th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => before(key(a, head.cellIndex), key(b, head.cellIndex)) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  }

  // --- keys and links that hold everywhere ---------------------------------------------------------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== filter) {
      event.preventDefault();
      filter.focus();
      filter.select();
    } else if (event.key === "Escape") {
      if (filter.value) { filter.value = ""; apply(); }
      filter.blur();
      if (graph) forget();
    }
  });
  const links = new Map($$("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const section of $$("main section")) seen.observe(section);
})();
