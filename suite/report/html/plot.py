"""One picture as plotly.js takes it, with its words and the table of its numbers."""

from __future__ import annotations

import time
from typing import Any

import msgspec

Trace = dict[str, Any]
Cell = str | int | float | None
INK, MUTED = "--ink", "--muted"
COLOURS = tuple(f"--c{number}" for number in range(1, 9))  # custom properties of page.css: one set a colour scheme
PATTERNS = ("", "/", "x", ".", "\\", "-", "+", "|")  # so that bars differ not only in colour
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x"),
    *("triangle-down", "pentagon", "star", "hexagon", "bowtie", "hourglass"),
)


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One picture.

    Args:
        id: of its element; distinct on the page.
        title: of the picture and of its table.
        says: one sentence that stands for the picture where it is not seen.
        traces, layout: as plotly.js takes them. A colour is the name of a custom property of page.css.
        height: in pixels of CSS.
        columns, rows: its numbers.
    """

    id: str
    title: str
    says: str
    traces: list[Trace]
    layout: dict[str, Any]
    columns: list[str]
    rows: list[list[Cell]]
    height: int = 340


def utc(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """A moment, in seconds since 1970, as a date and minutes in UTC."""
    return time.strftime(form, time.gmtime(seconds))


def milliseconds(seconds: float) -> str:
    """Seconds in milliseconds, with one decimal."""
    return f"{1e3 * seconds:,.1f}"


def colour(index: int) -> str:
    """The colour of series number `index`, from 0."""
    return COLOURS[index % len(COLOURS)]


def pattern(index: int) -> str:
    """The pattern of bars of series number `index`, from 0: another one where colours begin again."""
    return PATTERNS[(index + index // len(COLOURS)) % len(PATTERNS)]


def symbol(index: int) -> str:
    """The marker of series number `index`, from 0."""
    return SYMBOLS[index % len(SYMBOLS)]


def bars(
    name: str, index: int, *, y: list[Any], x: list[float], text: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    """A series of horizontal bars with a colour and a pattern of its own."""
    fill = colour(index)
    marker: dict[str, Any] = {"color": fill, "line": {"color": fill, "width": 1}}
    if pattern(index):
        marker["pattern"] = {"shape": pattern(index), "fillmode": "overlay", "fgcolor": "--paper", "size": 6}
    trace: dict[str, Any] = {"type": "bar", "orientation": "h", "name": name, "y": y, "x": x, "marker": marker}
    if text is not None:
        trace |= {"text": text, "textposition": "outside", "cliponaxis": False, "hoverinfo": "y+text+name"}
    return trace | more


def significant(value: float, digits: int = 5) -> float:
    """`value` with so many digits: what a plot can show, in fewer bytes."""
    return float(f"{value:.{digits}g}")
