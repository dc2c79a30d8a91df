// Tables and pictures of a state: `explore.show(content)`, with what suite/report/explore/content.py says of it.
"use strict";
window.explore = (() => {
  const GIB = 2 ** 30;
  const NAMES = {
    step_seconds: "a step", peak_bytes: "memory, fullest instant", mfu: "MFU", hfu: "HFU", tokens_per_second: "tokens a second",
    bubble_fraction: "pipeline bubble, stages alike", training_seconds: "the whole training", accelerator_seconds: "accelerator-hours",
    energy_joules: "energy of accelerators", cost: "cost", parameters: "parameters",
  };
  const CARDS = ["step_seconds", "peak_bytes", "mfu", "tokens_per_second", "training_seconds", "accelerator_seconds", "cost"];
  const SENDING = ["tensor parallel", "context parallel", "pipeline", "data parallel", "tied embedding", "expert parallel"];
  const WAITING = ["bubble", "launch", "overhead"];
  const MEMORY = ["weights", "gradients", "master weights", "moments", "activations", "logits", "recomputed layers",
    "communication buffers and gathered weights", "layers still to do", "temporary", "activations of later micro-batches",
    "gradient copy", "copies of weights in the products' format"];
  const PASSES = { F: "forward", B: "backward", I: "gradients of inputs", W: "gradients of weights" };
  const UNITS = {
    "s": [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
    "byte": [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "bytes"]],
    "byte/s": [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"]],
    "flop": [[1e21, "Zflop"], [1e18, "Eflop"], [1e15, "Pflop"], [1e12, "Tflop"], [1e9, "Gflop"]],
    "flop/s": [[1e15, "Pflop/s"], [1e12, "Tflop/s"], [1e9, "Gflop/s"]],
    "accelerator s": [[3600, "h"]], "J": [[3.6e9, "MWh"], [3.6e6, "kWh"], [1, "J"]], "token/s": [[1, "token/s"]],
  };
  const opened = new Set();
  let last = null;
  let searched = null;  // what the numbers of accelerators were searched for
  let lanes = [];  // canvases and their passes

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  }
  const WHOLE = new Intl.NumberFormat("en-US"), FOUR_DIGITS = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) || size >= 1e4) return WHOLE.format(Math.round(value));
    if (size !== 0 && size < 1e-3) return value.toExponential(2);
    return FOUR_DIGITS.format(Number(value.toPrecision(4)));
  }
  function amount(value, unit) {
    if (value === null || value === undefined) return "–";
    const units = UNITS[unit];
    if (!units) return number(value);
    const [factor, name] = units.find(([least]) => Math.abs(value) >= least) || units.at(-1);
    return `${number(value / factor)} ${name}`;
  }
  function read(value, figure) {
    if (value === null || value === undefined) return "–";
    if (["mfu", "hfu", "bubble_fraction"].includes(figure.quantity)) return percent(value);
    if (figure.quantity === "step_seconds") return value < 1 ? amount(value, "s") : `${number(value)} s`;
    if (["tokens_per_second", "accelerator_seconds"].includes(figure.quantity)) return number(value / (figure.quantity === "tokens_per_second" ? 1 : 3600));
    if (figure.quantity === "parameters" && value >= 1e6) return value >= 1e9 ? `${number(value / 1e9)} billion` : `${number(value / 1e6)} million`;
    return amount(value, figure.unit);
  }
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const change = (of, to) => (of ? `${to >= of ? "+" : "−"}${Math.abs(100 * (to / of - 1)).toFixed(1)}%` : "–");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const letter = (views, index) => (views.length > 1 ? "AB"[index] : "");
  const whole = (view) => Object.values(view.terms).reduce((sum, seconds) => sum + seconds, 0);
  const peak = (view) => (view.figures.find((figure) => figure.quantity === "peak_bytes") || {}).value;
  const good = (views) => views.filter((view) => view.wrong.length === 0);

  function place(id, ...content) {
    const where = document.getElementById(id);
    if (where) where.replaceChildren(...content.flat().filter(Boolean));
    return where;
  }
  function section(id, isShown) {
    const where = document.getElementById(id);
    if (where) where.hidden = !isShown;
    return isShown;
  }
  function heads(...names) {
    return el("thead", {}, el("tr", {}, names.map((name) => (name ? el("th", { scope: "col" }, name) : el("td")))));
  }

  // what is said first
  function answers(content) {
    const more = [];
    const said = content.views.map((view, index) => {
      const name = letter(content.views, index);
      if (view.wrong.length) return view.wrong.map((line) => el("p", { class: "refused", role: "alert" }, name ? `${name}: ${line}` : line));
      const words = [];
      const needed = peak(view);
      if (needed && view.memory_limit) {
        const room = `${amount(needed, "byte")} of ${amount(view.memory_limit, "byte")}`;
        words.push(view.fits ? `fits: ${room}` : `does not fit: ${room}`);
      }
      const seconds = whole(view);
      if (seconds) words.push(`${read(seconds, { quantity: "step_seconds" })} a step${view.uncertainty ? ` ± ${Math.round(100 * view.uncertainty)}%` : ""}`);
      const on = view.accelerators ? `${number(view.accelerators)} × ${view.accelerator || "accelerator"}` : "";
      more.push(el("p", { class: "muted" }, name ? el("b", { class: "letter" }, name) : null, [on, view.layout].filter(Boolean).join(": ")));
      more.push(...view.not_predicted.map((reason) => el("p", { class: "muted" }, `not predicted: ${reason}`)));
      return el("p", { class: view.fits ? "fits" : "refused", role: "status" }, name ? el("b", { class: "letter" }, name) : null, words.join(" · ") || "no layout: counts alone");
    });
    place("answer", said.flat());
    place("answer-more", more);
    place("title", content.title);
    place("remarks", content.remarks.map((line) => el("p", { class: "muted" }, line)));
    place("command", content.command);
    if (searched && content.search && content.search !== searched) {  // they were another question's
      searched = null;
      for (const id of ["numbers-words", "numbers-pictures", "numbers-table"]) place(id);
    }
  }
  function cards(views) {
    const made = CARDS.map((quantity) => {
      const found = views.map((view) => view.figures.find((figure) => figure.quantity === quantity));
      if (!found.some(Boolean)) return null;
      const values = found.map((figure, index) => el("span", { class: "value" }, views.length > 1 ? el("b", { class: "letter" }, "AB"[index]) : null, figure ? read(figure.value, figure) : "–"));
      const notes = [];
      if (views.length === 1 && quantity === "step_seconds" && views[0].uncertainty) notes.push(`± ${Math.round(100 * views[0].uncertainty)}% to expect`);
      if (views.length === 1 && quantity === "peak_bytes" && views[0].memory_limit) notes.push(`of ${amount(views[0].memory_limit, "byte")}`);
      if (views.length > 1 && found[0] && found[1]) notes.push(`B ${change(found[0].value, found[1].value)}`);
      const published = found.find((figure) => figure && figure.published !== null);
      if (published && views.length === 1) notes.push(`published: ${read(published.published, published)}`);
      return el("div", { class: "card" }, el("dt", {}, NAMES[quantity]), el("dd", {}, values, notes.map((note) => el("span", { class: "note" }, note))));
    });
    place("cards", made.some(Boolean) ? el("dl", {}, made) : null);
  }

  // figures, and why they are what they are
  function put(why) {
    const values = why.numbers.map(([, value, unit]) => amount(value, unit));
    if (why.formula === "sum") return values.join(" + ");
    return why.formula.replace(/\{(\d+)\}/g, (_, index) => values[index]).replaceAll(" * ", " × ").replaceAll(" / ", " ÷ ");
  }
  function reasons(key, explained) {
    const numbers = explained.map(({ name, figure }) => [
      el("p", { class: "formula" }, name ? el("b", { class: "letter" }, name) : null, `${put(figure.why)} = `, el("b", {}, read(figure.value, figure))),
      el("table", { class: "numbers" }, el("tbody", {}, figure.why.numbers.map(([what, value, unit]) =>
        el("tr", {}, el("th", { scope: "row" }, what), el("td", {}, amount(value, unit)))))),
    ]);
    return [...numbers.flat(), ...derivation(key)];
  }
  function derivation(key) {
    const known = (window.explore.derivations || {})[key] || [];
    return known.map((one) => el("details", {}, el("summary", {}, el("code", {}, one.name)), el("pre", { tabindex: 0 }, one.text)));
  }
  function figures(views) {
    if (!section("figures-part", views.some((view) => view.figures.length))) return;
    const names = views.length > 1 ? ["A", "B", "B to A"] : ["predicted"];
    const quantities = [...new Set(views.flatMap((view) => view.figures.map((figure) => figure.quantity)))];
    const rows = quantities.flatMap((quantity) => {
      const found = views.map((view) => view.figures.find((figure) => figure.quantity === quantity));
      const known = found.find(Boolean);
      const id = `why-${quantity}`;
      const cells = found.map((figure) => (figure ? el("td", { "data-quantity": quantity, "data-value": String(figure.value) }, read(figure.value, figure)) : el("td", {}, "–")));
      if (views.length > 1) cells.push(el("td", {}, found[0] && found[1] ? change(found[0].value, found[1].value) : "–"));
      const is = opened.has(quantity);
      const explained = found.map((figure, index) => ({ name: letter(views, index), figure })).filter((each) => each.figure);
      const detail = el("tr", { id, class: "why", hidden: !is }, el("td", { colspan: cells.length + 4 }));
      if (is) detail.firstChild.append(...reasons(quantity, explained));
      const button = el("button", {
        type: "button", class: "whybutton", "aria-expanded": String(is), "aria-controls": id, "aria-label": `Why ${NAMES[quantity] || quantity}?`, "data-focus": id,
        onclick: () => {
          const open = detail.hidden;
          if (open) opened.add(quantity); else opened.delete(quantity);
          detail.hidden = !open;
          button.setAttribute("aria-expanded", String(open));
          detail.firstChild.replaceChildren(...(open ? reasons(quantity, explained) : []));
        },
      }, "Why?");
      const published = known.published === null ? [el("td", {}, "–"), el("td", {}, "–")]
        : [el("td", { title: known.source }, read(known.published, known)), el("td", {}, change(known.published, known.value))];
      return [el("tr", {}, el("th", { scope: "row" }, NAMES[quantity] || quantity), cells, published, el("td", {}, button)), detail];
    });
    place("figures", el("table", {}, heads("figure", ...names, "published", views.length > 1 ? "A to it" : "predicted to it", ""), el("tbody", {}, rows)),
      el("p", { class: "muted" }, views[0].published_elsewhere || ""));
  }

  // where the time goes: a bar for each term
  const kind = (term) => (SENDING.includes(term) ? "sending" : WAITING.includes(term) ? "waiting" : "computing");
  function time(views) {
    if (!section("time-part", views.some((view) => whole(view)))) return;
    const totals = views.map(whole);
    const terms = [...new Set(views.flatMap((view) => Object.keys(view.terms)))];
    terms.sort((one, other) => Math.max(...views.map((view) => view.terms[other] || 0)) - Math.max(...views.map((view) => view.terms[one] || 0)));
    const longest = Math.max(...totals);
    const strips = views.map((view, index) => {
      const shares = ["computing", "sending", "waiting"].map((each) => [each, terms.filter((term) => kind(term) === each).reduce((sum, term) => sum + (view.terms[term] || 0), 0) / totals[index]]);
      return [
        el("div", { class: "strip", "aria-hidden": "true", style: `width: ${(100 * totals[index]) / longest}%` }, shares.map(([each, share]) => el("span", { class: each, style: `width: ${100 * share}%` }))),
        el("p", { class: "legend" }, views.length > 1 ? el("b", { class: "letter" }, "AB"[index]) : null, shares.map(([each, share]) => el("span", {}, el("i", { class: each }), `${each} ${percent(share)}`))),
      ];
    }).flat();
    const most = Math.max(...views.flatMap((view) => Object.values(view.terms)));
    const rows = terms.map((term) => el("tr", {}, el("th", { scope: "row" }, term), views.flatMap((view, index) => {
      const seconds = view.terms[term] || 0;
      return [el("td", { class: "barcell" }, el("span", { class: `bar ${kind(term)}`, style: `width: ${(100 * seconds) / most}%` })), el("td", {}, amount(seconds, "s")), el("td", { class: "share" }, percent(seconds / totals[index]))];
    })));
    const names = views.flatMap((view, index) => [letter(views, index), "time", "share"]);
    place("time", strips, el("table", { class: "bars" }, heads("term", ...names), el("tbody", {}, rows)));
  }

  // memory of each stage: stacked bars
  function memory(views) {
    const stages = views.map((view) => view.instants.length);
    if (!section("memory-part", stages.some((count) => count))) return;
    const places = views.flatMap((view, index) => view.instants.map((_, stage) => `${letter(views, index)} ${stage}`.trim()));
    const names = MEMORY.filter((name) => views.some((view) => view.memory[name]));
    names.push(...new Set(views.flatMap((view) => Object.keys(view.memory).filter((name) => !MEMORY.includes(name)))));
    const parts = names.map((name) => ({
      name, colour: `--m${(MEMORY.indexOf(name) + 13) % 13}`, values: views.flatMap((view, index) => view.memory[name] || Array(stages[index]).fill(0)).map((bytes) => bytes / GIB),
    }));
    const limits = [...new Set(views.map((view) => view.memory_limit).filter(Boolean))].map((limit) => ({ value: limit / GIB, words: `${number(limit / GIB)} GiB of an accelerator` }));
    const fullest = views.map((view, index) => {
      const sums = view.instants.map((_, stage) => Object.values(view.memory).reduce((sum, part) => sum + part[stage], 0));
      const stage = sums.indexOf(Math.max(...sums));
      return `${letter(views, index)} stage ${stage} is fullest, ${view.instants[stage]}: ${amount(sums[stage], "byte")}`.trim();
    });
    place("memory-words", el("p", { class: "muted" }, fullest.join("; ")), el("p", { class: "legend" }, parts.map((part) => el("span", {}, el("i", { style: `background: var(${part.colour})` }), part.name))));
    window.charts.bars(document.getElementById("memory-picture"), {
      said: `Memory of each stage by part. ${fullest.join("; ")}`, height: 300, places, parts, limits, unit: "GiB", below: "pipeline stage",
      told: (part, at) => `stage ${places[at]}: ${amount(part.values[at] * GIB, "byte")} ${part.name}`,
    });
  }

  // the pipeline's first passes, on a canvas: thousands of boxes
  function passes(views) {
    lanes = [];
    const drawn = views.map((view, index) => [view.passes, letter(views, index)]).filter(([each]) => each);
    if (!section("passes-part", drawn.length)) return;
    const used = [...new Set(drawn.flatMap(([each]) => [...each.kinds]))];
    const legend = el("p", { class: "legend" }, used.map((each) => el("span", {}, el("i", { class: `pass${each}` }), PASSES[each])));
    const pictures = drawn.map(([each, name]) => {
      const words = `${name ? `${name}: ` : ""}${each.lanes} stages, micro-batches 1 to ${each.micro_batches} of ${each.of}; a pass is as long as its flop, a later chunk of a stage paler`;
      const canvas = el("canvas", { role: "img", "aria-label": `The first passes. ${words}`, style: `height: ${laneHeight(each) * each.lanes + 2}px` });
      return [el("p", { class: "muted" }, words), canvas, each];
    });
    place("passes", legend, pictures.flatMap(([words, canvas]) => [words, canvas]));
    lanes = pictures.map(([, canvas, each]) => [canvas, each]);
  }
  const laneHeight = (each) => Math.max(8, Math.min(22, 420 / each.lanes));
  function drawLanes(width) {
    for (const [canvas, each] of lanes) drawLane(canvas, each, width);
  }
  function drawLane(canvas, each, width) {
    const height = laneHeight(each), left = 26, sharp = window.devicePixelRatio || 1;
    canvas.width = width * sharp;
    canvas.height = (height * each.lanes + 2) * sharp;
    const pen = canvas.getContext("2d");
    pen.scale(sharp, sharp);
    const colours = Object.fromEntries(Object.keys(PASSES).map((kind) => [kind, colour(`--pass${kind}`)]));
    const unit = (width - left - 1) / 100000;
    pen.font = "10px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let index = 0; index < each.stages.length; index++) {
      const x = left + each.starts[index] * unit, y = each.stages[index] * height + 1, wide = each.lengths[index] * unit;
      pen.globalAlpha = Math.max(0.35, 0.75 ** each.chunks[index]);
      pen.fillStyle = colours[each.kinds[index]];
      pen.fillRect(x, y, Math.max(wide - (wide > 3 ? 0.7 : 0.2), 0.3), height - 1.5);
      pen.globalAlpha = 1;
      if (wide > 12 && height > 10) {
        pen.fillStyle = "#10131a";
        pen.fillText(String(each.numbers[index] + 1), x + wide / 2, y + height / 2 - 0.5);
      }
    }
    pen.fillStyle = colour("--muted");
    pen.textAlign = "right";
    for (let lane = 0; lane < each.lanes; lane += height > 10 ? 1 : 4) pen.fillText(String(lane), left - 6, lane * height + height / 2 + 1);
  }

  // messages over links
  function traffic(views) {
    const shown = views.filter((view) => view.traffic && view.traffic.length);
    if (!section("traffic-part", shown.length)) return;
    const most = Math.max(...shown.flatMap((view) => view.traffic.map((row) => row.seconds)));
    place("traffic", views.map((view, index) => view.traffic && view.traffic.length ? el("table", { class: "bars" },
      views.length > 1 ? el("caption", {}, "AB"[index]) : null,
      heads("axis", "collective", "of ranks", "over", "GB/s of a rank", "a step", "messages", "", "time"),
      el("tbody", {}, view.traffic.map((row) => el("tr", {}, el("th", { scope: "row" }, row.axis), el("td", {}, row.operation.replaceAll("_", "-")), el("td", {}, number(row.ranks)),
        el("td", {}, row.leaves_node ? "network" : "node's links"), el("td", {}, number(row.bytes_per_second / 1e9)), el("td", {}, amount(row.payload_bytes, "byte")),
        el("td", {}, number(row.messages)), el("td", { class: "barcell" }, el("span", { class: `bar ${row.leaves_node ? "network" : "sending"}`, style: `width: ${(100 * row.seconds) / most}%` })),
        el("td", {}, amount(row.seconds, "s")))))) : null));
  }

  // products under the roofline
  function products(views) {
    const shown = views.map((view, index) => [view.products, index, view]).filter(([each]) => each);
    if (!section("roofline-part", shown.length)) return;
    const roofs = shown.filter(([each], place) => place === 0 || each.peak !== shown[0][0].peak).map(([each]) => ({ ridge: each.peak / each.memory_bytes_per_second, peak: each.peak / 1e12 }));
    const points = shown.flatMap(([each, index]) => each.points.map((point, place) => ({
      x: point.intensity, y: point.rate / 1e12, series: letter(views, index), number: place + 1, colour: index ? "--c2" : "--c1",
      words: `${point.part}: ${number(point.intensity)} flop/byte, ${number(point.rate / 1e12)} Tflop/s`,
    })));
    window.charts.roofline(document.getElementById("roofline-picture"), {
      said: "Tflop/s of each product over its flop for each byte, below what arithmetic and memory allow; the table has the same numbers", height: 270, roofs, points, below: "flop for each byte", beside: "Tflop/s",
    });
    place("roofline-table", shown.map(([each, index]) => el("table", {}, views.length > 1 ? el("caption", {}, "AB"[index]) : null,
      heads("product, forward", "M × N × K", "flop/byte", "of the ridge", "Tflop/s", "of the peak", "limited by"),
      el("tbody", {}, each.points.map((point, place) => el("tr", {}, el("th", { scope: "row" }, `${place + 1} ${point.part}${point.products > 1 ? ` (${number(point.products)} of them)` : ""}`),
        el("td", {}, point.sizes ? point.sizes.map(number).join(" × ") : "one kernel"), el("td", {}, number(point.intensity)), el("td", {}, `${number(point.intensity / point.ridge)} ×`),
        el("td", {}, number(point.rate / 1e12)), el("td", {}, percent(point.rate / (point.ridge * each.memory_bytes_per_second))), el("td", {}, point.intensity < point.ridge ? "memory" : "arithmetic")))))));
  }
  function assumptions(views) {
    const lines = [...new Set(views.flatMap((view) => view.notes))];
    if (section("notes-part", lines.length)) place("notes", el("ul", {}, lines.map((line) => el("li", {}, line))));
  }

  // the fastest layout of other numbers of accelerators
  function numbers(found) {
    searched = found.searched;
    if (!section("numbers-part", found.wrong.length === 0 || document.getElementById("numbers-search"))) return;
    if (found.wrong.length) {
      place("numbers-words", found.wrong.map((line) => el("p", { class: "refused", role: "alert" }, line)));
      place("numbers-pictures");
      place("numbers-table");
      return;
    }
    const priced = found.rows[0].cost !== null, what = priced ? "cost" : "accelerator-hours";
    const spent = (row) => (priced ? row.cost : row.accelerator_seconds / 3600);
    place("numbers-words", el("p", { class: "muted" }, `${found.words}. Filled and starred: no other number is as fast for as little; a ring: as many as asked for.`));
    place("numbers-pictures", el("div"), el("div"));
    const places = document.getElementById("numbers-pictures").children;
    for (const [index, across, below] of [[0, (row) => row.accelerators, "accelerators"], [1, spent, what]]) {
      const points = found.rows.map((row) => ({
        x: across(row), y: row.days, name: number(row.accelerators), best: row.best, asked: row.asked, words: `${number(row.accelerators)} accelerators: ${number(row.days)} days, ${number(spent(row))} ${what}`,
      }));
      window.charts.frontier(places[index], { said: `Days of the training by ${below}; the table has the same numbers`, height: 250, points, below, beside: "days" });
    }
    place("numbers-table", el("table", {}, heads("accelerators", "days", "accelerator-hours", ...(priced ? ["cost"] : []), "MFU", "fastest layout"),
      el("tbody", {}, found.rows.map((row) => el("tr", {}, el("th", { scope: "row" }, `${number(row.accelerators)}${row.best ? " *" : ""}`),
        el("td", { "data-days": String(row.days) }, number(row.days)), el("td", {}, number(row.accelerator_seconds / 3600)), priced ? el("td", {}, number(row.cost)) : null, el("td", {}, percent(row.mfu)),
        el("td", {}, row.address ? el("a", { href: row.address }, row.layout) : row.layout))))));
    tidied();
  }

  // launches of the run's miniature on machines of one's own
  function measured(content) {
    if (!section("measured-part", content && content.launches.length)) return;
    place("measured", el("p", { class: "muted" }, content.words), el("table", {}, heads("machine", "layout", "launches", "step, predicted", "measured", "predicted to it", "peak, measured"),
      el("tbody", {}, content.launches.map((row) => el("tr", {}, el("th", { scope: "row" }, row.machine), el("td", {}, row.layout), el("td", {}, number(row.launches)),
        el("td", {}, amount(row.predicted_seconds, "s")), el("td", {}, amount(row.measured_seconds, "s")), el("td", {}, row.predicted_seconds ? change(row.measured_seconds, row.predicted_seconds) : "–"),
        el("td", {}, amount(row.measured_bytes, "byte")))))));
    tidied();
  }

  function show(content) {
    last = content;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : null;
    answers(content);
    const views = good(content.views);
    document.body.dataset.state = views.length ? "shown" : "refused";
    if (views.length) {
      for (const part of [cards, figures, time, memory, passes, traffic, products, assumptions]) part(views);
      if (focused) document.querySelector(`[data-focus="${focused}"]`)?.focus();
    }
    const width = document.getElementById("passes")?.clientWidth;  // once all is there: what is measured is laid out first
    tidied();
    drawLanes(width);
    document.body.dataset.shown = String(Number(document.body.dataset.shown || 0) + 1);
  }
  // Dash's own lists name roles that their elements may not have, and hide a field that the keyboard reaches
  function tidied() {
    for (const list of document.querySelectorAll(".dash-checklist")) {
      list.setAttribute("role", "group");
      list.setAttribute("aria-label", "switches");
      for (const label of list.querySelectorAll("label")) for (const name of ["role", "aria-selected"]) label.removeAttribute(name);
    }
    const wide = [...document.querySelectorAll("section")].map((part) => [part, part.scrollWidth > part.clientWidth + 1]);
    for (const [part, scrolls] of wide) if (scrolls) part.tabIndex = 0; else part.removeAttribute("tabindex");  // the keyboard reaches it
  }
  function unreached() {
    for (const field of document.querySelectorAll('.dash-dropdown-focus-target[tabindex="0"]')) {
      const button = field.nextElementSibling;
      field.tabIndex = -1;
      button.tabIndex = 0;
      button.setAttribute("aria-labelledby", `${button.id}-label ${button.id}-value`);
    }
  }
  let watched = false;
  function ready() {
    unreached();
    if (!watched) new MutationObserver(unreached).observe(document.body, { childList: true, subtree: true, attributeFilter: ["tabindex"] });
    watched = true;
    for (const where of document.querySelectorAll("[data-why]")) {
      if (!where.childElementCount) where.append(el("summary", {}, "Why?"), ...derivation(where.dataset.why));
    }
    if (window.innerWidth < 800) document.getElementById("controls-fold")?.removeAttribute("open");
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && show(last));
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawLanes(document.getElementById("passes").clientWidth), 150); });
  return { show, measured, numbers, ready, derivations: {}, el };
})();
