"""Tables in the terminal: rows of comparisons, facts of runs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.metrics.comparison import Row, Verdict

_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SHOWN: "dim"}
_SHORT = 16  # characters of a reason that fit into its column
_LEFT_OUT_FIRST = ("tolerance", "difference", "why")  # columns that a narrow terminal does without, in this order
_NARROW = (112, 102, 92)  # terminal widths below which one more of them is left out
PIPE_WIDTH = 150  # columns where the output is no terminal, so that no cell is cut


def console(*, stderr: bool = False) -> Console:
    """The console for output (or messages), wide enough for the tables where it is no terminal."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def print_comparison(out: Console, rows: Iterable[Row], *, left: str, right: str) -> None:
    """Print rows of the whole job and of the maximum over ranks and stages, every row that failed, and the reasons."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    titles = ["quantity", "axis", left, right, "difference", "tolerance", "verdict", "why"]
    for title in _LEFT_OUT_FIRST[: sum(out.width < width for width in _NARROW)]:
        titles.remove(title)
    for title in titles:
        numeric = title in (left, right, "difference", "tolerance")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    reasons: list[str] = []
    for row in rows:
        if (row.rank is not None or row.stage is not None) and row.verdict is not Verdict.FAIL:
            continue
        cells = {
            "quantity": row.quantity,
            "axis": " ".join(part for part in (row.axis, row.operation, row.term, _rank(row)) if part),
            left: printed(row.left, row.unit),
            right: printed(row.right, row.unit),
            "difference": _difference(row),
            "tolerance": "" if row.tolerance is None else f"{row.tolerance:.0%}",
            "verdict": f"[{_COLOURS[row.verdict]}]{row.verdict.value}[/]",
            "why": _why(row, reasons),
        }
        table.add_row(*(cells[title] for title in titles))
    out.print(table)
    for number, reason in enumerate(reasons, start=1):
        out.print(f"[dim]({number}) {escape(reason)}[/]")


def _rank(row: Row) -> str:
    return "" if row.rank is None else f"rank {row.rank}"


def _why(row: Row, reasons: list[str]) -> str:
    """The reason, or its number among the notes below the table where it is long."""
    if not row.why or len(row.why) <= _SHORT:
        return row.why or ""
    if row.why not in reasons:
        reasons.append(row.why)
    return f"({reasons.index(row.why) + 1})"


def _difference(row: Row) -> str:
    """Signed, in the unit where the figure is exact, in percent of the left side otherwise."""
    if row.difference is None:
        return "-"
    if row.difference == 0:
        return "0"
    if row.tolerance == 0 or not row.left:
        return f"{'+' if row.difference > 0 else '-'}{printed(abs(row.difference), row.unit)}"
    return f"{row.difference / row.left:+.2%}"


def plain_table(titles: list[str], rows: Iterable[list[str]]) -> Table:
    """A table of texts; the first column stands whole, the others wrap, the last one over the width that is left."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, title in enumerate(titles):
        last = place == len(titles) - 1
        table.add_column(
            title,
            no_wrap=place == 0,
            overflow="fold",
            min_width=12 if last else None,
            max_width=None if last or place == 0 else 35,
        )
    for row in rows:
        table.add_row(*row)
    return table
