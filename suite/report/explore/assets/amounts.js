// Numbers in words: one unit and as many decimals for all numbers of a column, differences with their direction.
"use strict";
window.amounts = (() => {
  const UNITS = {
    "s": [[86400, "days"], [3600, "h"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
    "step s": [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
    "byte": [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "bytes"]],
    "byte/s": [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"]],
    "flop": [[1e21, "Zflop"], [1e18, "Eflop"], [1e15, "Pflop"], [1e12, "Tflop"], [1e9, "Gflop"]],
    "flop/s": [[1e15, "Pflop/s"], [1e12, "Tflop/s"], [1e9, "Gflop/s"]],
    "accelerator s": [[3600, "h"]], "J": [[3.6e9, "MWh"], [3.6e6, "kWh"], [1, "J"]], "token/s": [[1, "tokens/s"]], "W": [[1, "W"]],
    "share": [[0.01, "%"]], "parameters": [[1e9, "billion"], [1e6, "million"], [1, ""]],
  };
  // name, unit, and the words for more and for less of each figure
  const FIGURES = {
    step_seconds: ["step time", "step s", "slower", "faster"], peak_bytes: ["peak memory", "byte", "more", "less"], mfu: ["MFU", "share", "higher", "lower"],
    hfu: ["HFU", "share", "higher", "lower"], tokens_per_second: ["tokens per second", "", "faster", "slower"], bubble_fraction: ["pipeline bubble", "share", "more", "less"],
    training_seconds: ["training time", "s", "longer", "shorter"], accelerator_seconds: ["GPU-hours", "accelerator s", "more", "less"],
    energy_joules: ["energy of the accelerators", "J", "more", "less"], cost: ["cost", "", "more", "less"], parameters: ["parameters", "parameters", "more", "less"],
  };
  const figureOf = (quantity) => FIGURES[quantity] || [quantity.replaceAll("_", " "), "", "more", "less"];
  const fixed = (value, decimals) => value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });

  // the unit of these values, and how each of them is written: four digits of the largest
  function column(values, unit, digits = 4) {
    const known = values.filter((value) => Number.isFinite(value)).map(Math.abs), largest = Math.max(0, ...known);
    const units = UNITS[unit] || [[1, ""]], [factor, name] = units.find(([least]) => largest >= least) || units.at(-1);
    const scaled = largest / factor, isWhole = known.every((value) => Number.isInteger(value / factor));
    const decimals = isWhole || scaled === 0 ? 0 : unit === "share" ? 1 : unit === "accelerator s" && scaled >= 100 ? 0 : Math.min(3, Math.max(0, digits - 1 - Math.floor(Math.log10(scaled))));
    const least = 0.5 * 10 ** -decimals;
    const text = (value) => {
      if (!Number.isFinite(value)) return "–";
      return value !== 0 && Math.abs(value / factor) < least ? `< ${fixed(10 ** -decimals, decimals)}` : fixed(value / factor, decimals);
    };
    return { unit: name, text };
  }
  function amount(value, unit) {
    const { unit: name, text } = column([value], unit);
    return [text(value), name].filter(Boolean).join(name === "%" ? "" : "\u00a0");
  }
  // the 80% interval of a figure
  function interval(ends, quantity) {
    const { unit, text } = column(ends, figureOf(quantity)[1], 2), [least, most] = ends.map(text);
    return least === most ? `${least}\u00a0${unit}` : `${least} to\u00a0${most}\u00a0${unit}`;
  }
  const number = (value) => amount(value, "");
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  function read(value, quantity) {
    const [, unit] = figureOf(quantity);
    if (unit === "accelerator s") return column([value], unit).text(value);
    return amount(value, unit);
  }
  // how `value` differs from `reference`: "3.3% slower"
  function difference(value, reference, quantity) {
    if (!Number.isFinite(value) || !Number.isFinite(reference) || !reference) return "–";
    const [, , more, less] = figureOf(quantity), share = percent(Math.abs(value / reference - 1));
    return share === "0.0%" ? "equal" : `${share} ${value > reference ? more : less}`;
  }
  return { column, interval, amount, number, percent, read, difference, figureOf };
})();
