"""Numbers in columns: one unit and so many decimals for all of a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

DIGITS = 3  # of the smallest number of a column
MOST_DECIMALS = 6
DAY = 86400.0
DURATIONS = (("days", DAY), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0))
ENERGIES = (("MWh", 3.6e9), ("kWh", 3.6e6))


def fixed(values: Sequence[float], digits: int = DIGITS) -> list[str]:
    """The numbers with the decimals that give the smallest of them so many digits; an infinite one is "inf"."""
    decimals = max((_decimals(value, digits) for value in values if value and math.isfinite(value)), default=0)
    return [f"{value:,.{decimals}f}" for value in values]


def _decimals(value: float, digits: int) -> int:
    return min(MOST_DECIMALS, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def in_one_unit(values: Sequence[float], units: Sequence[tuple[str, float]]) -> tuple[str, list[float]]:
    """The name of the largest unit of which every value has one or more, else the smallest; the values in it."""
    least = min(map(abs, values), default=0.0)
    name, factor = next((unit for unit in units if least >= unit[1]), units[-1])
    return name, [value / factor for value in values]


def duration_column(seconds: Sequence[float]) -> tuple[str, list[str]]:
    """Title and cells of durations: days, or less where one of them is shorter than a day."""
    name, scaled = in_one_unit(seconds, DURATIONS)
    return name, fixed(scaled)


def energy_column(joules: Sequence[float]) -> tuple[str, list[str]]:
    """Title and cells of energies: MWh, or kWh where one of them is smaller."""
    name, scaled = in_one_unit(joules, ENERGIES)
    return name, fixed(scaled)


def percent(share: float) -> str:
    """A share in percent with one decimal, "54.8 %"."""
    return f"{100 * share:,.1f} %"


def more_or_less(change: float, of: str, *, least: float = 0.0) -> str:
    """A relative change in words: "17.1 % more time"; empty where it is smaller than `least`."""
    if abs(change) < least:
        return ""
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'} {of}"
