// The file's own part: unpacks the grid, and shows the state that the controls say. The pictures are explore.js's.
"use strict";
(async () => {
  const { show, el } = window.explore;
  const [NUMBER, TEXT, LIST] = ["\u0000", "\u0001", "\u0002"];
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  }
  const head = JSON.parse(new TextDecoder().decode(await unpacked("grid-head")));
  const planes = new Uint8Array(await unpacked("grid-numbers"));
  const count = planes.length / 4, bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) for (let index = 0; index < count; index++) bytes[4 * index + plane] = planes[plane * count + index];
  const numbers = new Float32Array(bytes.buffer);
  const starts = [0];
  for (const size of head.sizes) starts.push(starts.at(-1) + size);
  const axes = Object.entries(head.axes);
  const fold = document.getElementById("controls");

  function filled(shape, next) {
    if (shape === NUMBER) return next();
    if (shape === TEXT) return head.texts[next()];
    if (shape === LIST) return head.lists[next()];
    if (Array.isArray(shape)) return shape.map((each) => filled(each, next));
    if (shape && typeof shape === "object") return Object.fromEntries(Object.entries(shape).map(([key, each]) => [key, filled(each, next)]));
    return shape;
  }
  function contentAt(values) {
    let point = 0;
    for (const [name, allowed] of axes) {
      const index = allowed.findIndex((value) => String(value) === String(values[name]));
      if (index < 0) return outside(`${name} ${values[name]}: allowed are ${allowed.map(word).join(", ")}`);
      point = point * allowed.length + index;
    }
    const [shape, row] = head.points[point];
    if (shape < 0) return outside("this combination was not computed: it does not divide the model or the batch, or is far from the run's own layout");
    let column = 0;
    const columns = head.columns[shape];
    return filled(head.shapes[shape], () => numbers[starts[columns[column++]] + row]);
  }
  const outside = (why) => ({ title: head.title, command: head.command, views: [{ layout: "", wrong: [`outside of the grid: ${why}`] }] });
  const word = (value) => (value === null || value === "null" ? `as recorded` : value === true ? "on" : value === false ? "off" : String(value));

  // controls: those of the served page; what does not vary is shown, and held
  const values = { ...head.own };
  let second = null;
  let price = null;
  function hash() {
    const words = [...axes.map(([name]) => [name, values[name]]), ["price", price], ...(second ? axes.map(([name]) => [`B.${name}`, second[name]]) : [])];
    return `#${words.filter(([, value]) => value !== null).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
  }
  function read() {
    const given = Object.fromEntries(location.hash.slice(1).split("&").filter(Boolean).map((pair) => pair.split("=").map(decodeURIComponent)));
    for (const [name, allowed] of axes) {
      const of = (text) => { const known = allowed.find((value) => String(value) === text); return known === undefined ? text : known; };
      values[name] = given[name] === undefined ? (location.hash ? (allowed.includes(null) ? null : head.own[name]) : head.own[name]) : of(given[name]);
      if (given[`B.${name}`] !== undefined) second = { ...(second || head.own), [name]: of(given[`B.${name}`]) };
    }
    price = given.price ? Number(given.price) : null;
  }
  function priced(view) {
    const held = view.figures && view.figures.find((figure) => figure.quantity === "accelerator_seconds");
    if (!price || !held) return view;
    const numbers_ = [["GPU-hours", held.value / 3600, "1"], ["price of a GPU-hour", price, "1"]];
    view.figures.push({ quantity: "cost", unit: "1", value: (held.value / 3600) * price, published: null, source: null, compares: false, why: { formula: "{0} * {1}", numbers: numbers_ } });
    return view;
  }
  function draw() {
    const content = contentAt(values);
    if (second) {
      const other = contentAt(second);
      content.views = [...content.views, ...other.views];
    }
    content.views = content.views.map(priced);
    show(content);
    for (const [name] of axes) {
      const field = document.getElementById(name);
      if (![...field.options].some((option) => option.value === String(values[name]))) field.append(el("option", { value: String(values[name]) }, `${values[name]} (outside)`));
      field.value = String(values[name]);
    }
    document.getElementById("price").value = price ?? "";
    document.getElementById("drop").hidden = !second;
    history.replaceState(null, "", hash());
  }
  for (const [name, allowed] of axes) {
    const field = el("select", { id: name, onchange: () => { values[name] = allowed.find((value) => String(value) === field.value) ?? (field.value === "null" ? null : field.value); draw(); } },
      allowed.map((value) => el("option", { value: String(value) }, value === null ? `${head.accelerator} (as recorded)` : word(value))));
    document.getElementById(`field-${name}`).append(field);
  }
  document.getElementById("price").addEventListener("input", (event) => { price = Number(event.target.value) || null; draw(); });
  document.getElementById("keep").addEventListener("click", () => { second = { ...values }; draw(); });
  document.getElementById("drop").addEventListener("click", () => { second = null; draw(); });
  document.getElementById("own").addEventListener("click", () => { Object.assign(values, head.own); draw(); });
  window.addEventListener("hashchange", () => { second = null; read(); draw(); });
  fold.addEventListener("submit", (event) => event.preventDefault());
  read();
  window.explore.ready();
  window.explore.measured(head.measured);
  window.explore.numbers(head.numbers);
  draw();
})();
