"""Output in the terminal: consoles, tables, folded lines, and the comparison of two sides figure by figure."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rich.console import Console, ConsoleOptions, RenderHook
from rich.segment import Segment
from rich.text import Text

from reference_runs.printable import printable
from reference_runs.units import printed, printed_alike
from suite.metrics.comparison import Row, Verdict
from suite.metrics.difference_words import difference_in_words, direction, direction_of
from suite.metrics.figures import Quantity, StepTerm
from suite.report.tables import Coloured, folded, table

if TYPE_CHECKING:
    import pandas

VERDICT_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SHOWN: "dim"}
NOT_JUDGED = "not judged"
QUANTITY_NAMES = {
    Quantity.CPU_SLOWDOWN.value: "CPU slowdown",
    Quantity.STEP_SECONDS_AT_CPU_SPEED.value: "step_seconds at that CPU speed",
}
LEAST_WIDTH, USUAL_WIDTH, MOST_WIDTH = 20, 80, 10_000  # columns
PIPE_WIDTH = 150  # columns where the output is no terminal and COLUMNS is not set
BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHORT = 16  # characters of a reason that fit into its column
_TERMS = frozenset(term.value for term in StepTerm)


def console(*, stderr: bool = False) -> Console:
    """The console for output (or messages), wide enough for most tables where it is no terminal.

    It shows characters that a terminal would obey, see `reference_runs.printable`; colours are those of styles alone.
    """
    shown = Console(stderr=stderr, highlight=False)
    if not shown.is_terminal and os.environ.get("COLUMNS", "0") == "0":  # 0: unknown
        shown.width = PIPE_WIDTH
    if not LEAST_WIDTH <= shown.width <= MOST_WIDTH:
        shown.width = max(LEAST_WIDTH, min(MOST_WIDTH, shown.width or USUAL_WIDTH))
    shown.push_render_hook(cast(RenderHook, _Harmless))
    return shown


class _Harmless(NamedTuple):
    """Something to print, without the control characters of its texts."""

    printed: Any

    @classmethod
    def process_renderables(cls, printed: Sequence[Any]) -> list[_Harmless]:
        """Each thing to print as one of these; a console asks it of its hooks."""
        return [cls(each) for each in printed]

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in out.render(self.printed, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def write_line(line: str, *, stderr: bool = False) -> None:
    """Write a line without folding it, on stdout or stderr, with no character that a terminal would obey."""
    (sys.stderr if stderr else sys.stdout).write(f"{printable(line)}\n")


def refusal(error: OSError) -> str:
    """The operating system's reason and the file, for people."""
    return ": ".join(str(part) for part in (error.strerror, error.filename) if part)


def print_refusal(error: OSError) -> None:
    """Say it on stderr."""
    console(stderr=True).print(Text(refusal(error), "bold red"), soft_wrap=True)


def print_table(
    out: Console,
    rows: pandas.DataFrame | Iterable[Sequence[Any]],
    titles: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
    right: Collection[str] | None = None,
) -> None:
    """Print a table as `suite.report.tables.table` folds it for this console."""
    text = Text.from_ansi(table(rows, titles, width=out.width, optional=optional, right=right))
    text.stylize("bold", 0, len(text.plain.split("\n", 1)[0]))
    out.print(text, soft_wrap=True)


def coloured(text: str, style: str) -> Coloured:
    """`text` for a cell of a table, in a colour that consoles without colours leave out."""
    return Coloured(((text, style),))


def print_folded(out: Console, line: str, style: str = "dim") -> None:
    """Print a line folded between words; what is folded stands 4 characters further right than its beginning."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    out.print(Text(folded(line, out.width, indent=indent), style), soft_wrap=True)


def whole_job(rows: Iterable[Row]) -> list[Row]:
    """The rows of the whole job and of the maximum over ranks and stages, and of single ones those that failed."""
    return [row for row in rows if row.rank is row.stage is None or row.verdict is Verdict.FAIL]


def row_name(row: Row) -> str:
    """Quantity, axis, collective, term and rank in words."""
    rank = "" if row.rank is None else f"rank {row.rank}"
    name = QUANTITY_NAMES.get(row.quantity, row.quantity)
    return " ".join(part for part in (name, row.axis, row.operation, row.term, rank) if part)


def print_comparison(out: Console, rows: Sequence[Row], *, left: str, right: str) -> None:
    """Print the rows of the whole job, every row that failed, and the reasons; differences: right against left."""
    reasons: list[str] = []
    titles = ("quantity", left, right, f"{right} is", "tolerance", "verdict", "why")
    shown = whole_job(rows)
    sides = _both_columns(shown)
    cells = [
        (
            row_name(row),
            *sides[number],
            difference(row),
            f"{row.tolerance:.0%}" if row.tolerance else "",
            coloured(verdict_word(row.verdict), VERDICT_COLOURS[row.verdict]),
            _why(row, reasons),
        )
        for number, row in enumerate(shown)
    ]
    print_table(out, cells, titles, right=titles[1:5])
    for number, reason in enumerate(reasons, start=1):
        print_folded(out, f"({number}) {reason}")
    if any(why == "exact" for *_, why in cells):
        print_folded(out, "exact: counted on both sides, and has to be equal to the last digit")


def _both_columns(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Both sides of each row; those of one quantity with the same prefix and decimals."""
    alike: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault(row.quantity, []).append(number)
    sides = [("", "")] * len(rows)
    for numbers in alike.values():
        values = [value for number in numbers for value in (rows[number].left, rows[number].right)]
        texts = iter(printed_alike(values, rows[numbers[0]].unit))
        for number in numbers:
            sides[number] = next(texts), next(texts)
    return sides


def verdict_word(verdict: Verdict) -> str:
    """The word that is printed for a verdict."""
    return NOT_JUDGED if verdict is Verdict.SHOWN else verdict.value


def _why(row: Row, reasons: list[str]) -> str:
    """The reason, or its number among the notes below the table where it is long."""
    if not row.why or len(row.why) <= _SHORT:
        return row.why or ""
    if row.why not in reasons:
        reasons.append(row.why)
    return f"({reasons.index(row.why) + 1})"


def difference(row: Row, *, than: str = "") -> str:
    """How the right side of a row differs from the left one, in words.

    In the figure's unit where it is exact, a term of a step, or the left side is 0; otherwise in percent of the left
    side.

    Args:
        than: see `difference_in_words`.
    """
    if row.difference is None or row.left is None or row.right is None:
        return "-"
    scale = direction_of(row.quantity)
    in_unit = row.tolerance == 0 or not row.left or (row.quantity == Quantity.STEP_SECONDS and row.term in _TERMS)
    if not in_unit or row.difference == 0:
        return difference_in_words(row.right, row.left, scale, than=than)
    apart = abs(row.difference)
    amount = f"{1e3 * apart:,.1f} ms" if row.unit == "s" else printed(apart, row.unit)
    return f"{amount} {direction(row.right, row.left, scale)}" + (f" than {than}" if than else "")


def bar(share: float, *, cells: int = BAR_CELLS) -> str:
    """A bar over `share` (0 to 1, longer ones are cut) of `cells` character cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")
