"""Tables in the terminal: rows of comparisons, facts of runs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from reference_runs.units import printed
from suite.compare import Row, Verdict

_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SHOWN: "dim"}
PIPE_WIDTH = 150  # columns where the output is no terminal, so that no cell is cut


def console(*, stderr: bool = False) -> Console:
    """The console for output (or messages), wide enough for the tables where it is no terminal."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def comparison_table(rows: Iterable[Row], *, left: str, right: str) -> Table:
    """Rows of the whole job and of the maximum over ranks, and every rank's row that failed."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("quantity", "axis", left, right, "difference", "unit", "tolerance", "verdict", "why"):
        numeric = title in (left, right, "difference", "tolerance")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=title != "why", overflow="fold")
    for row in rows:
        if row.rank is not None and row.verdict is not Verdict.FAIL:
            continue
        verdict = f"[{_COLOURS[row.verdict]}]{row.verdict.value}[/]"
        table.add_row(
            row.quantity if row.rank is None else f"  rank {row.rank}",
            " ".join(part for part in (row.axis, row.operation) if part),
            printed(row.left, row.unit),
            printed(row.right, row.unit),
            _difference(row),
            "" if row.unit == "1" else row.unit,
            "" if row.tolerance is None else ("=" if row.tolerance == 0 else f"{row.tolerance:.0%}"),
            verdict,
            row.why or "",
        )
    return table


def _difference(row: Row) -> str:
    if row.difference is None:
        return ""
    if row.difference == 0:
        return "0"
    sign = "+" if row.difference > 0 else "-"
    relative = f" ({row.difference / row.left:+.2%})" if row.left else ""
    return f"{sign}{printed(abs(row.difference), row.unit)}{relative}"


def plain_table(titles: list[str], rows: Iterable[list[str]]) -> Table:
    """A table of texts; the last column may wrap."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, title in enumerate(titles):
        table.add_column(title, no_wrap=place < len(titles) - 1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
