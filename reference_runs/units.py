"""Base units, conversion of recorded quantities to them, and printing."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Every dimension has one base unit; a factor converts a recorded unit to it.
# MB is 10**6 and MiB is 2**20; a bit is 1/8 byte.
_PREFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

UNITS: dict[str, tuple[str, float]] = {
    "1": ("1", 1),
    "s": ("s", 1),
    "ms": ("s", 1e-3),
    "min": ("s", 60),
    "h": ("s", 3600),
    "day": ("s", 86400),
    "byte": ("byte", 1),
    "token": ("token", 1),
    "sample": ("sample", 1),
    "parameter": ("parameter", 1),
    "flop": ("flop", 1),
    "token/s": ("token/s", 1),
    "sample/s": ("sample/s", 1),
    "accelerator s": ("accelerator s", 1),
    "accelerator h": ("accelerator s", 3600),
    "byte/s": ("byte/s", 1),
    "bit/s": ("byte/s", 0.125),
    "flop/s": ("flop/s", 1),
    "W": ("W", 1),
    "J": ("J", 1),
    "MWh": ("J", 3.6e9),
}
for _prefix, _factor in (_PREFIXES | _BINARY).items():
    UNITS |= {f"{_prefix}B": ("byte", _factor), f"{_prefix}B/s": ("byte/s", _factor)}
    if _prefix in _PREFIXES:
        UNITS[f"{_prefix}bit/s"] = ("byte/s", _factor / 8)
        UNITS |= {f"{_prefix}{unit}": (unit, _factor) for unit in ("flop", "flop/s")}


def units_of(dimension: str) -> list[str]:
    """The recorded units that measure `dimension` (a base unit), base unit first."""
    names = [name for name, (base, _) in UNITS.items() if base == dimension]
    return sorted(names, key=lambda name: name != dimension)


def in_base_unit(value: float, unit: str, dimension: str) -> float:
    """`value` converted from `unit` to the base unit `dimension`; an int stays an int where that is exact.

    Raises:
        ValueError: the unit is unknown or measures something else; the text lists the allowed units.
    """
    known = UNITS.get(unit)
    if known is None or known[0] != dimension:
        of = "counts and ratios" if known and known[0] == "1" else known and known[0]
        measured = "an unknown unit" if known is None else f"a unit of {of}"
        raise ValueError(f"unit {unit!r} is {measured}; allowed: {', '.join(units_of(dimension))}")
    factor = known[1]
    if factor == 1:
        return value
    product = value * factor
    return int(product) if isinstance(value, int) and float(product).is_integer() else product


def printed(value: float | str | bool | tuple[int | str, ...] | None, unit: str) -> str:
    """`value` for people: counts in full with separators, times and rates with four digits and a prefix."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    if unit in ("byte/s", "flop/s", "flop") and abs(value) >= 1e3:
        thousands = min(5, int(math.log10(abs(value))) // 3)
        prefix = [*_PREFIXES][thousands - 1]
        return f"{value / _PREFIXES[prefix]:,.4g} {prefix}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def printed_alike(values: Sequence[float | None], unit: str) -> list[str]:
    """`values` of one unit as a column or a line shows them: one prefix, and so many decimals that the largest has four
    digits; counts in full, "-" for None.
    """
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    if all(value is None or isinstance(value, int) for value in values) or not known:
        return [printed(value, unit) for value in values]
    scale, prefix = 1.0, ""
    if unit in ("byte/s", "flop/s", "flop") and max(known) >= 1e3:
        prefix = [*_PREFIXES][min(5, int(math.log10(max(known))) // 3) - 1]
        scale, prefix = _PREFIXES[prefix], f" {prefix}"
    largest = max(known) / scale
    decimals = max(0, 3 - math.floor(math.log10(largest))) if largest else 0
    return [
        "-" if value is None else f"{value / scale:,.{decimals}f}{prefix}" if math.isfinite(value) else str(value)
        for value in values
    ]
