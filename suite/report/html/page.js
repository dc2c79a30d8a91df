"use strict";
(() => {
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const drawn = new Set();
  const narrow = 560; // pixels of a picture's width below which its fonts and margins shrink
  const printed = 680; // pixels of a sheet's width: A4 less its margins, at 96 a inch

  // colours: names of custom properties become their values in the scheme that is shown
  const coloured = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, style)]));
    }
    return value;
  };
  const axis = (own, style, small) => ({
    gridcolor: style.getPropertyValue("--line").trim(), zerolinecolor: style.getPropertyValue("--line").trim(),
    linecolor: style.getPropertyValue("--muted").trim(), tickcolor: style.getPropertyValue("--line").trim(),
    automargin: true, ...own, title: { standoff: 10, font: { size: small ? 11 : 12.5 }, ...own.title },
  });
  const whole = (spec, width) => {
    const style = getComputedStyle(root), small = width < narrow;
    const layout = coloured(spec.layout, style), ink = style.getPropertyValue("--ink").trim();
    const written = spec.traces.some((one) => one.textposition === "outside"); // numbers right of the longest bar
    const many = spec.traces.filter((one) => one.showlegend !== false).length;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: [style.getPropertyValue("--c1").trim()],
      font: { family: getComputedStyle(document.body).fontFamily, size: small ? 11 : 12.5, color: ink },
      margin: { l: 8, r: written ? 76 : small ? 12 : 24, t: 8, b: 8, pad: 3 }, bargap: 0.28, bargroupgap: 0.12, hovermode: "closest", separators: ".,",
      hoverlabel: { bgcolor: style.getPropertyValue("--paper").trim(), bordercolor: style.getPropertyValue("--muted").trim(), font: { color: ink } },
      showlegend: many > 1, dragmode: small ? false : "zoom", ...layout,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", itemsizing: "constant", ...layout.legend },
      xaxis: axis(layout.xaxis || {}, style, small), yaxis: axis(layout.yaxis || {}, style, small),
      autosize: false, width, height: spec.height + (small ? 12 * many : 0),
    };
  };
  // long names of bars in two lines, where there is little room
  const folded = (trace) => {
    if (!Array.isArray(trace.y) || trace.orientation !== "h") return trace;
    const fold = (name) => {
      const at = typeof name === "string" && name.length > 14 ? name.indexOf(" ", name.length / 2 - 4) : -1;
      return at > 0 ? `${name.slice(0, at)}<br>${name.slice(at + 1)}` : name;
    };
    return { ...trace, y: trace.y.map(fold) };
  };
  const draw = (element, width = element.clientWidth) => {
    const spec = plots[element.dataset.plot];
    if (!spec || width < 50) return;
    const layout = whole(spec, width);
    element.style.height = `${layout.height}px`;
    const traces = width < narrow ? spec.traces.map(folded) : spec.traces;
    Plotly.react(element, coloured(traces, getComputedStyle(root)), layout, { displayModeBar: false, responsive: false });
    element.dataset.width = width;
    drawn.add(element);
  };
  const canvases = [...document.querySelectorAll(".canvas")];
  const shown = (element) => element.getClientRects().length > 0;
  const redraw = () => drawn.forEach((element) => shown(element) && draw(element));
  const observer = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting && entry.target.dataset.width !== String(entry.target.clientWidth)) draw(entry.target);
  }), { rootMargin: "400px" });
  canvases.forEach((element) => observer.observe(element));
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });

  // on a narrow screen a row is a block: each cell has the name of its column
  const named = (table) => {
    const names = [...table.querySelectorAll("thead th, thead td")].map((cell) => cell.textContent);
    [...table.tBodies[0].rows].forEach((row) => [...row.cells].forEach((cell) => {
      if (cell.tagName === "TD" && names[cell.cellIndex]) cell.dataset.name = names[cell.cellIndex];
    }));
    table.classList.add("stacked");
  };
  document.querySelectorAll("table:not(.matrix)").forEach(named);

  // numbers behind a picture: built when they are opened
  document.querySelectorAll(".numbers").forEach((details) => details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const figure = details.closest("figure"), spec = plots[figure.id], title = figure.querySelector("figcaption").textContent;
    const region = document.createElement("div"), table = document.createElement("table");
    region.className = "scroll"; region.tabIndex = 0;
    region.setAttribute("role", "region"); region.setAttribute("aria-label", `Numbers: ${[title, details.closest(".card")?.dataset.name].filter(Boolean).join(", ")}`);
    const caption = table.createCaption();
    caption.className = "unseen"; caption.textContent = title;
    const numeric = spec.columns.map((_, column) => spec.rows.some((row) => row[column] !== null && row[column] !== "")
      && spec.rows.every((row) => row[column] === null || /^[+-]?[\d.,]+(e[+-]?\d+)?%?$|^$/.test(String(row[column]))));
    const head = table.createTHead().insertRow();
    spec.columns.forEach((name, column) => {
      const cell = document.createElement(name ? "th" : "td");
      if (name) cell.scope = "col";
      cell.textContent = name; if (numeric[column]) cell.className = "number";
      head.append(cell);
    });
    const body = table.createTBody();
    spec.rows.forEach((row) => {
      const line = body.insertRow();
      row.forEach((value, column) => {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        cell.textContent = value === null ? "" : value; if (numeric[column]) cell.className = "number";
        line.append(cell);
      });
    });
    named(table); region.append(table); details.append(region);
  }));

  // colour schemes
  const choices = [...document.querySelectorAll("[data-theme-choice]")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("theme") || "system"; } catch { return "system"; } };
  const scheme = (choice) => {
    if (choice === "system") root.removeAttribute("data-theme"); else root.dataset.theme = choice;
    choices.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.themeChoice === choice)));
    redraw();
  };
  choices.forEach((one) => one.addEventListener("click", () => {
    try { localStorage.setItem("theme", one.dataset.themeChoice); } catch { /* a private window keeps nothing */ }
    scheme(one.dataset.themeChoice);
  }));
  dark.addEventListener("change", redraw);
  scheme(kept());

  // paper: light, every picture that shows, as wide as the sheet
  const toPaper = () => {
    root.dataset.theme = "light";
    canvases.filter(shown).forEach((element) => draw(element, printed));
  };
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", () => { scheme(kept()); redraw(); });

  // filters and places: #section?run=…&machine=…&verdict=…&text=…
  const form = document.getElementById("filters");
  const names = ["run", "machine", "verdict", "text"];
  const state = () => {
    const [place, query] = location.hash.slice(1).split("?");
    return [decodeURIComponent(place || ""), new URLSearchParams(query || "")];
  };
  const address = (place, params) => {
    const query = params.toString();
    return `#${place}${query ? `?${query}` : ""}`;
  };
  const words = new Map();
  const text = (item) => {
    if (!words.has(item)) words.set(item, (item.dataset.text ?? item.textContent).toLowerCase());
    return words.get(item);
  };
  const apply = () => {
    const [, params] = state();
    if (form) names.forEach((name) => { if (form.elements[name].value !== (params.get(name) || "")) form.elements[name].value = params.get(name) || ""; });
    const asked = (params.get("text") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = ["run", "machine", "verdict"].filter((name) => params.get(name));
    const fits = (item) => wanted.every((name) => item.dataset[name] === undefined || item.dataset[name] === params.get(name));
    document.querySelectorAll(".item").forEach((item) => {
      const searched = item.dataset.text !== undefined || item.classList.contains("content");
      item.hidden = !(fits(item) && (!searched || asked.every((word) => text(item).includes(word))));
    });
    document.querySelectorAll(".group").forEach((group) => {
      group.hidden = !fits(group) || !group.querySelector(".item:not([hidden])");
      if (!group.hidden && group.classList.contains("opens") && (asked.length || wanted.length)) group.open = true;
    });
    document.querySelectorAll(".matrix [data-machine]").forEach((cell) => { cell.hidden = !fits(cell); });
    document.querySelectorAll("section").forEach((section) => {
      const none = section.querySelector(":scope > .none");
      if (none) none.hidden = Boolean(section.querySelector(".item:not([hidden])"));
    });
    const rows = [...document.querySelectorAll("#setup-table .item")], left = rows.filter((row) => !row.hidden).length;
    const output = document.getElementById("count");
    if (output) output.textContent = left === rows.length ? `${rows.length} setups` : `${left} of ${rows.length} setups`;
  };
  const go = () => {
    const [place] = state(), target = place && document.getElementById(place);
    if (!target) return;
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    target.scrollIntoView();
    const heading = target.id === "main" ? target : target.querySelector("h2[tabindex], h3[tabindex]") || target;
    heading.focus({ preventScroll: true });
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    const [place, query] = link.getAttribute("href").slice(1).split("?");
    history.pushState(null, "", address(place, query === undefined ? state()[1] : new URLSearchParams(query)));
    apply(); go();
  });
  if (form) {
    let typing = false;
    const change = (replaces) => {
      const params = new URLSearchParams();
      names.forEach((name) => { const value = form.elements[name].value; if (value) params.set(name, value); });
      const where = address(state()[0], params);
      if (where !== location.hash) history[replaces ? "replaceState" : "pushState"](null, "", where || "#");
      apply();
    };
    form.addEventListener("change", () => { if (!typing) change(false); typing = false; });
    form.addEventListener("input", (event) => { if (event.target.name === "text") { change(typing); typing = true; } });
    form.elements.text.addEventListener("focus", () => { typing = false; });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", (event) => { event.preventDefault(); names.forEach((name) => { form.elements[name].value = ""; }); change(false); });
  }
  addEventListener("popstate", () => { apply(); go(); });
  apply(); go();

  // tables that a column's name sorts
  document.querySelectorAll(".sortable thead button").forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th"), table = button.closest("table"), column = head.cellIndex, body = table.tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("thead th").forEach((one) => one.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    const order = (a, b) => (a === "") - (b === "") || (a - b || a.localeCompare(b, "en", { numeric: true })) * (a !== "" && down ? -1 : 1);
    [...body.rows].sort((a, b) => order(key(a), key(b))).forEach((row) => body.append(row));
  }));
})();
