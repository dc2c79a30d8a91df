// Two kinds of pictures, as SVG: stacked bars, and points under a roofline. Places are in percent of the picture, so that
// nothing is measured or drawn again when it becomes wider; colours are the style sheet's.
"use strict";
window.charts = (() => {
  const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const per = (share) => `${(100 * share).toFixed(3)}%`;
  const label = (x, y, anchor, words, more = "") => `<text x="${x}" y="${y}" text-anchor="${anchor}" ${more}>${escaped(words)}</text>`;

  // 1, 2 or 5 times a power of ten: about `wanted` of them up to `highest`
  function steps(highest, wanted) {
    const least = highest / wanted, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= least);
    return Array.from({ length: Math.floor(highest / step) + 1 }, (_, index) => Number((index * step).toPrecision(12)));
  }
  function picture(where, said, height, drawn, below, beside) {
    where.classList.add("chart");
    where.innerHTML = `<svg role="img" aria-label="${escaped(said)}" width="100%" height="${height}">${drawn}` +
      `<line class="axis" x1="0" x2="0" y1="0" y2="100%"/><line class="axis" x1="0" x2="100%" y1="100%" y2="100%"/>` +
      `<g class="name">${label("50%", "100%", "middle", below, 'dy="34"')}<svg x="-46" y="50%" overflow="visible">${label(0, 0, "middle", beside, 'transform="rotate(-90)"')}</svg></g></svg>`;
  }

  // a bar at each place, of parts; dashed lines at limits: {value, words}
  function bars(where, { said, height, places, parts, limits, unit, below, told }) {
    const sums = places.map((_, place) => parts.reduce((sum, part) => sum + part.values[place], 0));
    const highest = 1.1 * Math.max(...sums, ...limits.map((limit) => limit.value));
    const wide = 1 / places.length, every = Math.ceil(places.length / 16), few = places.length > 6 ? 3 * every : 1;  // of a phone
    const grid = steps(highest, 6).map((value) => {
      const y = per(1 - value / highest);
      return `<line class="grid" x1="0" x2="100%" y1="${y}" y2="${y}"/>${label(-8, y, "end", value.toLocaleString("en-US"), 'dy="4"')}`;
    });
    const grown = places.map(() => 0);
    const boxes = parts.map((part) => `<g style="fill: var(${part.colour})">${part.values.map((value, place) => {
      if (!value) return "";
      grown[place] += value;
      return `<rect x="${per((place + 0.08) * wide)}" width="${per(0.84 * wide)}" y="${per(1 - grown[place] / highest)}" height="${per(value / highest)}"><title>${escaped(told(part, place))}</title></rect>`;
    }).join("")}</g>`);
    const below_ = places.map((name, place) => (place % every ? "" : label(per((place + 0.5) * wide), "100%", "middle", name, `dy="16"${place % few ? ' class="fine"' : ""}`)));
    const lines = limits.map((limit) => {
      const y = per(1 - limit.value / highest);
      return `<line class="limit" x1="0" x2="100%" y1="${y}" y2="${y}"/>${label("100%", y, "end", limit.words, 'dy="-5" class="limit"')}`;
    });
    picture(where, said, height, [...grid, ...boxes, ...below_, ...lines].join(""), below, unit);
  }

  // points that are too close for a name each, from the left
  function neighbours(points, across, up) {
    const groups = [], near = (one, other, room) => Math.abs(Math.log10(one / other)) < room;
    for (const point of [...points].sort((one, other) => one.x - other.x)) {
      const group = groups.find(([first]) => first.series === point.series && near(point.x, first.x, across) && near(point.y, first.y, up));
      if (group) group.push(point); else groups.push([point]);
    }
    return groups;
  }

  // points with words, numbered in each series, and roofs: {ridge, peak}; both scales logarithmic
  function roofline(where, { said, height, roofs, points, below, beside }) {
    const across = [...points.map((point) => point.x), ...roofs.map((roof) => roof.ridge)];
    const up = [...points.map((point) => point.y), ...roofs.map((roof) => roof.peak)];
    const [left, right] = [Math.min(...across) / 2, Math.max(...across) * 2].map(Math.log10);
    const slope = Math.min(...roofs.map((roof) => (roof.peak * 10 ** left) / roof.ridge));
    const [low, high] = [Math.min(...up, slope) / 1.5, Math.max(...up) * 1.5].map(Math.log10);
    const x = (value) => per((Math.log10(value) - left) / (right - left)), y = (value) => per((high - Math.log10(value)) / (high - low));
    const marks = (from, to) => {
      const found = [];
      for (let power = Math.floor(from); power <= to; power++) {
        for (const factor of to - from > 2.5 ? [1] : [1, 2, 5]) if (power + Math.log10(factor) >= from && power + Math.log10(factor) <= to) found.push(factor * 10 ** power);
      }
      return found.map((value) => Number(value.toPrecision(3)));
    };
    const grid = [
      ...marks(left, right).map((value) => `<line class="grid" x1="${x(value)}" x2="${x(value)}" y1="0" y2="100%"/>${label(x(value), "100%", "middle", value.toLocaleString("en-US"), 'dy="16"')}`),
      ...marks(low, high).map((value) => `<line class="grid" x1="0" x2="100%" y1="${y(value)}" y2="${y(value)}"/>${label(-8, y(value), "end", value.toLocaleString("en-US"), 'dy="4"')}`),
    ];
    const lines = roofs.map((roof) => `<g class="roof"><line x1="0" y1="${y((roof.peak * 10 ** left) / roof.ridge)}" x2="${x(roof.ridge)}" y2="${y(roof.peak)}"/><line x1="${x(roof.ridge)}" y1="${y(roof.peak)}" x2="100%" y2="${y(roof.peak)}"/></g>`);
    const drawn = points.map((point) => `<circle style="fill: var(${point.colour})" cx="${x(point.x)}" cy="${y(point.y)}" r="5.5"><title>${escaped(point.words)}</title></circle>`);
    for (const group of neighbours(points, 0.13 * (right - left), 0.07 * (high - low))) {
      const middle = Math.sqrt(group[0].x * group.at(-1).x), series = group[0].series, numbers = group.map((point) => point.number).sort((one, other) => one - other);
      drawn.push(label(x(middle), y(group[0].y), "middle", series + numbers.join(","), series === "A" ? 'dy="-11"' : 'dy="19"'));
    }
    picture(where, said, height, [...grid, ...lines, ...drawn].join(""), below, beside);
  }
  return { bars, roofline };
})();
