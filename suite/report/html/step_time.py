"""Step time by term, and bytes by mesh axis and collective: what was predicted and what was measured."""

from __future__ import annotations

from reference_runs.units import printed
from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity, StepTerm
from suite.report.html.plot import MILLISECONDS, Cell, Plot, bars
from suite.report.html.plot import significant as short
from suite.report.terminal.prediction import read

WHOLE = "whole step"


def waterfall(key: str, rows: list[Row]) -> Plot | None:
    """Both step times as a waterfall of their terms, each in a chain of its own; None where none is split.

    Terms that both sides put at 0 are left out; "unexplained" may be negative and then leads back.
    """
    own = {row.term: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None}
    terms = [term.value for term in StepTerm if term.value in own]
    whole = own.get(None)
    if whole is None or not terms:
        return None
    shown = [term for term in terms if own[term].left or own[term].right]
    names = [*shown, WHOLE]
    sides = {"predicted": [own[t].left for t in shown], "measured": [own[t].right for t in shown]}
    totals = {"predicted": whole.left, "measured": whole.right}
    traces = []
    for place, (side, values) in enumerate(sides.items()):
        total = totals[side]
        if total is None or all(value is None for value in values):
            continue
        lengths = [1e3 * (value or 0.0) for value in values]
        starts = [sum(lengths[:number]) for number in range(len(lengths))]
        traces.append(
            bars(
                side,
                place,
                y=names,
                x=[short(length) for length in [*lengths, MILLISECONDS * total]],
                base=[short(start) for start in [*starts, 0.0]],
                text=[f"{length:,.4g} ms" for length in [*lengths, MILLISECONDS * total]],
            )
        )
    table: list[list[Cell]] = []
    for name, row in [*((term, own[term]) for term in terms), (WHOLE, whole)]:
        difference = None if row.difference is None else MILLISECONDS * row.difference
        share = None if row.difference is None or not whole.right else row.difference / whole.right
        table.append(
            [
                name,
                _milliseconds(row.left),
                _milliseconds(row.right),
                None if difference is None else f"{difference:+,.4g}",
                None if share is None else f"{share:+.1%}",
            ]
        )
    slowest = max(shown, key=lambda term: own[term].right or own[term].left or 0.0)
    said = f"{len(shown)} terms the largest is {slowest}. " + _totals(whole)
    return Plot(
        id=f"time-{key}",
        title="Step time by term",
        says=f"Each term begins where the one above it ends, so the last bars are the whole step. Of {said}",
        traces=traces,
        layout={
            "barmode": "group",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "ms since the step began"}, "rangemode": "tozero"},
        },
        columns=["term", "predicted ms", "measured ms", "difference ms", "of the step"],
        rows=table,
        height=90 + 44 * len(names),
    )


def _milliseconds(seconds: float | None) -> Cell:
    return None if seconds is None else f"{MILLISECONDS * seconds:,.4g}"


def _totals(whole: Row) -> str:
    if whole.left is None:
        return f"Measured {_milliseconds(whole.right)} ms; not predicted."
    if whole.right is None:
        return f"Predicted {_milliseconds(whole.left)} ms; not measured."
    return f"Predicted {_milliseconds(whole.left)} ms, measured {_milliseconds(whole.right)} ms."


def traffic(key: str, rows: list[Row]) -> Plot | None:
    """Payload of a rank and step by mesh axis and collective, the largest over ranks; None where nothing was sent."""
    own = [row for row in rows if row.axis and row.operation and row.rank is None and row.stage is None]
    payload = {(row.axis, row.operation): row for row in own if row.quantity == Quantity.PAYLOAD_BYTES}
    payload = {
        place: row for place, row in payload.items() if not (row.term or "").startswith("textbook") and row.term is None
    }
    if not payload:
        return None
    messages = {(row.axis, row.operation): row for row in own if row.quantity == Quantity.MESSAGES and row.term is None}
    names = [f"{axis} {operation}" for axis, operation in payload]
    traces = []
    for place, side in enumerate(("left", "right")):
        values = [getattr(row, side) for row in payload.values()]
        traces.append(
            bars(
                ("predicted", "measured")[place],
                place,
                y=names,
                x=[(value or 0) / 1e6 for value in values],
                text=[read(value, Quantity.PAYLOAD_BYTES) for value in values],
            )
        )
    table: list[list[Cell]] = []
    for place_, row in payload.items():
        sent = messages.get(place_)
        table.append(
            [
                row.axis,
                row.operation,
                printed(row.left, "byte"),
                printed(row.right, "byte"),
                printed(sent.left, "1") if sent else None,
                printed(sent.right, "1") if sent else None,
            ]
        )
    most = max(payload.values(), key=lambda row: row.right or row.left or 0)
    return Plot(
        id=f"bytes-{key}",
        title="Bytes by mesh axis and collective",
        says="What is handed to collectives in a step, the largest over ranks. "
        f"Of {len(payload)}, {most.axis} {most.operation} is the largest with "
        f"{printed(most.right or most.left, 'byte')} bytes.",
        traces=traces,
        layout={
            "barmode": "group",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "payload, MB"}, "rangemode": "tozero"},
        },
        columns=[
            *("axis", "collective", "predicted bytes", "measured bytes", "predicted messages", "measured messages")
        ],
        rows=table,
        height=100 + 56 * len(names),
    )
