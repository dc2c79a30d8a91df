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

  // what `drawn` makes of the two scales, both logarithmic, over a grid
  function logarithmic(where, { said, height, across, up, below, beside }, drawn) {
    const [left, right] = across.map(Math.log10), [low, high] = up.map(Math.log10);
    const x = (value) => per((Math.log10(value) - left) / (right - left)), y = (value) => per((high - Math.log10(value)) / (high - low));
    const marks = (from, to) => {
      const found = [], factors = to - from > 2.5 ? [1] : to - from > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
      for (let power = Math.floor(from); power <= to; power++) {
        for (const factor of factors) if (power + Math.log10(factor) >= from && power + Math.log10(factor) <= to) found.push(factor * 10 ** power);
      }
      return found.map((value) => Number(value.toPrecision(3)));
    };
    const grid = [
      ...marks(left, right).map((value) => `<line class="grid" x1="${x(value)}" x2="${x(value)}" y1="0" y2="100%"/>${label(x(value), "100%", "middle", value.toLocaleString("en-US"), 'dy="16"')}`),
      ...marks(low, high).map((value) => `<line class="grid" x1="0" x2="100%" y1="${y(value)}" y2="${y(value)}"/>${label(-8, y(value), "end", value.toLocaleString("en-US"), 'dy="4"')}`),
    ];
    picture(where, said, height, [...grid, ...drawn(x, y, 10 ** left, right - left, high - low)].join(""), below, beside);
  }
  const point = (x, y, words, style) => `<circle ${style} cx="${x}" cy="${y}" r="5.5"><title>${escaped(words)}</title></circle>`;

  // points with words, numbered in each series, under roofs: {ridge, peak}
  function roofline(where, { roofs, points, ...rest }) {
    const intensities = [...points.map((each) => each.x), ...roofs.map((roof) => roof.ridge)], least = Math.min(...intensities) / 2;
    const slope = (roof) => (roof.peak * least) / roof.ridge;
    const rates = [...points.map((each) => each.y), ...roofs.flatMap((roof) => [roof.peak, slope(roof)])];
    const ranges = { across: [least, Math.max(...intensities) * 2], up: [Math.min(...rates) / 1.5, Math.max(...rates) * 1.5] };
    logarithmic(where, { ...rest, ...ranges }, (x, y, _, wide, high) => [
      ...roofs.map((roof) => `<g class="roof"><line x1="0" y1="${y(slope(roof))}" x2="${x(roof.ridge)}" y2="${y(roof.peak)}"/><line x1="${x(roof.ridge)}" y1="${y(roof.peak)}" x2="100%" y2="${y(roof.peak)}"/></g>`),
      ...points.map((each) => point(x(each.x), y(each.y), each.words, `style="fill: var(${each.colour})"`)),
      ...neighbours(points, 0.13 * wide, 0.07 * high).map((group) => {
        const middle = Math.sqrt(group[0].x * group.at(-1).x), series = group[0].series, numbers = group.map((each) => each.number).sort((one, other) => one - other);
        return label(x(middle), y(group[0].y), "middle", series + numbers.join(","), series === "A" ? 'dy="-11"' : 'dy="19"');
      }),
    ]);
  }

  // named points, of which the best are filled and joined, and the one asked for has a ring
  function frontier(where, { points, ...rest }) {
    const range = (values) => [Math.min(...values) / 1.35, Math.max(...values) * 1.35];
    const best = points.filter((each) => each.best).sort((one, other) => one.x - other.x);
    logarithmic(where, { ...rest, across: range(points.map((each) => each.x)), up: range(points.map((each) => each.y)) }, (x, y) => [
      ...best.slice(1).map((each, index) => `<line class="front" x1="${x(best[index].x)}" y1="${y(best[index].y)}" x2="${x(each.x)}" y2="${y(each.y)}"/>`),
      ...points.map((each) => point(x(each.x), y(each.y), each.words, `class="${each.best ? "best" : "other"}"`) +
        (each.asked ? `<circle class="asked" cx="${x(each.x)}" cy="${y(each.y)}" r="10"/>` : "") + label(x(each.x), y(each.y), "start", each.name, 'dx="9" dy="-7"')),
    ]);
  }
  return { bars, roofline, frontier };
})();
