"""Scores of predictions for people: the worst rows and one line a table, or all that is known of each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from reference_runs.published_tables import TableFacts
from suite.predict.validation.proxies import ProxyPair
from suite.predict.validation.published_tables import Fits, Score, SkippedLine, WorstMemoryRow, WorstRow
from suite.predict.validation.software import FrameworkReading
from suite.report.terminal.tables import print_folded, print_table

GIB = 2**30
SHOWN_REASONS = 10  # of a table's skipped rows
SHOWN_LINES = 4  # of the rows that share a reason
SIGNS = (
    "errors: predicted over measured, less 1. step time, constant MFU, peak memory: mean absolute error; constant MFU: "
    "of the one MFU that comes nearest to the same rows; bias: mean signed error; largest: the largest signed one"
)


def print_scores(out: Console, scored: Sequence[tuple[TableFacts, Score]], *, complete: bool) -> None:
    """Print a line a table and the worst rows; before them what is known of each table where it is `complete`."""
    scores = [score for _, score in scored]
    if complete:
        for facts, score in scored:
            _print_table(out, facts, score)
    _print_summary(out, scores)
    if not complete:
        out.print()
        _print_worst(out, scores)
    for score in scores:
        for line in skipped_lines(score.implausible_rows):
            print_folded(out, f"implausible: {score.table}, {line}", "yellow")
    print_folded(out, SIGNS)
    if not complete:
        print_folded(out, "--all: sources, assumptions, skipped rows and the worst rows of each table")


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
            f"{pair.measured_seconds:,.4g}",
            f"{pair.predicted_seconds:,.4g}",
            _signed(pair.error_percent),
            _signed(pair.plain_error_percent),
        ]
        for pair in pairs
    ]
    titles = ["model", "products", "proxy", "whole", "measured s", "predicted s", "error", "without proxy"]
    print_table(out, cells, titles, right=titles[4:], optional=["model"])
    print_folded(
        out, "proxy, whole: layers on accelerators; seconds of a layer from the proxy's step, the rest modelled"
    )
    print_folded(out, "errors: predicted over measured, less 1")


def _print_summary(out: Console, scores: Sequence[Score]) -> None:
    titles = ["table", "rows", "used", "skipped", "step time", "constant MFU", "bias", "largest", "peak memory"]
    cells = [
        (
            *(score.table, score.rows, score.used, score.skipped),
            *(_error(score.step_seconds_mape), _error(score.constant_mfu_mape)),
            *(_signed(score.step_seconds_bias), _signed(score.step_seconds_max), _error(score.peak_bytes_mape)),
        )
        for score in scores
    ]
    print_table(out, cells, titles, optional=("skipped", "bias", "rows", "constant MFU", "used"))


def _print_worst(out: Console, scores: Sequence[Score]) -> None:
    """Print the worst rows of all tables together, as many as each table has at most."""
    named = [(score.table, row) for score in scores for row in score.worst]
    most = max((len(score.worst) for score in scores), default=0)
    named = sorted(named, key=lambda pair: -abs(pair[1].error_percent))[:most]
    if named:
        titles = ["worst rows: table", *_worst_titles("line", "s")]
        print_table(out, [(name, *_worst(row)) for name, row in named], titles, optional=("layout", "GPUs", "model"))


def _worst_titles(line: str, unit: str) -> list[str]:
    return [line, "model", "GPUs", f"measured {unit}", f"predicted {unit}", "error", "layout"]


def _worst(row: WorstRow | WorstMemoryRow) -> tuple[object, ...]:
    """A row's cells under `_worst_titles`: of a step's seconds, or of GiB."""
    if isinstance(row, WorstRow):
        sides = row.measured_seconds, row.predicted_seconds
    else:
        sides = row.measured_bytes / GIB, row.predicted_bytes / GIB
    measured, predicted = map("{:,.4g}".format, sides)
    return row.line, row.model, row.accelerators, measured, predicted, _signed(row.error_percent), row.layout


def _error(percent: float | None) -> str:
    return "-" if percent is None or percent != percent else f"{percent:.1f} %"


def _signed(percent: float | None) -> str:
    return "-" if percent is None or percent != percent else f"{percent:+.1f} %"


def _print_table(out: Console, facts: TableFacts, score: Score) -> None:
    readings = [_read_as(each) for each in score.frameworks]
    print_folded(out, f"{score.table}: {'; '.join(part for part in (facts.title, *readings[:1]) if part)}", "bold")
    for words in readings[1:]:
        print_folded(out, f"  {words}", "")
    if facts.source:
        print_folded(out, f"  source: {facts.source}", "")
    for convention in facts.conventions:
        print_folded(out, f"  {convention}")
    if score.columns_not_read:
        print_folded(out, f"  columns not read: {', '.join(score.columns_not_read)}", "")
    for words in assumed_lines(score.assumed):
        print_folded(out, f"  {words}")
    if score.skipped:
        reasons = "; ".join(
            f"{reason} ({rows})" for reason, rows in list(score.skipped_reasons.items())[:SHOWN_REASONS]
        )
        print_folded(out, f"  skipped {score.skipped} of {score.rows} rows: {reasons}", "")
    for line in skipped_lines(score.skipped_rows):
        print_folded(out, f"  skipped {line}", "")
    if score.fits:
        _print_fits(out, score.fits)
    if score.worst:
        print_table(out, map(_worst, score.worst), _worst_titles("worst: line", "s"), optional=("layout",))
    if score.worst_memory:
        titles = _worst_titles("worst memory: line", "GiB")
        print_table(out, map(_worst, score.worst_memory), titles, optional=("layout",))
    out.print()


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
    return f"{words}; as {reading.rival}: step time {_signed(reading.rival_percent)}"


def _print_fits(out: Console, fits: Fits) -> None:
    cells = [
        ("predicted to fit", fits.fits_and_ran, fits.fits_and_failed),
        ("predicted not to fit", fits.exceeds_and_ran, fits.exceeds_and_failed),
    ]
    print_table(out, cells, ["memory, all complete rows", "ran", "failed"])
