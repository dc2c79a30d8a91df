"""A launch for people: what agreed, memory, where the time went, throughput, loss and record; or every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape

from reference_runs.layout import stages_word
from reference_runs.units import printed, printed_alike
from suite.job.events import RoutedLayer, Status
from suite.job.slice import SliceTimes, slowest
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import LAST_LOSSES, MEASURED_PASSES, Quantity, StepTerm, last_loss
from suite.metrics.launch_statistics import QuantityStatistics
from suite.predict.executed_run.stage_plan import StagePlan
from suite.report.launch_lines import goodput_lines, packing_lines, routing_lines, routing_summary, staleness_lines
from suite.report.slice import print_parts
from suite.report.terminal.tables import (
    NOT_JUDGED,
    VERDICT_COLOURS,
    bar,
    difference,
    print_comparison,
    print_folded,
    print_table,
    row_name,
    verdict_word,
    whole_job,
)
from suite.reproduce.reproduce import LaunchResult

LARGEST_TERMS = 3
THE_SHEET = "data sheet"  # in the terms of shares of its peaks
LISTED_FAILURES = 3
_BAR_CELLS = 12
_COUNTED: dict[str, str] = {
    Quantity.MODEL_FLOP: "flop",
    Quantity.HARDWARE_FLOP: "flop",
    Quantity.WEIGHT_BYTES: "state bytes",
    Quantity.GRADIENT_BYTES: "state bytes",
    Quantity.OPTIMIZER_BYTES: "state bytes",
    Quantity.WEIGHT_VERSIONS: "weight versions",
    Quantity.STALENESS: "staleness",
}
_STATISTICS = ("quantity", "launches", "median", "minimum", "maximum", "variation", "interval", "detectable")
DISTURBING_SHARE = 0.05  # of the processors, from which on others are named


def print_launch(out: Console, result: LaunchResult, *, complete: bool) -> None:
    """Print a launch, in at most 15 lines, or with every figure where it is to be `complete`."""
    if result.status is not Status.OK:
        out.print(f"[bold red]{escape(result.run)}: {result.status.value}[/]: {escape(result.message)}")
    elif not result.rows:  # too few steps were left
        print_folded(out, f"{result.run}: {result.message}", "")
        for line in (_loss_line(result), *_loss_scale_lines(result), *goodput_lines(result.goodput)):
            print_folded(out, line, "")
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
    took = "" if step is None else f", step time {_both_sides(step)}"
    out.print(f"{head}{_verdict(result)}{took}")


def _verdict(result: LaunchResult) -> str:
    message = f": {result.message}" if result.message else ""
    return f"[{VERDICT_COLOURS[result.verdict]}]{verdict_word(result.verdict)}[/]{escape(message)}"


def _print_all(out: Console, result: LaunchResult) -> None:
    out.print(f"{escape(result.run)}: {_verdict(result)}")
    print_comparison(out, result.rows, left="predicted", right="measured")
    if times := slice_times_of(result):
        print_parts(out, times)
        return
    for line in _reported_lines(result, routing_lines):
        print_folded(out, line, "")
    _print_time(out, result)
    if result.time is not None:
        print_folded(out, f"unexplained: {result.time.unexplained_share:.1%} of the step", "")
    speed, others = _speed_lines(result), _others_lines(result, least_share=0.0)
    for line in (*_stage_lines(result.stages), *speed, *others, f"arithmetic: {result.arithmetic}"):
        print_folded(out, line, "")
    if is_predicted(result):
        out.print(f"[dim]machine profile {escape(result.profile)}[/]", soft_wrap=True)


def _print_short(out: Console, result: LaunchResult) -> None:
    """Print at most 15 lines of 80 characters; where figures differ, these in place of times."""
    failed = [row for row in result.rows if row.verdict is Verdict.FAIL]
    out.print(f"{escape(result.run)}: {_verdict(result)}")
    print_folded(out, _exact_line(result.rows), "")
    for row in failed[:LISTED_FAILURES]:
        within = f"; tolerance {100 * row.tolerance:.0f} %" if row.tolerance else ""
        print_folded(out, f"fail {row_name(row)}: {_both_sides(row)}{within}", "bold red")
    if len(failed) > LISTED_FAILURES:
        print_folded(out, f"fail {len(failed) - LISTED_FAILURES} more: --all", "bold red")
    if peak := _row(result.rows, Quantity.PEAK_BYTES):
        print_folded(out, f"memory at the peak: {_both_sides(peak)}", "")
    if times := slice_times_of(result):
        print_parts(out, times)
        for line in _peak_lines(result.rows):
            print_folded(out, line, "")
        return
    _print_time(out, result)
    if not failed:
        _print_terms(out, result.rows)
        rate = _row(result.rows, Quantity.TOKENS_PER_SECOND)
        throughput = [f"throughput: {_both_sides(rate)}"] if rate else []
        others = _others_lines(result, least_share=DISTURBING_SHARE)
        lines = (*_waiting_lines(result.rows), *_speed_lines(result), *others, *throughput)
        for line in (*lines, *_peak_lines(result.rows)):
            print_folded(out, line, "")
    for line in _reported_lines(result, routing_summary):
        print_folded(out, line, "")
    print_folded(out, "--all prints every figure")


def slice_times_of(result: LaunchResult) -> SliceTimes | None:
    """Times of the parts of a slice that ended well; None for a whole run."""
    return slowest([report.slice_times for report in result.finished if report.slice_times])


def _exact_line(rows: Sequence[Row]) -> str:
    """The number of exact figures that agree, and what they count."""
    exact = [row for row in rows if row.tolerance == 0 and row.verdict is Verdict.PASS]
    names = dict.fromkeys(_COUNTED.get(row.quantity, row.quantity.replace("_", " ")) for row in exact)
    return f"{len(exact)} exact figures agree: {', '.join(names)}" if exact else "no exact figure agrees"


def _both_sides(row: Row) -> str:
    """The measured side and how it differs from the predicted one; with one side alone, the reason."""
    predicted, measured = _amounts(row)
    if row.left is None or row.right is None:
        return f"{f'measured {measured}' if row.left is None else f'predicted {predicted}'}, {escape(row.why or '')}"
    return f"{measured}, {difference(row, than='predicted')} ({predicted})"


def _amounts(row: Row) -> tuple[str, str]:
    """Both sides with their unit: the same unit and decimals; exact ones in full."""
    values = [row.left, row.right]
    scale, unit = 1.0, "" if row.unit in ("1", "byte") else f" {row.unit}"
    if row.tolerance != 0 and row.unit == "byte":
        scale, unit = 1e-6, " MB"
    elif row.unit == "s":
        scale, unit = _time_unit(values)
    scaled = values if scale == 1.0 else [None if value is None else scale * value for value in values]
    left, right = printed_alike(scaled, row.unit)
    return f"{left}{unit}", f"{right}{unit}"


def _time_unit(seconds: Iterable[float | None]) -> tuple[float, str]:
    """The factor and the unit in which times are printed that stand together."""
    longest = max((value for value in seconds if value is not None), default=0.0)
    return (1.0, " s") if longest >= 1 else (1e3, " ms")


def _seconds(value: float) -> str:
    return f"{value:,.4g} s" if value >= 1 else f"{value * 1e3:,.4g} ms"


def is_predicted(result: LaunchResult) -> bool:
    """Whether the step time is predicted."""
    step = _row(result.rows, Quantity.STEP_SECONDS)
    return step is not None and step.left is not None


def _print_time(out: Console, result: LaunchResult) -> None:
    step = _row(result.rows, Quantity.STEP_SECONDS)
    if step is None or step.left is None:
        if step is not None:
            out.print(f"step time: measured {_amounts(step)[1]}")
        out.print(f"step time is not predicted: {result.profile}", markup=False, soft_wrap=True)
        return
    predicted, measured = _amounts(step)
    within = "" if result.step_uncertainty is None else f" ± {100 * result.step_uncertainty:.0f} %"
    apart = difference(step, than="predicted")
    print_folded(out, f"step time: {measured}, {apart} ({predicted}{within}); {NOT_JUDGED}", "")


def _print_terms(out: Console, rows: Sequence[Row]) -> None:
    """Print the largest measured terms of the step, in one unit, with bars of their share of it."""
    step = _row(rows, Quantity.STEP_SECONDS)
    terms = [row for term in StepTerm if (row := _row(rows, Quantity.STEP_SECONDS, term.value)) and row.right]
    if step is None or not step.right or not terms:
        return
    scale, unit = _time_unit([step.left, step.right])
    decimals = 4 if scale == 1 else 1
    for row in sorted(terms, key=lambda row: -(row.right or 0))[:LARGEST_TERMS]:
        measured = f"{scale * (row.right or 0):,.{decimals}f}{unit}"
        apart = "" if row.left is None else f", {difference(row, than='predicted')}"
        line = f"  {row.term:24} {measured:>9}{apart:31} "
        print_folded(out, f"{line}{bar((row.right or 0) / step.right, cells=_BAR_CELLS)}", "")


def _waiting_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line with the share of time that a pipeline's stage waits, measured and by its schedule."""
    bubble = _row(rows, Quantity.BUBBLE_FRACTION, MEASURED_PASSES)
    if bubble is not None and bubble.left is not None and bubble.right is not None:
        judged = "within 5 points" if bubble.verdict is Verdict.PASS else bubble.why
        yield f"a stage waits {bubble.right:.1%}; its schedule, with the measured passes: {bubble.left:.1%}, {judged}"


def _stage_lines(plan: StagePlan | None) -> Iterator[str]:
    """A line with the layers and times of the stages, and the fastest split that follows from them."""
    if plan is None:
        return
    executed, planned = (
        f"{' + '.join(map(str, layers))} layers take {', '.join(map(_seconds, seconds))} a micro-batch"
        for layers, seconds in ((plan.layers, plan.seconds), (plan.planned_layers, plan.planned_seconds))
    )
    words = f"{stages_word('layers', plan.planned_layers)} in --layout"
    best = f"the fastest split: {planned}, {words}"
    if plan.layers == plan.planned_layers:
        best = "which no other split betters"
    yield f"stages of {executed}; {best}"


def _peak_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Model flop a second over each peak of a GPU's data sheet."""
    shares = [row for row in whole_job(rows) if row.quantity == Quantity.MFU and row.right is not None]
    words = [f"{row.right:.1%} {row.term}" for row in shares if row.term and THE_SHEET in row.term]
    if words:
        yield f"model flop: {'; '.join(words)}"


def _speed_lines(result: LaunchResult) -> Iterator[str]:
    """A line with the processors' slowdown since the calibration, and the error once it is corrected for."""
    slower = [row.right for row in result.rows if row.quantity == Quantity.CPU_SLOWDOWN and row.right is not None]
    step = _row(result.rows, Quantity.STEP_SECONDS_AT_CPU_SPEED)
    if slower and step is not None and step.left is not None and step.right:
        between = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(slower), max(slower))))
        apart = difference(step, than="predicted")
        yield f"CPU slowdown {between}: {apart} at that speed ({_amounts(step)[0]})"


def _others_lines(result: LaunchResult, *, least_share: float) -> Iterator[str]:
    """The share of the processors that others took while steps were timed, if it is at least `least_share`."""
    others, steal = result.others_share, result.steal_share
    if others is not None and steal is not None and max(others, steal) >= least_share:
        yield f"other processes took {others:.0%} of the processors, other guests of the host {steal:.0%}"


def _reported_lines(
    result: LaunchResult, routing: Callable[[Iterable[list[RoutedLayer]]], Iterator[str]]
) -> Iterator[str]:
    """Losses, and what the ranks report besides figures; `routing` says how much of it."""
    yield _loss_line(result)
    yield from _loss_scale_lines(result)
    yield from routing(rank.routed for rank in result.finished)
    yield from packing_lines(rank.packed for rank in result.finished)
    yield from staleness_lines(rank.store_work for rank in result.finished)
    yield from goodput_lines(result.goodput)


def _loss_line(result: LaunchResult) -> str:
    first = _row(result.rows, Quantity.FIRST_LOSS)
    began = f"{result.losses[0]:.3f}" if first is None or first.left is None else _both_sides(first)
    return f"loss: first {began}; mean of last {min(LAST_LOSSES, len(result.losses))}: {last_loss(result.losses):.3f}"


def _loss_scale_lines(result: LaunchResult) -> Iterator[str]:
    if result.loss_scales:
        skipped = f"{len(result.skipped)} steps" if len(result.skipped) > 1 else ", ".join(map(str, result.skipped))
        scales = f"loss scale {result.loss_scales[0]:,.0f} -> {result.loss_scales[-1]:,.0f}"
        yield f"{scales}, skipped by an overflow: {skipped or 'none'}"


def _row(rows: Sequence[Row], quantity: Quantity, term: str | None = None) -> Row | None:
    """The row of the whole job."""
    return next(
        (r for r in whole_job(rows) if (r.quantity, r.term, r.rank, r.axis) == (quantity, term, None, None)), None
    )


def print_launches(
    out: Console, run: str, started: int, left_out: list[str], summaries: list[QuantityStatistics]
) -> None:
    """Print how many of the launches ended well, why the others are left out, and a row for each quantity."""
    well = started - len(left_out)
    what = "nothing to summarise" if well < 2 else "the others are left out" if left_out else "none is left out"
    out.print(f"{escape(run)}: {well} of {started} launches ended well; {what}")
    for line in left_out:
        out.print(f"left out: {escape(line)}", soft_wrap=True)
    if not summaries:
        return
    print_table(out, map(_statistics, summaries), _STATISTICS, right=_STATISTICS[1:], optional=("interval", "launches"))
    confidence = {summary.confidence for summary in summaries if summary.confidence is not None}
    for share in sorted(confidence):
        print_folded(out, f"interval: of the median, between two of the launches, confidence {share:.1%}")
    for reason in dict.fromkeys(summary.why for summary in summaries):
        print_folded(out, f"detectable: least change of the median; {reason}")


def _statistics(summary: QuantityStatistics) -> list[str]:
    low, high = summary.interval or (None, None)
    return [
        " ".join(part for part in (summary.quantity, summary.axis, summary.operation, summary.term) if part),
        str(summary.launches),
        *(printed(value, summary.unit) for value in (summary.median, summary.minimum, summary.maximum)),
        _share(summary.variation),
        "-" if low is None else f"{printed(low, summary.unit)} to {printed(high, summary.unit)}",
        _share(summary.least_detectable_change),
    ]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
