"""Step time by term, and bytes by mesh axis and collective: what was predicted and what was measured."""

from __future__ import annotations

from itertools import accumulate

from reference_runs.units import printed
from suite.metrics.comparison import Row
from suite.metrics.difference_words import Direction, direction
from suite.metrics.figures import Quantity, StepTerm
from suite.report.html.plot import Cell, Plot, bars, milliseconds
from suite.report.html.plot import significant as short
from suite.report.terminal.quantities import read

WHOLE = "whole step"
LAYOUT = {"barmode": "group", "yaxis": {"autorange": "reversed", "automargin": True}}


def waterfall(key: str, rows: list[Row]) -> Plot | None:
    """Both step times as a waterfall of their terms, each in a chain of its own; None where none is split.

    Terms that both sides put at 0 are left out; "unexplained" may be negative and then leads back.
    """
    by_term = {row.term: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.rank is None}
    terms = [by_term[term] for term in StepTerm if term in by_term]
    whole = by_term.get(None)
    if whole is None or not terms:
        return None
    shown = [row for row in terms if row.left or row.right]
    names = [*(row.term for row in shown), WHOLE]
    traces = []
    for index, (side, total, values) in enumerate(
        (
            ("predicted", whole.left, [row.left for row in shown]),
            ("measured", whole.right, [row.right for row in shown]),
        )
    ):
        if total is None or all(value is None for value in values):
            continue
        lengths = [value or 0.0 for value in values]
        starts = [*accumulate(lengths, initial=0.0)][:-1]
        traces.append(
            bars(
                side,
                index,
                y=names,
                x=[short(1e3 * length) for length in [*lengths, total]],
                base=[short(1e3 * start) for start in [*starts, 0.0]],
                text=[f"{milliseconds(length)} ms" for length in [*lengths, total]],
            )
        )
    slowest = max(shown, key=lambda row: row.right or row.left or 0.0)
    return Plot(
        id=f"time-{key}",
        title="Step time by term",
        says="Each term begins where the one above it ends, so the last bars are the whole step. "
        f"Of {len(shown)} terms the largest is {slowest.term}. {_totals(whole)}",
        traces=traces,
        layout=LAYOUT | {"xaxis": {"title": {"text": "ms since the step began"}, "rangemode": "tozero"}},
        columns=["term", "predicted ms", "measured ms", "measured is", "share of the step"],
        rows=[_cells(row, whole) for row in (*terms, whole)],
        height=90 + 44 * len(names),
    )


def _cells(row: Row, whole: Row) -> list[Cell]:
    """A term's or the whole step's row of the table, its difference in words and as share of the measured step."""
    cells: list[Cell] = [row.term or WHOLE]
    cells += [None if seconds is None else milliseconds(seconds) for seconds in (row.left, row.right)]
    if row.difference is None:
        return [*cells, None, None]
    share = f"{abs(row.difference) / whole.right:.1%}" if whole.right else None
    apart = f"{1e3 * abs(row.difference):,.1f} ms {direction(row.difference, 0.0, Direction.TIME)}"
    return [*cells, apart if row.difference else "equal", share]


def _totals(whole: Row) -> str:
    if whole.left is None:
        return f"Measured {milliseconds(whole.right or 0.0)} ms; not predicted."
    if whole.right is None:
        return f"Predicted {milliseconds(whole.left)} ms; not measured."
    return f"Predicted {milliseconds(whole.left)} ms, measured {milliseconds(whole.right)} ms."


def traffic(key: str, rows: list[Row]) -> Plot | None:
    """Payload of a rank and step by mesh axis and collective, the largest over ranks; None where nothing was sent."""
    sent: dict[tuple[str, str | None, str | None], Row] = {
        (row.quantity, row.axis, row.operation): row
        for row in rows
        if row.axis and row.operation and row.rank is None and row.stage is None and row.term is None
    }
    payload = [row for (quantity, _, _), row in sent.items() if quantity == Quantity.PAYLOAD_BYTES]
    if not payload:
        return None
    names = [f"{row.axis} {row.operation}" for row in payload]
    traces = [
        bars(
            side,
            index,
            y=names,
            x=[(value or 0) / 1e6 for value in values],
            text=[read(value, Quantity.PAYLOAD_BYTES) for value in values],
        )
        for index, (side, values) in enumerate(
            (("predicted", [row.left for row in payload]), ("measured", [row.right for row in payload]))
        )
    ]
    table: list[list[Cell]] = []
    for row in payload:
        cells: list[Cell] = [row.axis, row.operation, printed(row.left, "byte"), printed(row.right, "byte")]
        messages = sent.get((Quantity.MESSAGES, row.axis, row.operation))
        counts = [printed(messages.left, "1"), printed(messages.right, "1")] if messages else [None, None]
        table.append([*cells, *counts])
    most = max(payload, key=lambda row: row.right or row.left or 0)
    return Plot(
        id=f"bytes-{key}",
        title="Bytes by mesh axis and collective",
        says="What is handed to collectives in a step, the largest over ranks. "
        f"Of {len(payload)}, {most.axis} {most.operation} is the largest with "
        f"{printed(most.right or most.left, 'byte')} bytes.",
        traces=traces,
        layout=LAYOUT | {"xaxis": {"title": {"text": "payload, MB"}, "rangemode": "tozero"}},
        columns=[
            *("axis", "collective", "predicted bytes", "measured bytes", "predicted messages", "measured messages")
        ],
        rows=table,
        height=100 + 56 * len(names),
    )
