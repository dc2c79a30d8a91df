"""Scores of predictions for people: one line a table and the worst rows first, then how the tables were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from reference_runs.published_tables import TableFacts
from suite.metrics.difference_words import Direction, difference_in_words
from suite.predict.validation.proxies import ProxyPair
from suite.predict.validation.published_tables import Fits, Score, SkippedLine, WorstMemoryRow, WorstRow, distance
from suite.predict.validation.software import FrameworkReading
from suite.report.tables import folded
from suite.report.terminal.tables import print_folded, print_table

GIB = 2**30
SHOWN_REASONS = 10  # of a table's skipped rows
SHOWN_LINES = 4  # of the rows that share a reason
READ_LINES = 10  # on what was read, of all tables together, without --all
ENOUGH_PEAKS = 40  # that say how many lie inside their interval
ITEM_LINES = 2  # that one of them takes at most; what it lists further is counted
_WHICH = (
    "step time, constant MFU, peak memory: mean absolute error, in percent of what was measured; constant MFU: of the "
    "one MFU that comes nearest to the same rows; mean, largest, worst rows: measured steps are so much slower or "
    "faster than predicted"
)


def print_scores(
    out: Console, scored: Sequence[tuple[TableFacts, Score]], *, complete: bool, of_each: bool = False
) -> None:
    """Print a line a table and the worst rows, then how the tables were read.

    Args:
        complete: whether all that is known of each table is printed, in place of at most 10 lines of all.
        of_each: whether the worst rows are of each table and not of all together; and something of the reading is said.
    """
    scores = [score for _, score in scored]
    _print_summary(out, scores)
    if complete or of_each:
        for score in scores:
            _print_worst_of(out, score)
    else:
        out.print()
        _print_worst(out, scores)
    for score in scores:
        for line in skipped_lines(score.implausible_rows):
            print_folded(out, f"implausible: {score.table}, {line}", "yellow")
    print_folded(out, _WHICH)
    measured = sum(score.peak_bytes_rows for score in scores)
    held = sum(score.peak_bytes_inside for score in scores)
    if measured >= ENOUGH_PEAKS:
        share = f"{100 * held / measured:.0f} %"
        print_folded(out, f"{share} of {measured} measured peaks are inside the 80 % interval that predict prints")
    if complete:
        for facts, score in scored:
            out.print()
            print_folded(out, ": ".join(part for part in (score.table, facts.title) if part), "bold")
            for line in _reading(facts, score):
                print_folded(out, f"  {line}")
    elif of_each:
        _print_reading(out, scored)
    else:
        print_folded(out, "--all: sources, assumptions, skipped rows and the worst rows of each table")


def _print_reading(out: Console, scored: Sequence[tuple[TableFacts, Score]]) -> None:
    """Print the first lines of how each table was read, and how many more there are."""
    most, left_out, names_table = max(1, READ_LINES // len(scored)), 0, len(scored) > 1
    for facts, score in scored:
        lines, printed_lines = _reading(facts, score), 0
        for number, line in enumerate(lines):
            text, is_whole = _counted(f"{score.table}: {line}" if names_table else line, ITEM_LINES * out.width)
            takes = len(folded(text, out.width, indent="    ").splitlines())
            if printed_lines + takes > most:
                left_out += len(lines) - number
                break
            print_folded(out, text, "")
            printed_lines += takes
            left_out += not is_whole
    if left_out:
        print_folded(out, f"--all: {left_out} more on how it was read; --as-read FILE writes the table as it was read")


def _counted(line: str, room: int) -> tuple[str, bool]:
    """A line whose last items are only counted where all would take more characters; and whether it is whole."""
    if len(line) <= room:
        return line, True
    separator = "; " if line.count("; ") > 1 else ", "
    items = line.split(separator)
    kept = len(items)
    while kept > 1 and len(separator.join(items[:kept])) + len(f" and {len(items)} more") > room:
        kept -= 1
    return (
        (f"{separator.join(items[:kept])} and {len(items) - kept} more", False) if kept < len(items) else (line, True)
    )


def print_proxies(out: Console, pairs: Sequence[ProxyPair]) -> None:
    """Print each step that is predicted from a proxy's, next to the plain prediction."""
    if not pairs:
        print_folded(out, "no row is a proxy of another: the same layers, but fewer")
        return
    cells = [
        [
            pair.model,
            pair.products,
            f"{pair.proxy_layers} on {pair.proxy_accelerators}",
            f"{pair.layers} on {pair.accelerators}",
            f"{pair.measured_seconds:,.3f}",
            f"{pair.predicted_seconds:,.3f}",
            _measured(pair.error_percent),
            _measured(pair.plain_error_percent),
        ]
        for pair in pairs
    ]
    titles = ["model", "products", "proxy", "whole", "measured s", "predicted s", "measured is", "without proxy"]
    print_table(out, cells, titles, right=titles[4:], optional=["model"])
    print_folded(
        out, "proxy, whole: layers on accelerators; seconds of a layer from the proxy's step, the rest modelled"
    )


def _print_summary(out: Console, scores: Sequence[Score]) -> None:
    titles = ["table", "rows", "used", "skipped", "step time", "constant MFU", "mean", "largest", "peak memory"]
    cells = [
        (
            *(score.table, score.rows, score.used, score.skipped),
            *(_error(score.step_seconds_mape), _error(score.constant_mfu_mape)),
            *(_measured(score.step_seconds_bias), _largest(score), _error(score.peak_bytes_mape)),
        )
        for score in scores
    ]
    print_table(out, cells, titles, right=titles[1:], optional=("skipped", "mean", "rows", "used"))


def _print_worst(out: Console, scores: Sequence[Score]) -> None:
    """Print the worst rows of all tables together, as many as each table has at most."""
    named = [(score.table, row) for score in scores for row in score.worst]
    most = max((len(score.worst) for score in scores), default=0)
    named = sorted(named, key=lambda pair: -distance(pair[1].error_percent / 100))[:most]
    if named:
        titles = ["worst rows: table", *_worst_titles("line", "s")]
        print_table(out, [(name, *_worst(row)) for name, row in named], titles, optional=("layout", "GPUs", "model"))


def _print_worst_of(out: Console, score: Score) -> None:
    """Print the worst rows of one table, and which rows its predicted memory let run."""
    if score.worst:
        out.print()
        titles = _worst_titles("worst: line", "s")
        print_table(out, map(_worst, score.worst), titles, right=titles[2:6], optional=("layout",))
    if score.worst_memory:
        out.print()
        titles = _worst_titles("memory: line", "GiB")
        print_table(out, map(_worst, score.worst_memory), titles, right=titles[2:6], optional=("layout", "GPUs"))
    if score.fits:
        out.print()
        _print_fits(out, score.fits)


def _worst_titles(line: str, unit: str) -> list[str]:
    return [line, "model", "GPUs", f"measured {unit}", f"predicted {unit}", "measured is", "layout"]


def _worst(row: WorstRow | WorstMemoryRow) -> tuple[object, ...]:
    """A row's cells under `_worst_titles`: of a step's seconds, or of GiB."""
    if isinstance(row, WorstRow):
        sides = f"{row.measured_seconds:,.3f}", f"{row.predicted_seconds:,.3f}"
        apart = _measured(row.error_percent)
    else:
        sides = f"{row.measured_bytes / GIB:,.2f}", f"{row.predicted_bytes / GIB:,.2f}"
        apart = _measured(row.error_percent, Direction.AMOUNT)
    return row.line, row.model, row.accelerators, *sides, apart, row.layout


def _error(percent: float | None) -> str:
    return "-" if percent is None or percent != percent else f"{percent:.1f} %"


def _measured(percent: float | None, scale: Direction = Direction.TIME) -> str:
    """How much slower (or more) was measured than predicted; the error is in percent of what was measured."""
    return "-" if percent is None or percent != percent else difference_in_words(1.0, 1 + percent / 100, scale)


def _largest(score: Score) -> str:
    """The first of the worst rows, or the largest error where none is asked for."""
    return _measured(score.worst[0].error_percent if score.worst else score.step_seconds_max)


def _reading(facts: TableFacts, score: Score) -> list[str]:
    """How a table was read: software, skipped rows, columns, source, conventions, and what was assumed."""
    lines = list(map(_read_as, score.frameworks))
    if score.skipped:
        reasons = "; ".join(
            f"{reason} ({rows})" for reason, rows in list(score.skipped_reasons.items())[:SHOWN_REASONS]
        )
        lines.append(f"skipped {score.skipped} of {score.rows} rows: {reasons}")
    lines += [f"skipped {line}" for line in skipped_lines(score.skipped_rows)]
    if score.columns_not_read:
        lines.append(f"columns not read: {', '.join(score.columns_not_read)}")
    lines += assumed_lines(score.assumed)
    if facts.source:
        lines.append(f"source: {facts.source}")
    return [*lines, *facts.conventions]


def assumed_lines(assumed: Mapping[str, int]) -> list[str]:
    """Assumptions, a line for each number of rows: words that were read, a named run's values, all else.

    "gpu H100 = h100-sxm" says how a cell's words were read, "layers = 32 as llama2-7b" whose value a blank one has.
    """
    groups: dict[str, list[str]] = {}
    for what, rows in assumed.items():
        column, _, value = what.partition(" = ")
        value, _, run = value.partition(" as ")
        counted = f"each in {rows} row{'s' if rows != 1 else ''}"
        if " " in column:
            groups.setdefault(f"read as, {counted}", []).append(what)
        else:
            of_run = f", as {run} has it" if run else ""
            groups.setdefault(f"assumed where blank, {counted}{of_run}", []).append(f"{column} = {value}")
    return [f"{head}: {', '.join(each)}" for head, each in sorted(groups.items(), key=lambda group: group[0][0] != "r")]


def skipped_lines(skipped: Sequence[SkippedLine]) -> list[str]:
    """One line a reason, the most frequent first, with the rows that it holds for; a long list ends with a count."""
    by_reason: dict[str, list[int]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.line)
    ordered = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    lines = []
    for reason, numbers in ordered[:SHOWN_REASONS]:
        more = len(numbers) - SHOWN_LINES
        named = ", ".join(map(str, numbers[:SHOWN_LINES])) + (f" and {more} more" if more > 0 else "")
        lines.append(f"line{'s' if len(numbers) > 1 else ''} {named}: {reason}")
    rest = ordered[SHOWN_REASONS:]
    if rest:
        lines.append(f"{sum(len(numbers) for _, numbers in rest)} more rows for {len(rest)} other reasons: see --json")
    return lines


def _read_as(reading: FrameworkReading) -> str:
    """A framework with its stack, and what another stack would change."""
    named = f"framework {reading.framework!r}" if reading.framework else "no framework"
    words = f"{named} in {reading.rows} row{'s' if reading.rows != 1 else ''}: stack {reading.stack}"
    words += f" ({reading.read_as})" if reading.framework else ""
    if reading.closest is not None:
        errors = f"{reading.closest_percent:.0f} % from what was measured, in place of {reading.own_percent:.0f} %"
        return f"{words}; {reading.closest} comes closest: {errors} (column framework)"
    if reading.rival is None or reading.rival_percent is None:
        return words
    rival = difference_in_words(1 + reading.rival_percent / 100, 1.0, Direction.TIME)
    return f"{words}; as {reading.rival} a step would be {rival}"


def _print_fits(out: Console, fits: Fits) -> None:
    cells = [
        ("predicted to fit", fits.fits_and_ran, fits.fits_and_failed),
        ("predicted not to fit", fits.exceeds_and_ran, fits.exceeds_and_failed),
    ]
    print_table(out, cells, ["memory, all complete rows", "ran", "failed"])
