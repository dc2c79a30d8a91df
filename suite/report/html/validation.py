"""The predictor beside published measurements: every row that counts, and errors by table."""

from __future__ import annotations

import statistics
from functools import cache

from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from suite.predict.validation.published_tables import TimedRow, constant_mfu, relative_errors, timed_rows
from suite.report.html.cache import computed_once
from suite.report.html.plot import MUTED, Cell, Plot, Trace, colour, significant, symbol

BAND = 0.1  # drawn on both sides of equality


@cache
def validation() -> tuple[Plot, Plot]:
    """Predicted against published seconds of a step, log-log by table, and the errors of each table.

    It rests on the suite's own files alone, and is computed once for every state of them.
    """
    return computed_once("validation", tuple[Plot, Plot], computed_validation)


def computed_validation() -> tuple[Plot, Plot]:
    """The same, computed now."""
    tables = [(table, timed_rows(table)) for table in map(load_table, shipped_tables())]
    timed = [(table, rows) for table, rows in tables if rows]
    every = [value for _, rows in timed for one in rows for value in (one.measured, one.predicted)]
    ends = [min(every) / 1.3, max(every) * 1.3]
    scatter: list[Trace] = [
        _line(ends, 1.0, "equal", "solid"),
        _line(ends, 1 + BAND, f"{BAND:.0%} off", "dot"),
        _line(ends, 1 - BAND, f"{BAND:.0%} off", "dot") | {"showlegend": False},
    ]
    boxes: list[Trace] = []
    errors_of, points = [], []
    for place, (table, rows) in enumerate(timed):
        errors = relative_errors([one.predicted for one in rows], [one.measured for one in rows])
        marker = {"color": colour(place), "symbol": symbol(place), "size": 6 if len(rows) > 100 else 8, "opacity": 0.7}
        scatter.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": table.name,
                "x": [significant(one.measured) for one in rows],
                "y": [significant(one.predicted) for one in rows],
                "text": [_name(one) for one in rows],
                "marker": marker,
                "hovertemplate": "%{text}<br>published %{x:.4g} s, predicted %{y:.4g} s",
            }
        )
        boxes.append(
            {
                "type": "box",
                "orientation": "h",
                "name": table.name,
                "x": [round(100 * error, 2) for error in errors],
                "marker": {"color": colour(place), "symbol": symbol(place), "size": 4},
                "boxpoints": "outliers",
                "line": {"width": 1.5},
                "hoverinfo": "x",
            }
        )
        _, constant = constant_mfu([one.row for one in rows])
        errors_of.append(
            [
                table.name,
                table.facts.title,
                str(len(rows)),
                f"{statistics.fmean(map(abs, errors)):.1%}",
                f"{statistics.median(errors):+.1%}",
                f"{max(errors, key=abs):+.1%}",
                "" if constant is None else f"{constant:.1%}",
            ]
        )
        points += [
            [
                table.name,
                _name(one),
                f"{one.measured:,.4g}",
                f"{one.predicted:,.4g}",
                f"{error:+.1%}",
            ]
            for one, error in zip(rows, errors, strict=True)
        ]
    within = sum(abs(one.predicted / one.measured - 1) <= BAND for _, rows in timed for one in rows)
    count = sum(len(rows) for _, rows in timed)
    shown: list[list[Cell]] = [[*row] for row in points]
    scores: list[list[Cell]] = [[*row] for row in errors_of]
    return (
        Plot(
            id="predicted-published",
            title="Predicted against published step times",
            says=f"Log-log scatter of {count} published step times and their predictions from {len(timed)} tables; "
            f"{within / count:.0%} lie within {BAND:.0%} of equality.",
            traces=scatter,
            layout={
                "xaxis": {"type": "log", "title": {"text": "published seconds of a step"}},
                "yaxis": {"type": "log", "title": {"text": "predicted seconds of a step"}},
            },
            columns=["table", "row", "published s", "predicted s", "error"],
            rows=shown,
            height=640,
        ),
        Plot(
            id="errors-by-table",
            title="Errors by table",
            says=f"Box plots of the relative errors of {len(timed)} tables; the box holds the middle half.",
            traces=boxes,
            layout={
                "showlegend": False,
                "xaxis": {"title": {"text": "predicted less published, %"}, "zeroline": True},
                "yaxis": {"autorange": "reversed", "automargin": True},
            },
            columns=["table", "", "rows", "mean error", "median", "largest", "mean error of one constant MFU"],
            rows=scores,
            height=110 + 38 * len(timed),
        ),
    )


def _name(one: TimedRow) -> str:
    row = one.row
    return f"{row.model} on {row.layout.ranks} {row.accelerator}, line {row.line}"


def _line(ends: list[float], factor: float, name: str, dash: str) -> Trace:
    line = {"color": MUTED, "width": 1, "dash": dash}
    y = [significant(factor * end) for end in ends]
    x = [significant(end) for end in ends]
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line, "hoverinfo": "skip"}
