"""Output in the terminal: consoles, tables, folded lines, and the comparison of two sides figure by figure."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rich.console import Console, ConsoleOptions, RenderHook
from rich.segment import Segment
from rich.text import Text

from reference_runs.printable import printable
from reference_runs.units import printed
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity, StepTerm
from suite.report.tables import Coloured, table

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
_NO_BREAK = "\N{NO-BREAK SPACE}"
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
    """Print a line folded between words; what is folded stands 4 characters further right than its beginning.

    A number and its "%" stay together.
    """
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    room = out.width - len(indent)
    line = " ".join(word if len(word) <= room else word.replace(",", ", ") for word in line.split(" "))
    line = line.replace(" %", f"{_NO_BREAK}%")
    folded = textwrap.fill(line, out.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    out.print(Text(folded.replace(_NO_BREAK, " "), style), soft_wrap=True)


def whole_job(rows: Iterable[Row]) -> list[Row]:
    """The rows of the whole job and of the maximum over ranks and stages, and of single ones those that failed."""
    return [row for row in rows if row.rank is row.stage is None or row.verdict is Verdict.FAIL]


def row_name(row: Row) -> str:
    """Quantity, axis, collective, term and rank in words."""
    rank = "" if row.rank is None else f"rank {row.rank}"
    name = QUANTITY_NAMES.get(row.quantity, row.quantity)
    return " ".join(part for part in (name, row.axis, row.operation, row.term, rank) if part)


def print_comparison(
    out: Console, rows: Sequence[Row], *, left: str, right: str, relative_to: Literal["left", "right"] = "right"
) -> None:
    """Print the rows of the whole job, every row that failed, and the reasons.

    Args:
        relative_to: the side that a difference is relative to, such as the measured one.
    """
    steps = {row.rank: row for row in rows if row.quantity == Quantity.STEP_SECONDS and row.term is None}
    reasons: list[str] = []
    titles = ("quantity", left, right, "difference", "tolerance", "verdict", "why")
    cells = [
        (
            row_name(row),
            printed(row.left, row.unit),
            printed(row.right, row.unit),
            difference(row, relative_to=relative_to, step=steps.get(row.rank)),
            f"{row.tolerance:.0%}" if row.tolerance else "",
            coloured(verdict_word(row.verdict), VERDICT_COLOURS[row.verdict]),
            _why(row, reasons),
        )
        for row in whole_job(rows)
    ]
    print_table(out, cells, titles, right=titles[1:5])
    for number, reason in enumerate(reasons, start=1):
        print_folded(out, f"({number}) {reason}")
    if any(why == "exact" for *_, why in cells):
        print_folded(out, "exact: counted on both sides, and has to be equal to the last digit")


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


def difference(row: Row, *, relative_to: Literal["left", "right"] = "right", step: Row | None = None) -> str:
    """The signed difference of both sides in percent of the side named by `relative_to`.

    In the figure's unit if it is exact, or that side is 0; for a term of a step, as a share of the whole step.

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


def bar(share: float, *, cells: int = BAR_CELLS) -> str:
    """A bar over `share` (0 to 1, longer ones are cut) of `cells` character cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")
