"""The predictor compared with published measurements: every row that counts, and errors by table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

from reference_runs.published import PublishedTable, load_table
from reference_runs.published_tables import shipped_tables
from suite.metrics.difference_words import Direction, difference_in_words
from suite.predict.validation.published_tables import TimedRow, constant_mfu, timed_rows
from suite.report.html.plot import MUTED, Cell, Plot, Trace, colour, significant, symbol
from suite.report.plots.validation import BAND, DIFFERENCE_AXIS, axis_ends, differences, errors


@cache
def validation() -> tuple[Plot, Plot]:
    """Predicted against published seconds of a step, log-log by table, and the errors of each table."""
    tables = [(table, rows) for table in map(load_table, shipped_tables()) if (rows := timed_rows(table))]
    return _scatter(tables), _boxes(tables)


def _scatter(tables: Sequence[tuple[PublishedTable, list[TimedRow]]]) -> Plot:
    """Predicted over published seconds, a colour and symbol for each table."""
    timed = [row for _, rows in tables for row in rows]
    ends = axis_ends(timed)
    traces: list[Trace] = [
        _line(ends, 1.0, "equal", "solid"),
        _line(ends, 1 + BAND, f"{BAND:.0%} off", "dot"),
        _line(ends, 1 - BAND, f"{BAND:.0%} off", "dot") | {"showlegend": False},
    ]
    cells: list[list[Cell]] = []
    for number, (table, rows) in enumerate(tables):
        size = 6 if len(rows) > 100 else 8
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": table.name,
                "x": [significant(row.measured) for row in rows],
                "y": [significant(row.predicted) for row in rows],
                "text": [_name(row) for row in rows],
                "marker": {"color": colour(number), "symbol": symbol(number), "size": size, "opacity": 0.7},
                "hovertemplate": "%{text}<br>published %{x:.4g} s, predicted %{y:.4g} s",
            }
        )
        for row in rows:
            seconds = (f"{row.measured:,.3f}", f"{row.predicted:,.3f}")
            apart = difference_in_words(row.measured, row.predicted, Direction.TIME)
            cells.append([table.name, _name(row), *seconds, apart])
    within = sum(abs(error) <= BAND for error in errors(timed))
    return Plot(
        id="predicted-published",
        title="Predicted against published step times",
        says=f"Log-log scatter of {len(timed)} published step times and their predictions from {len(tables)} tables; "
        f"{within / len(timed):.0%} lie within {BAND:.0%} of equality.",
        traces=traces,
        layout={
            "xaxis": {"type": "log", "title": {"text": "published seconds of a step"}},
            "yaxis": {"type": "log", "title": {"text": "predicted seconds of a step"}},
        },
        columns=["table", "row", "published s", "predicted s", "published is"],
        rows=cells,
        height=640,
    )


def _boxes(tables: Sequence[tuple[PublishedTable, list[TimedRow]]]) -> Plot:
    """How far each table's published steps are from predicted ones, as a box."""
    traces: list[Trace] = []
    cells: list[list[Cell]] = []
    for number, (table, rows) in enumerate(tables):
        apart = differences(rows)
        traces.append(
            {
                "type": "box",
                "orientation": "h",
                "name": table.name,
                "x": [round(100 * difference, 2) for difference in apart],
                "marker": {"color": colour(number), "symbol": symbol(number), "size": 4},
                "boxpoints": "outliers",
                "line": {"width": 1.5},
                "hoverinfo": "x",
            }
        )
        _, constant = constant_mfu([row.row for row in rows])
        cells.append(
            [
                table.name,
                table.facts.title,
                str(len(rows)),
                f"{statistics.fmean(map(abs, errors(rows))):.1%}",
                difference_in_words(1 + statistics.median(apart), 1.0, Direction.TIME),
                difference_in_words(1 + max(apart, key=lambda each: abs(math.log1p(each))), 1.0, Direction.TIME),
                "" if constant is None else f"{constant:.1%}",
            ]
        )
    return Plot(
        id="errors-by-table",
        title="Errors by table",
        says=f"Box plots of published over predicted steps of {len(tables)} tables; the box holds the middle half.",
        traces=traces,
        layout={
            "showlegend": False,
            "xaxis": {"title": {"text": DIFFERENCE_AXIS}, "zeroline": True},
            "yaxis": {"autorange": "reversed", "automargin": True},
        },
        columns=["table", "", "rows", "mean error", "median", "largest", "mean error of one constant MFU"],
        rows=cells,
        height=110 + 38 * len(tables),
    )


def _name(timed: TimedRow) -> str:
    row = timed.row
    return f"{row.model} on {row.layout.ranks} {row.accelerator}, line {row.line}"


def _line(ends: Sequence[float], factor: float, name: str, dash: str) -> Trace:
    line = {"color": MUTED, "width": 1, "dash": dash}
    y = [significant(factor * end) for end in ends]
    x = [significant(end) for end in ends]
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line, "hoverinfo": "skip"}
