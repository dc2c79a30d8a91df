"""Draws predicted against published step times, and the residuals by table; needs matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from reference_runs.errors import InputError
from suite.predict.validation.published_tables import TimedRow, relative_errors

BAND = 0.1  # shaded around equality, and drawn on both sides of it
DIFFERENCE_AXIS = "published step, in % of the predicted one: below 0 faster, above 0 slower"


def axis_ends(timed: Iterable[TimedRow]) -> tuple[float, float]:
    """Ends of both axes of seconds: beyond the shortest and the longest step, published or predicted."""
    every = [seconds for row in timed for seconds in (row.measured, row.predicted)]
    return min(every) / 1.3, max(every) * 1.3


def errors(rows: Sequence[TimedRow]) -> list[float]:
    """Relative error of each row's prediction, predicted over published less 1."""
    return list(relative_errors([row.predicted for row in rows], [row.measured for row in rows]))


def differences(rows: Sequence[TimedRow]) -> list[float]:
    """How much slower each row's published step is than predicted: published over predicted, less 1."""
    return list(relative_errors([row.measured for row in rows], [row.predicted for row in rows]))


def draw(path: Path, tables: Mapping[str, Sequence[TimedRow]]) -> None:
    """Write a picture to `path` in the format that its suffix names: log-log on the left, errors by table on the right.

    Raises:
        InputError: matplotlib cannot write this format or place.
    """
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "step-times"  # the same file for the same numbers
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.2), width_ratios=(1.15, 1))
    colours = pyplot.get_cmap("tab10")
    ends = axis_ends(row for rows in tables.values() for row in rows)
    left.fill_between(ends, [e * (1 - BAND) for e in ends], [e * (1 + BAND) for e in ends], color="0.9", lw=0, zorder=0)
    left.plot(ends, ends, color="0.5", lw=0.8)
    for index, (name, rows) in enumerate(tables.items()):
        colour = colours(index % 10)
        measured, predicted = [row.measured for row in rows], [row.predicted for row in rows]
        many = len(rows) > 100
        left.scatter(measured, predicted, s=8 if many else 18, color=colour, alpha=0.6, lw=0, label=name)
        percent = [100 * difference for difference in differences(rows)]
        spread = [index + 0.35 * ((7 * i) % 11 / 5 - 1) for i in range(len(percent))]
        right.scatter(percent, spread, s=6 if many else 14, color=colour, alpha=0.6, lw=0)
        middle = statistics.median(percent)
        right.plot([middle, middle], [index - 0.4, index + 0.4], color="black", lw=1)
    left.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    left.set(xlabel="published seconds of a step", ylabel="predicted seconds of a step")
    left.legend(fontsize=7, frameon=False, loc="upper left")
    right.axvspan(-100 * BAND, 100 * BAND, color="0.9", lw=0, zorder=0)
    right.axvline(0, color="0.5", lw=0.8)
    right.set(xlabel=f"{DIFFERENCE_AXIS}\na point a row; bar: median")
    right.set_yticks(range(len(tables)), list(tables), fontsize=7)
    right.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    try:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise InputError(f"cannot draw: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise InputError(f"cannot draw: {error}", where=str(path)) from error
    finally:
        pyplot.close(figure)
