"""The numbers of accelerators of a plan as a picture: days against their number, and against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from suite.predict.plan.frontier import frontier
from suite.predict.plan.plan import OtherNumber

BEST, OTHER = "#0072b2", "#999999"  # Okabe and Ito's blue, and grey
DAYS = [factor * 10**power for power in range(-3, 6) for factor in (1, 2, 5)]  # of ticks


def draw_numbers(path: Path, title: str, numbers: Sequence[OtherNumber], *, asked: int) -> None:
    """Write a PNG of two panels; those of which no other is as fast for as little are filled, joined and named.

    Args:
        asked: the number that was asked for, with a ring around it.

    Raises:
        InputError: no number fits, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not numbers:
        raise InputError("no number of accelerators fits", where="--picture")
    priced = numbers[0].planned.training.cost is not None
    best = frontier(numbers, spent, lambda each: each.planned.training.days)
    what = "cost, millions" if priced else "thousand accelerator-hours"
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.margins(x=0.12)
    right.margins(x=0.12)
    _draw(left, numbers, best, asked, [each.ranks for each in numbers])
    left.set(xlabel="accelerators", ylabel="days", xscale="log", yscale="log", title="days by number")
    ideal = [numbers[0].planned.training.days * numbers[0].ranks / each.ranks for each in numbers]
    left.plot([each.ranks for each in numbers], ideal, ":", color=OTHER, zorder=1, label="twice as many, half the days")
    ticks = sorted({each.ranks for each in numbers})
    left.set_xticks(ticks, [f"{number:,}" for number in ticks], rotation=35)
    _draw(right, numbers, best, asked, [spent(each) for each in numbers])
    right.set(xlabel=what, ylabel="days", yscale="log", title=f"days by {what.partition(',')[0]}")
    for panel in (left, right):
        low, high = panel.get_ylim()
        days = [tick for tick in DAYS if low <= tick <= high]
        panel.set_yticks(days, [f"{tick:,}" for tick in days])
        panel.minorticks_off()
        panel.grid(alpha=0.25)
        panel.legend(fontsize=8)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise InputError(f"cannot draw: {error.strerror}", got=str(path), where="--picture") from error


def spent(number: OtherNumber) -> float:
    """Millions of the currency where accelerators have a price, thousands of accelerator-hours where not."""
    training = number.planned.training
    return training.accelerator_seconds / 3.6e6 if training.cost is None else training.cost / 1e6


def _draw(
    panel: Any, numbers: Sequence[OtherNumber], best: Sequence[OtherNumber], asked: int, across: Sequence[float]
) -> None:
    days = [each.planned.training.days for each in numbers]
    chosen = [(x, y, each) for x, y, each in zip(across, days, numbers, strict=True) if each in best]
    chosen.sort(key=lambda point: point[0])
    panel.plot(across, days, "o", color=OTHER, fillstyle="none", zorder=2, label="another is as fast for as little")
    line = [point[0] for point in chosen], [point[1] for point in chosen]
    panel.plot(*line, "o-", color=BEST, zorder=3, label="no other is as fast for as little")
    for x, y, each in zip(across, days, numbers, strict=True):
        if each.ranks == asked:
            panel.plot([x], [y], "o", color="#d55e00", fillstyle="none", markersize=13, zorder=4, label="asked for")
        panel.annotate(f"{each.ranks:,}", (x, y), textcoords="offset points", xytext=(7, 5), fontsize=8)
