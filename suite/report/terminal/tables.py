"""Tables in the terminal: rows of comparisons, facts of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reference_runs.units import printed
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity, StepTerm

VERDICT_WORDS = {Verdict.PASS: "[green]pass[/]", Verdict.FAIL: "[bold red]fail[/]", Verdict.SHOWN: "[dim]not judged[/]"}
QUANTITY_NAMES = {
    Quantity.PACE.value: "CPU slowdown",
    Quantity.STEP_SECONDS_AT_PACE.value: "step_seconds at that CPU speed",
}
PIPE_WIDTH = 150  # columns where the output is no terminal, so that no cell is cut
_GAP = 2  # characters between columns
_MIDDLE = 35  # characters that columns but the first and last have at most, longer words excepted
_LAST = 24  # characters that a last column has at least
_SHORT = 16  # characters of a reason that fit into its column
_TERMS = frozenset(term.value for term in StepTerm)


def console(*, stderr: bool = False) -> Console:
    """The console for output (or messages), wide enough for the tables where it is no terminal."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def whole_job(rows: Iterable[Row]) -> list[Row]:
    """The rows of the whole job and of the maximum over ranks and stages, and of single ones those that failed."""
    return [row for row in rows if row.rank is row.stage is None or row.verdict is Verdict.FAIL]


def row_name(row: Row) -> str:
    """Quantity, axis, collective, term and rank in words."""
    return " ".join(part for part in (QUANTITY_NAMES.get(row.quantity, row.quantity), _axis(row)) if part)


def print_comparison(
    out: Console, rows: Sequence[Row], *, left: str, right: str, relative_to: Literal["left", "right"] = "right"
) -> None:
    """Print the rows of the whole job, every row that failed, and the reasons; narrow terminals get two lines a row.

    Args:
        relative_to: the side that a difference is relative to, such as the measured one.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    titles = ["quantity", "axis", left, right, "difference", "tolerance", "verdict", "why"]
    for title in titles:
        numeric = title in (left, right, "difference", "tolerance")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=True)
    steps = {row.rank: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.term is None}
    reasons: list[str] = []
    cells_of_rows: list[dict[str, str]] = []
    for row in whole_job(rows):
        cells_of_rows.append(
            {
                "quantity": QUANTITY_NAMES.get(row.quantity, row.quantity),
                "axis": _axis(row),
                left: printed(row.left, row.unit),
                right: printed(row.right, row.unit),
                "difference": difference(row, relative_to=relative_to, step=steps.get(row.rank)),
                "tolerance": "" if row.tolerance is None else f"{row.tolerance:.0%}",
                "verdict": VERDICT_WORDS[row.verdict],
                "why": _why(row, reasons),
            }
        )
        table.add_row(*(cells_of_rows[-1][title] for title in titles))
    if Measurement.get(out, out.options.update(width=PIPE_WIDTH * 2), table).maximum <= out.width:
        out.print(table)
    else:
        _print_narrow(out, cells_of_rows, titles)
    for number, reason in enumerate(reasons, start=1):
        out.print(f"[dim]({number}) {escape(reason)}[/]")
    if any(cells["why"] == "exact" for cells in cells_of_rows):
        out.print("[dim]exact: counted on both sides, and has to be equal to the last digit[/]")


def _print_narrow(out: Console, rows: Iterable[Mapping[str, str]], titles: Sequence[str]) -> None:
    """Each row on lines of its own: its name, then every cell with its title."""
    for cells in rows:
        out.print(f"[bold]{cells['quantity']}[/] {cells['axis']}".rstrip())
        values = [f"{title} {cells[title]}" for title in titles[2:] if cells[title]]
        out.print("    " + ", ".join(values))


def _axis(row: Row) -> str:
    rank = "" if row.rank is None else f"rank {row.rank}"
    return " ".join(part for part in (row.axis, row.operation, row.term, rank) if part)


def _why(row: Row, reasons: list[str]) -> str:
    """The reason, or its number among the notes below the table where it is long."""
    if not row.why or len(row.why) <= _SHORT:
        return row.why or ""
    if row.why not in reasons:
        reasons.append(row.why)
    return f"({reasons.index(row.why) + 1})"


def difference(row: Row, *, relative_to: Literal["left", "right"] = "right", step: Row | None = None) -> str:
    """How much more the one side is than the other, which it is `relative_to`, in percent.

    In the unit where the figure is exact, or that side is 0; of a step's term as a share of the whole step.

    Args:
        step: the whole step, of which the row may be a term.
    """
    if row.difference is None:
        return "-"
    if row.difference == 0:
        return "0"
    more = row.difference if relative_to == "left" else -row.difference
    reference = getattr(row, relative_to)
    if row.quantity == Quantity.STEP_SECONDS and row.term in _TERMS and step is not None:
        whole = getattr(step, relative_to)
        return f"{percent(more, whole)} of step" if whole else "-"
    if row.tolerance == 0 or not reference:
        return f"{'+' if more > 0 else '-'}{printed(abs(more), row.unit)}"
    return percent(more, reference)


def percent(difference: float, of: float) -> str:
    """A signed relative difference in percent; what rounds to nothing has no sign."""
    text = f"{difference / of:+.2%}"
    return "0.00%" if text in ("+0.00%", "-0.00%") else text


class PlainTable:
    """Rows of texts as a table whose first column does not wrap; where words do not fit, rows on lines of their own."""

    def __init__(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self._titles, self._rows = list(titles), [list(row) for row in rows]

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        columns = zip(self._titles, *self._rows, strict=True)
        sizes = [[Measurement.get(out, options, Text.from_markup(cell)) for cell in cells] for cells in columns]
        least = [max(size.minimum for size in column) for column in sizes]  # the longest word
        most = [max(size.maximum for size in column) for column in sizes]
        least[0], least[-1] = most[0], min(least[-1], _LAST)
        most[1:-1] = [max(few, min(many, _MIDDLE)) for few, many in zip(least[1:-1], most[1:-1], strict=True)]
        room = options.max_width - sum(least) - _GAP * (len(least) - 1)
        if room >= 0:
            yield self._table(_shared_out(room, least, most))
            return
        for name, *cells in self._rows:
            yield Text.from_markup(f"[bold]{name}[/]")
            values = [f"{title} {cell}".strip() for title, cell in zip(self._titles[1:], cells, strict=True) if cell]
            yield Padding(Text.from_markup(", ".join(values)), (0, 0, 0, 4))

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title, width in zip(self._titles, widths, strict=True):
            table.add_column(title, overflow="fold", width=width)
        for row in self._rows:
            table.add_row(*row)
        return table


def _shared_out(room: int, least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Widths of columns: the least, and the room that is left to those that need little first."""
    widths = [*least]
    for index in sorted(range(len(least)), key=lambda index: most[index] - least[index]):
        widths[index] += min(most[index] - least[index], room)
        room -= widths[index] - least[index]
    return widths


def plain_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> PlainTable:
    """A table of texts, to be printed by a console."""
    return PlainTable(titles, rows)
