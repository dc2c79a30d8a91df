"""A launch for people: what agreed, memory, where the time went, throughput, loss and record; or every figure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reference_runs.units import printed
from suite.job.events import Status
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity, StepTerm
from suite.report.terminal.bars import bar
from suite.report.terminal.tables import difference, percent, print_comparison, row_name, whole_job
from suite.reproduce.reproduce import LaunchResult, last_loss

LARGEST_TERMS = 3
LISTED_FAILURES = 4
_BAR_CELLS = 20
_WIDE = 90  # columns of a terminal that has room for bars
SIGNS = "differences: predicted over measured, less 1; of a term: as a share of the measured step"
DISTURBING_SHARE = 0.05  # of the processors, from which on others are named


def print_launch(out: Console, result: LaunchResult, *, complete: bool) -> None:
    """Print a launch, in at most 15 lines, or with every figure where it is to be `complete`."""
    if result.status is not Status.OK:
        out.print(f"[bold red]{escape(result.run)}: {result.status.value}[/]: {escape(result.message)}")
    elif complete:
        _print_all(out, result)
    else:
        _print_short(out, result)
    out.print(f"record {escape(result.record)}", soft_wrap=True)


def print_launch_line(out: Console, result: LaunchResult, *, number: int, launches: int) -> None:
    """Print one of several launches in a line."""
    head = f"launch {number} of {launches}: "
    if result.status is not Status.OK:
        out.print(f"{head}[bold red]{result.status.value}[/]: {escape(result.message)}")
        return
    step = _row(result.rows, Quantity.STEP_SECONDS)
    took = "" if step is None else f", step time {_beside(step)}"
    out.print(f"{head}{_verdict(result)}{took}")


def _verdict(result: LaunchResult) -> str:
    message = f": {result.message}" if result.message else ""
    word = "not judged" if result.verdict is Verdict.SHOWN else result.verdict.value
    return f"[{'green' if result.verdict is Verdict.PASS else 'bold red'}]{word}[/]{escape(message)}"


def _print_all(out: Console, result: LaunchResult) -> None:
    out.print(f"{escape(result.run)}: {_verdict(result)}")
    print_comparison(out, result.rows, left="predicted", right="measured")
    _print_loss(out, result)
    _print_time(out, result)
    _print_cpu_speed(out, result, least_share=0.0)
    out.print(f"arithmetic: {result.arithmetic}")
    if is_predicted(result):
        out.print(f"[dim]machine profile {escape(result.profile)}[/]", soft_wrap=True)
    out.print(f"[dim]{SIGNS}[/]")


def _print_short(out: Console, result: LaunchResult) -> None:
    out.print(f"{escape(result.run)}: {_verdict(result)}")
    _print_exact(out, result.rows)
    if peak := _row(result.rows, Quantity.PEAK_BYTES):
        out.print(f"memory at the peak: {_beside(peak)}")
    _print_time(out, result)
    _print_terms(out, result.rows)
    _print_cpu_speed(out, result, least_share=DISTURBING_SHARE)
    if rate := _row(result.rows, Quantity.TOKENS_PER_SECOND):
        out.print(f"throughput: {_beside(rate)}")
    _print_loss(out, result)
    out.print(f"[dim]{SIGNS}; --all prints every figure[/]")


def _print_exact(out: Console, rows: Sequence[Row]) -> None:
    """Print the figures that have to be equal in a line, and each that failed on a line of its own."""
    exact = [row for row in rows if row.tolerance == 0 and row.verdict is Verdict.PASS]
    of_job = [row for row in exact if row.rank is row.stage is None]
    if of_job:
        quantities = list(dict.fromkeys(row.quantity for row in of_job))
        sizes = [name.removesuffix("_bytes") for name in quantities if name.endswith("_bytes")]
        names = [name.replace("_", " ") for name in quantities if not name.endswith("_bytes")]
        names += [f"bytes of {', '.join(sizes)}"] if sizes else []
        more = f" and {len(exact) - len(of_job)} of single ranks" if len(exact) > len(of_job) else ""
        out.print(f"{len(of_job)} exact figures{more} agree: {', '.join(names)}")
    failed = [row for row in rows if row.verdict is Verdict.FAIL]
    for row in failed[:LISTED_FAILURES]:
        within = f", tolerance {row.tolerance:.0%}" if row.tolerance else ""
        out.print(f"[bold red]fail[/] {escape(row_name(row))}: {_beside(row)}{within}")
    if len(failed) > LISTED_FAILURES:
        out.print(f"[bold red]fail[/] {len(failed) - LISTED_FAILURES} more: --all")


def _beside(row: Row) -> str:
    """Both sides and how far they are apart; the reason where there is one side alone."""
    named = [f"{name} {_amount(row, value)}" for name, value in (("predicted", row.left), ("measured", row.right))]
    if row.left is None or row.right is None:
        return f"{named[row.left is None]}, {escape(row.why or '')}"
    return f"{', '.join(named)} ({difference(row)})"


def _amount(row: Row, value: float | None) -> str:
    if value is not None and row.tolerance != 0:
        if row.unit == "byte":
            return f"{value / 1e6:,.4g} MB"
        if row.unit == "s":
            return _seconds(value)
    return f"{printed(value, row.unit)}{'' if row.unit in ('1', 'byte') else f' {row.unit}'}"


def _seconds(value: float) -> str:
    return f"{value:,.4g} s" if value >= 1 else f"{value * 1e3:,.4g} ms"


def is_predicted(result: LaunchResult) -> bool:
    """Whether the step time is predicted."""
    step = _row(result.rows, Quantity.STEP_SECONDS)
    return step is not None and step.left is not None


def _print_time(out: Console, result: LaunchResult) -> None:
    step = _row(result.rows, Quantity.STEP_SECONDS)
    if step is not None and is_predicted(result):
        unexplained = "" if result.time is None else f"; unexplained {result.time.unexplained_share:.1%} of the step"
        within = "" if result.step_uncertainty is None else f", expected within ± {result.step_uncertainty:.0%}"
        out.print(f"step time: {_beside(step)}{within}, not judged from one launch{unexplained}")
        return
    if step is not None:
        out.print(f"step time: measured {_amount(step, step.right)}")
    out.print(f"[dim]step time is not predicted: {escape(result.profile)}[/]", soft_wrap=True)


def _print_terms(out: Console, rows: Sequence[Row]) -> None:
    """Print the largest measured terms of the step as bars."""
    step = _row(rows, Quantity.STEP_SECONDS)
    terms = [row for term in StepTerm if (row := _row(rows, Quantity.STEP_SECONDS, term.value)) and row.right]
    if step is None or not step.right or not terms:
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    for numeric in (True, True, False):
        table.add_column(justify="right" if numeric else "left", no_wrap=True)
    for row in sorted(terms, key=lambda row: -(row.right or 0))[:LARGEST_TERMS]:
        took = row.right or 0
        both = _seconds(took)
        if row.left is not None:
            both = f"predicted {_seconds(row.left)}, measured {both}"
        share = "" if row.left is None else percent(row.left - took, step.right)
        table.add_row(
            f"  {row.term}", both, share, bar(took / step.right, cells=_BAR_CELLS) if out.width >= _WIDE else ""
        )
    out.print(table)


def _print_cpu_speed(out: Console, result: LaunchResult, *, least_share: float) -> None:
    """Print how much slower the processors were than in the calibration, and the error once that is corrected for.

    Args:
        least_share: of the processors, from which on what others took is printed too.
    """
    slower = {row.term: row.right for row in result.rows if row.quantity == Quantity.PACE and row.right is not None}
    step = _row(result.rows, Quantity.STEP_SECONDS_AT_PACE)
    if slower and step is not None and step.left is not None and step.right:
        kinds = ", ".join(f"{term} {value:.2f}" for term, value in slower.items())
        out.print(
            f"CPU slowdown since the calibration: {kinds}; predicted at that speed "
            f"{_amount(step, step.left)} ({difference(step)})"
        )
    others, steal = result.others_share, result.steal_share
    if others is not None and steal is not None and max(others, steal) >= least_share:
        out.print(
            f"while steps were timed, other processes took {others:.0%} of the processors, "
            f"other guests of the host {steal:.0%}"
        )


def _print_loss(out: Console, result: LaunchResult) -> None:
    first = _row(result.rows, Quantity.FIRST_LOSS)
    predicted = "" if first is None or first.left is None else f"; first {_beside(first)}"
    out.print(
        f"loss: {result.losses[0]:.3f} -> {last_loss(result.losses):.3f} "
        f"(mean of the last 3 of {len(result.losses)} steps){predicted}"
    )
    if result.loss_scales:
        skipped = ", ".join(map(str, result.skipped)) or "none"
        scales = f"loss scale {result.loss_scales[0]:,.0f} -> {result.loss_scales[-1]:,.0f}"
        out.print(f"{scales}, steps skipped by an overflow: {skipped}")


def _row(rows: Sequence[Row], quantity: Quantity, term: str | None = None) -> Row | None:
    """The row of the whole job."""
    return next(
        (r for r in whole_job(rows) if (r.quantity, r.term, r.rank, r.axis) == (quantity, term, None, None)), None
    )
