// Tables and pictures of a state: `explore.show(content)`, with what suite/report/explore/content.py says of it.
"use strict";
window.explore = (() => {
  const GIB = 2 ** 30;
  const { column, interval, amount, number, percent, read, difference, figureOf } = window.amounts;
  const CARDS = ["step_seconds", "peak_bytes", "mfu", "tokens_per_second", "training_seconds", "accelerator_seconds", "cost"];
  const SENDING = ["tensor parallel", "context parallel", "pipeline", "data parallel", "tied embedding", "expert parallel"];
  const WAITING = ["bubble", "launch", "overhead"];
  const MEMORY = ["weights", "gradients", "master weights", "moments", "activations", "logits", "a layer's backward pass",
    "communication buffers and gathered weights", "layers still to do", "temporary", "activations of later micro-batches",
    "gradient copy", "copies of weights in the products' format"];
  const PASSES = { F: "forward", B: "backward", I: "gradients of inputs", W: "gradients of weights" };
  const TONES = { "fits": "fits", "likely to fit": "doubtful", "does not fit": "refused" };
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
  // a text with places to break after commas and spaces, and nowhere inside a word
  const pieces = (text) => text.split(/(?<=,)|(?<= )/).flatMap((piece) => [el("span", { class: "word" }, piece.trimEnd()), piece.endsWith(" ") ? " " : el("wbr")]);
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
  // a table of rows [name, ...cells]; a cell is a text, an element, or [attributes, content]; on a phone each row is a block
  function table(heads, rows, { texts = [], caption, ...attributes } = {}) {
    const aligned = (place) => (texts.includes(heads[place]) ? { class: "text" } : {});
    const head = el("thead", {}, el("tr", {}, heads.map((name, place) => (name ? el("th", { scope: "col", ...aligned(place) }, name) : el("td", { class: "unnamed" })))));
    const body = rows.map((row) => (row instanceof Node ? row : el("tr", {}, row.map((cell, place) => {
      const [more, content] = Array.isArray(cell) && !(cell[0] instanceof Node) ? cell : [{}, cell];
      return place === 0 ? el("th", { scope: "row", ...more }, content) : el("td", { "data-head": heads[place], ...aligned(place), ...more }, content);
    }))));
    return el("table", attributes, caption ? el("caption", {}, caption) : null, head, el("tbody", {}, body));
  }
  const headed = (name, unit) => (unit ? `${name}, ${unit}` : name);

  // what is said first
  function answers(content) {
    const more = [];
    const said = content.views.map((view, index) => {
      const name = letter(content.views, index);
      if (view.wrong.length) return view.wrong.map((line) => el("p", { class: "refused", role: "alert" }, name ? `${name}: ${line}` : line));
      const words = [];
      const needed = peak(view);
      if (needed && view.memory_limit) {
        const { unit, text } = column([needed, view.memory_limit], "byte"), room = `${text(needed)} of ${text(view.memory_limit)} ${unit}`;
        const beyond = view.intervals.peak_bytes ? ` (80%: ${interval(view.intervals.peak_bytes, "peak_bytes")})` : "";
        words.push(`${view.fits[0].toUpperCase()}${view.fits.slice(1)}: ${room} usable${beyond}`);
      }
      const seconds = whole(view);
      if (seconds) words.push(`${read(seconds, "step_seconds")} a step${view.intervals.step_seconds ? ` (80%: ${interval(view.intervals.step_seconds, "step_seconds")})` : ""}`);
      const on = view.accelerators ? `${number(view.accelerators)} × ${view.accelerator || "accelerator"}` : "";
      if (on || view.layout) more.push(el("p", { class: "muted" }, name ? el("b", { class: "letter" }, name) : null, pieces([on, view.layout].filter(Boolean).join(": "))));
      more.push(...view.not_predicted.map((reason) => el("p", { class: "muted" }, `not predicted: ${reason}`)));
      return el("p", { class: TONES[view.verdict] || "plain", role: "status" }, name ? el("b", { class: "letter" }, name) : null, words.join(" · ") || "No layout is known: counts alone");
    });
    place("answer", said.flat());
    place("answer-more", more);
    place("title", pieces(content.title));
    place("command", pieces(content.command));
    if (searched && content.search && content.search !== searched) {  // they were another question's
      searched = null;
      for (const id of ["numbers-words", "numbers-pictures", "numbers-table"]) place(id);
    }
  }
  function cards(views) {
    const made = CARDS.map((quantity) => {
      const found = views.map((view) => view.figures.find((figure) => figure.quantity === quantity));
      if (!found.some(Boolean)) return null;
      const values = found.map((figure, index) => el("span", { class: "value" }, views.length > 1 ? el("b", { class: "letter" }, "AB"[index]) : null, figure ? read(figure.value, quantity) : "–"));
      const notes = [];
      if (views.length === 1 && views[0].intervals[quantity]) notes.push(`80%: ${interval(views[0].intervals[quantity], quantity)}`);
      if (views.length === 1 && quantity === "peak_bytes" && views[0].memory_limit) notes.push(`usable: ${amount(views[0].memory_limit, "byte")}`);
      if (views.length > 1 && found[0] && found[1]) notes.push(`B: ${difference(found[1].value, found[0].value, quantity)}`);
      const published = found.find((figure) => figure && figure.published !== null && figure.compares);
      if (published && views.length === 1) notes.push(`published ${read(published.published, quantity)}`);
      return el("div", { class: "card" }, el("dt", {}, figureOf(quantity)[0]), el("dd", {}, values, notes.map((note) => el("span", { class: "note" }, note))));
    });
    place("cards", made.some(Boolean) ? el("dl", { class: views.length > 1 ? "two" : "" }, made) : null);
  }

  // why a figure is what it is: its formula with names, with numbers, and where it is from
  function put(why, told) {
    const values = why.numbers.map(told);
    if (why.formula === "sum") return values.join(" + ");
    return why.formula.replace(/\{(\d+)\}/g, (_, index) => values[index]).replaceAll(" * ", " × ").replaceAll(" / ", " ÷ ").replaceAll(" - ", " − ");
  }
  function worked(letter_, what, why, result) {
    const same = new Set(why.numbers.map(([, , unit]) => unit)).size === 1 && why.formula === "sum";  // what is added has one unit
    const { unit: name_, text } = same ? column(why.numbers.map(([, value]) => value), why.numbers[0][2]) : {};
    const told = ([, value, unit]) => (same ? [text(value), name_].filter(Boolean).join("\u00a0") : amount(value, unit));
    const named = why.formula === "sum" ? null : el("p", { class: "formula" }, pieces(`${what} = ${put(why, ([name]) => name)}`));
    return [
      letter_ ? el("b", { class: "letter" }, letter_) : null, named,
      el("p", { class: "formula" }, pieces(`${named ? "" : `${what} `}= ${put(why, told)} = `), el("b", {}, result)),
      el("table", { class: "numbers" }, el("tbody", {}, why.numbers.map((each) => el("tr", {}, el("th", { scope: "row" }, each[0]), el("td", {}, told(each)))))),
    ];
  }
  const ofFigure = (quantity) => (view) => view.figures.filter((figure) => figure.quantity === quantity).map((figure) => [figureOf(quantity)[0], figure.why, read(figure.value, quantity)]);
  const ofPart = (part) => (view) => (view.worked[part] || []).map(({ name, value, unit, why }) => [name, why, amount(value, unit)]);
  const PARTS = { schedule: ofFigure("bubble_fraction"), traffic: ofPart("traffic"), roofline: ofPart("roofline") };
  function reasons(key, views) {
    const of = PARTS[key] || ofFigure(key);
    return [...views.flatMap((view, index) => of(view).flatMap((each) => worked(letter(views, index), ...each))), ...derivation(key)];
  }
  // `names` of code as such
  const coded = (text) => text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
  function derivation(key) {
    const known = (window.explore.derivations || {})[key] || [], sources = [...new Set(known.map((one) => one.source).filter(Boolean))];
    return [
      sources.length ? el("p", { class: "source" }, el("b", {}, sources.length > 1 ? "Sources: " : "Source: "), coded(sources.join("; "))) : null,
      ...known.map((one) => el("details", {}, el("summary", {}, coded(one.title)), el("pre", { tabindex: 0 }, one.text))),
    ].filter(Boolean);
  }
  // each part's own "Why?", which keeps open with new numbers
  function explain(views) {
    for (const where of document.querySelectorAll("[data-why]")) {
      const body = where.lastElementChild;
      if (!body || body.tagName !== "DIV") continue;
      if (where.open) body.replaceChildren(...reasons(where.dataset.why, views).filter(Boolean)); else body.replaceChildren();
    }
  }
  function figures(views) {
    if (!section("figures-part", views.some((view) => view.figures.length))) return;
    const two = views.length > 1, heads = two ? ["figure", "A", "B", "B is", "published", "published is", ""] : ["figure", "predicted", "published", "published is", ""];
    const quantities = [...new Set(views.flatMap((view) => view.figures.map((figure) => figure.quantity)))];
    const rows = quantities.flatMap((quantity) => {
      const found = views.map((view) => view.figures.find((figure) => figure.quantity === quantity)), known = found.find(Boolean);
      const id = `why-${quantity}`, [name, unit_] = figureOf(quantity);
      const { unit, text } = column([...found.map((figure) => figure?.value), known.published].filter((value) => value !== null && value !== undefined), unit_);
      const cells = found.map((figure) => (figure ? [{ "data-quantity": quantity, "data-value": String(figure.value) }, text(figure.value)] : "–"));
      if (two) cells.push(found[0] && found[1] ? difference(found[1].value, found[0].value, quantity) : "–");
      cells.push(...(known.published === null ? ["–", "–"] : [[{ title: known.source }, text(known.published)], known.compares ? difference(known.published, known.value, quantity) : "not compared"]));
      const detail = el("tr", { id, class: "why", hidden: !opened.has(quantity) }, el("td", { colspan: heads.length }));
      const fill = () => detail.firstChild.replaceChildren(...(opened.has(quantity) ? reasons(quantity, views) : []).filter(Boolean));
      fill();
      const button = el("button", {
        type: "button", class: "whybutton", "aria-expanded": String(opened.has(quantity)), "aria-controls": id, "aria-label": `Why ${name}?`, "data-focus": id,
        onclick: () => {
          if (opened.has(quantity)) opened.delete(quantity); else opened.add(quantity);
          detail.hidden = !opened.has(quantity);
          button.setAttribute("aria-expanded", String(!detail.hidden));
          fill();
        },
      }, "Why?");
      return [[headed(name, quantity === "accelerator_seconds" ? "" : unit), ...cells, [{ class: "action" }, button]], detail];
    });
    place("figures", table(heads, rows, { class: "stacks" }), el("p", { class: "muted" }, pieces(views[0].published_elsewhere || "")));
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
    const { unit, text } = column(views.flatMap((view) => Object.values(view.terms)), "step s");
    const rows = terms.map((term) => [term, ...views.flatMap((view, index) => {
      const seconds = view.terms[term] || 0;
      return [[{ class: "barcell" }, el("span", { class: `bar ${kind(term)}`, style: `width: ${(100 * seconds) / most}%` })], text(seconds), [{ class: "share" }, percent(seconds / totals[index])]];
    })]);
    const heads = ["term", ...views.flatMap((view, index) => ["", `${views.length > 1 ? `${letter(views, index)}: ` : ""}time, ${unit}`, "share"])];
    place("time", strips, table(heads, rows, { class: views.length > 1 ? "bars two" : "bars" }));
  }

  // memory of each stage: stacked bars
  function memory(views) {
    const stages = views.map((view) => view.instants.length);
    if (!section("memory-part", stages.some((count) => count))) return;
    const what = views[0].bars || "pipeline stage";  // a traced step has a bar for each phase
    const places = views.flatMap((view, index) => view.instants.map((instant, stage) => (view.bars ? instant : `${letter(views, index)} ${stage}`.trim())));
    const names = MEMORY.filter((name) => views.some((view) => view.memory[name]));
    names.push(...new Set(views.flatMap((view) => Object.keys(view.memory).filter((name) => !MEMORY.includes(name)))));
    const parts = names.map((name) => ({
      name, colour: `--m${(MEMORY.indexOf(name) + 13) % 13}`, values: views.flatMap((view, index) => view.memory[name] || Array(stages[index]).fill(0)).map((bytes) => bytes / GIB),
    }));
    const limits = [...new Set(views.map((view) => view.memory_limit).filter(Boolean))].map((limit) => ({ value: limit / GIB, words: `${amount(limit, "byte")} of an accelerator` }));
    const fullest = views.map((view, index) => {
      const sums = view.instants.map((_, stage) => Object.values(view.memory).reduce((sum, part) => sum + part[stage], 0));
      const stage = sums.indexOf(Math.max(...sums));
      const named = view.bars ? `${view.instants[stage]} is the fullest phase` : `stage ${stage} is fullest, ${view.instants[stage]}`;
      return `${letter(views, index)} ${named}: ${amount(sums[stage], "byte")}`.trim();
    });
    place("memory-words", el("p", { class: "muted" }, fullest.join("; ")), el("p", { class: "legend" }, parts.map((part) => el("span", {}, el("i", { style: `background: var(${part.colour})` }), part.name))));
    window.charts.bars(document.getElementById("memory-picture"), {
      said: `Memory of each ${what} by part. ${fullest.join("; ")}`, height: 300, places, parts, limits, unit: "GiB", below: what,
      told: (part, at) => `${views[0].bars ? places[at] : `stage ${places[at]}`}: ${amount(part.values[at] * GIB, "byte")} ${part.name}`,
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

  // modules of a traced model: seconds of all phases, and bytes that a micro-batch keeps
  function modules(views) {
    const rows = views[0].modules || [];
    if (!section("modules-part", rows.length)) return;
    const total = rows.reduce((sum, row) => sum + (row.seconds || 0), 0), most = Math.max(...rows.map((row) => row.seconds || 0));
    const time_ = column(rows.map((row) => row.seconds), "step s"), kept = column(rows.map((row) => row.kept_bytes), "byte");
    place("modules", table(["module", "", `time, ${time_.unit}`, "share", `kept by a micro-batch, ${kept.unit}`], rows.map((row) => [row.name,
      [{ class: "barcell" }, el("span", { class: "bar computing", style: `width: ${most ? (100 * row.seconds) / most : 0}%` })], time_.text(row.seconds),
      [{ class: "share" }, total ? percent(row.seconds / total) : "–"], kept.text(row.kept_bytes)]), { class: "bars stacks" }));
  }

  // messages over links
  function traffic(views) {
    const shown = views.filter((view) => view.traffic && view.traffic.length);
    if (!section("traffic-part", shown.length)) return;
    const most = Math.max(...shown.flatMap((view) => view.traffic.map((row) => row.seconds)));
    const of = (name, unit) => column(shown.flatMap((view) => view.traffic.map((row) => row[name])), unit);
    const rate = of("bytes_per_second", "byte/s"), size = of("payload_bytes", "byte"), time_ = of("seconds", "step s");
    place("traffic", views.map((view, index) => (view.traffic && view.traffic.length ? table(
      ["collective", "ranks", "over", `rate, ${rate.unit}`, `a step, ${size.unit}`, "messages", "", `time, ${time_.unit}`],
      view.traffic.map((row) => [`${row.axis} ${row.operation.replaceAll("_", "-")}`, number(row.ranks), row.leaves_node ? "network" : "node's links", rate.text(row.bytes_per_second), size.text(row.payload_bytes),
        number(row.messages), [{ class: "barcell" }, el("span", { class: `bar ${row.leaves_node ? "network" : "sending"}`, style: `width: ${(100 * row.seconds) / most}%` })], time_.text(row.seconds)]),
      { class: "bars stacks", caption: letter(views, index), texts: ["over"] },
    ) : null)));
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
    const every = shown.flatMap(([each]) => each.points), intensity = column(every.map((point) => point.intensity), ""), ridge = column(every.map((point) => point.intensity / point.ridge), "");
    const rate = column(every.map((point) => point.rate / 1e12), "");
    place("roofline-table", shown.map(([each, index]) => table(["GEMM, forward", "M × N × K", "flop per byte", "of the ridge", "Tflop/s", "of the peak", "limited by"],
      each.points.map((point, place) => [`${place + 1} ${point.part}${point.products > 1 ? `, ${number(point.products)} of them` : ""}`, point.sizes ? point.sizes.map(number).join(" × ") : "one kernel",
        intensity.text(point.intensity), `${ridge.text(point.intensity / point.ridge)} ×`, rate.text(point.rate / 1e12), percent(point.rate / (point.ridge * each.memory_bytes_per_second)), point.intensity < point.ridge ? "memory" : "arithmetic"]),
      { class: "stacks", caption: letter(views, index), texts: ["limited by"] })));
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
    const priced = found.rows[0].cost !== null, what = priced ? "cost" : "GPU-hours";
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
    const days = column(found.rows.map((row) => row.days), ""), hours = column(found.rows.map((row) => row.accelerator_seconds), "accelerator s"), cost = column(found.rows.map((row) => row.cost), "");
    place("numbers-table", table(["accelerators", "days", "GPU-hours", ...(priced ? ["cost"] : []), "MFU", "fastest layout"],
      found.rows.map((row) => [`${number(row.accelerators)}${row.best ? " *" : ""}`, [{ "data-days": String(row.days) }, days.text(row.days)], hours.text(row.accelerator_seconds),
        ...(priced ? [cost.text(row.cost)] : []), percent(row.mfu), row.address ? el("a", { href: row.address }, pieces(row.layout)) : el("span", {}, pieces(row.layout))]), { class: "stacks", texts: ["fastest layout"] }));
    tidied();
  }

  // launches of the run's miniature on machines of one's own
  function measured(content) {
    if (!section("measured-part", content && content.launches.length)) return;
    const time_ = column(content.launches.flatMap((row) => [row.predicted_seconds, row.measured_seconds]), "step s"), memory_ = column(content.launches.map((row) => row.measured_bytes), "byte");
    place("measured", el("p", { class: "muted" }, content.words), table(["machine", "layout", "launches", `predicted, ${time_.unit}`, `measured, ${time_.unit}`, "measured is", `peak, ${memory_.unit}`],
      content.launches.map((row) => [row.machine, el("span", {}, pieces(row.layout)), number(row.launches), time_.text(row.predicted_seconds), time_.text(row.measured_seconds),
        difference(row.measured_seconds, row.predicted_seconds, "step_seconds"), memory_.text(row.measured_bytes)]), { class: "stacks", texts: ["layout"] }));
    tidied();
  }

  function show(content) {
    last = content;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : null;
    answers(content);
    const views = good(content.views);
    document.body.dataset.state = views.length ? "shown" : "refused";
    if (views.length) {
      for (const part of [cards, figures, time, memory, modules, passes, traffic, products, assumptions, explain]) part(views);
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
      if (where.childElementCount) continue;
      where.append(el("summary", {}, "Why?"), el("div"));
      where.addEventListener("toggle", () => last && explain(good(last.views)));
    }
    if (window.innerWidth < 800) document.getElementById("controls-fold")?.removeAttribute("open");
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && show(last));
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawLanes(document.getElementById("passes")?.clientWidth), 150); });
  return { show, measured, numbers, ready, derivations: {}, el };
})();
