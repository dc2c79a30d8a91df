"""Scores of predictions for people: one line a table, then what was skipped, assumed and missed most in each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.published_tables import TableFacts
from suite.predict.validation.published_tables import Fits, Score, SkippedLine
from suite.report.terminal.tables import plain_table

SHOWN_REASONS = 10  # of a table's skipped rows
SHOWN_LINES = 4  # of the rows that share a reason
_SCORES = ("table", "rows", "used", "skipped", "step time", "constant MFU", "bias", "largest", "peak memory")


def print_scores(out: Console, scored: Sequence[tuple[TableFacts, Score]]) -> None:
    """Print what is known of each table and how near the predictions come; one summary last."""
    for facts, score in scored:
        _print_table(out, facts, score)
    out.print(_summary([score for _, score in scored]))
    out.print(
        "[dim]step time, constant MFU, peak memory: mean absolute error; constant MFU: of the one MFU that comes "
        "nearest to the same rows; bias: mean signed error; largest: the largest signed one[/]"
    )


def _summary(scores: Sequence[Score]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in _SCORES:
        table.add_column(title, justify="left" if title == "table" else "right", no_wrap=True)
    for score in scores:
        counts = [str(count) for count in (score.rows, score.used, score.skipped)]
        errors = [_error(score.step_seconds_mape), _error(score.constant_mfu_mape), _signed(score.step_seconds_bias)]
        last = [_signed(score.step_seconds_max), _error(score.peak_bytes_mape)]
        table.add_row(escape(score.table), *counts, *errors, *last)
    return table


def _error(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f} %"


def _print_table(out: Console, facts: TableFacts, score: Score) -> None:
    out.print(f"[bold]{escape(score.table)}[/]  {escape(facts.title)}")
    if facts.source:
        out.print(f"  source: {escape(facts.source)}", soft_wrap=True)
    for convention in facts.conventions:
        out.print(f"  [dim]{escape(convention)}[/]")
    if score.assumed:
        words = ", ".join(f"{what} ({rows})" for what, rows in score.assumed.items())
        out.print(f"  [dim]assumed where blank (rows): {escape(words)}[/]")
    for line in skipped_lines(score.skipped_rows):
        out.print(f"  skipped {escape(line)}")
    if score.fits:
        out.print(_fits(score.fits))
    if score.worst:
        titles = ["worst: line", "model", "GPUs", "measured s", "predicted s", "error", "layout"]
        rows = [
            [
                str(row.line),
                escape(row.model),
                str(row.accelerators),
                f"{row.measured_seconds:,.4g}",
                f"{row.predicted_seconds:,.4g}",
                _signed(row.error_percent),
                row.layout,
            ]
            for row in score.worst
        ]
        out.print(plain_table(titles, rows))
    out.print()


def skipped_lines(skipped: Sequence[SkippedLine]) -> list[str]:
    """One line a reason, the most frequent first, with the rows that it holds for; a long list ends with a count."""
    by_reason: dict[str, list[int]] = {}
    for each in skipped:
        by_reason.setdefault(each.reason, []).append(each.line)
    ordered = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    lines = []
    for reason, places in ordered[:SHOWN_REASONS]:
        more = len(places) - SHOWN_LINES
        named = ", ".join(map(str, places[:SHOWN_LINES])) + (f" and {more} more" if more > 0 else "")
        lines.append(f"line{'s' if len(places) > 1 else ''} {named}: {reason}")
    left = ordered[SHOWN_REASONS:]
    if left:
        lines.append(f"{sum(len(places) for _, places in left)} more rows for {len(left)} other reasons: see --json")
    return lines


def _fits(fits: Fits) -> Table:
    return plain_table(
        ["memory, all complete rows", "ran", "failed"],
        [
            ["predicted to fit", str(fits.fits_and_ran), str(fits.fits_and_failed)],
            ["predicted not to fit", str(fits.exceeds_and_ran), str(fits.exceeds_and_failed)],
        ],
    )
