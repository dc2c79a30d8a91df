"""A dry run for people: its classes of ranks, what agreed, and what the fullest rank's memory is for."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from reference_runs.accelerator import Accelerator
from reference_runs.layout import layout_text
from suite.metrics.comparison import Verdict
from suite.metrics.figures import Quantity
from suite.predict.analytic.memory_uncertainty import Fitting, PeakKind, peak_uncertainty
from suite.predict.analytic.usable_memory import usable_memory
from suite.report.terminal.tables import (
    VERDICT_COLOURS,
    difference,
    print_comparison,
    print_folded,
    print_table,
    row_name,
)
from suite.reproduce.dry_run.comparison import CountedClass, DryRun, peak_parts
from suite.reproduce.dry_run.depth_line import FEW

GIB = 2**30
TFLOP = 1e12
LISTED_FAILURES = 6
NOT_INCLUDED = "without workspaces of libraries and NCCL's buffers"


def print_dry_run(out: Console, run: DryRun, board: Accelerator | None, *, complete: bool) -> None:
    """Print a dry run in short, or with every figure where it is to be `complete`."""
    layout = run.workload.layout
    out.print(f"{escape(run.name)}, {layout_text(layout)}: [{VERDICT_COLOURS[run.verdict]}]{run.verdict.value}[/]")
    print_folded(out, how_executed(run), "")
    for change in run.changes:
        print_folded(out, f"changed: {change}")
    if complete:
        print_comparison(out, run.rows, left="predicted", right="counted")
    print_table(out, [_class_cells(run, each) for each in run.counted], _TITLES, right=_TITLES)
    print_folded(out, _exact_line(run), "")
    failed = [row for row in run.rows if row.verdict is Verdict.FAIL]
    for row in failed[:LISTED_FAILURES]:
        print_folded(out, f"fail {row_name(row)}: predicted {row.left}, counted {row.right}: {row.why}", "bold red")
    if len(failed) > LISTED_FAILURES:
        print_folded(out, f"fail {len(failed) - LISTED_FAILURES} more: --all", "bold red")
    for line in (*_peak_lines(run), *fit_lines(run, board)):
        print_folded(out, line, "")


def how_executed(run: DryRun) -> str:
    """A sentence with the ranks that were executed for others, and the micro-batches of each."""
    ranks, classes = sum(each.ranks for each in run.classes), len(run.classes)
    alike = f"{ranks:,} ranks executed"
    if ranks > classes:
        alike = f"{ranks:,} ranks of {classes} kinds, one of each executed"
    if by_line := [each for each in run.counted if not each.executed]:
        done = f"{ranks:,} ranks of {classes} kinds, one of {classes - len(by_line)} kinds executed"
        line = "those of other stages on an exact line through three"
        if run.by_depth:
            few, more = FEW
            line = f"the others in {few} and {more} layers, whose line is exact for the one in all,"
        alike = f"{done} and {line},"
    experts = "; every expert has as many rows as the others" if run.workload.architecture.experts is not None else ""
    executed = run.executed
    if executed == [run.micro_batches]:
        return f"{alike} without memory; micro-batches of a step: {run.micro_batches}{experts}"
    numbers = "and" if len(executed) == 2 else "to"
    of_step = f"with {executed[0]} {numbers} {executed[-1]} micro-batches, from which the {run.micro_batches} follow"
    return f"{alike} without memory, {of_step}{experts}"


_TITLES = (
    *("stage", "ranks", "executed", "parameters", "hardware Tflop", "activations GiB"),
    *("peak GiB", "predicted", "difference"),
)


def _class_cells(run: DryRun, each: CountedClass) -> tuple[object, ...]:
    counts = each.step.counts
    peak = next(row for row in run.rows if row.quantity == Quantity.PEAK_BYTES and row.rank == each.of.rank)
    return (
        each.of.stage,
        each.of.ranks,
        f"rank {each.of.rank}" if each.executed else "by line",
        f"{counts.parameters:,}",
        f"{counts.hardware_flop / TFLOP:,.4g}",
        f"{counts.activation_bytes / GIB:.4g}",
        f"{counts.peak_bytes / GIB:.4g}",
        f"{(peak.left or 0) / GIB:.4g}",
        difference(peak),
    )


def _exact_line(run: DryRun) -> str:
    exact = [row for row in run.rows if row.tolerance == 0 and row.verdict is Verdict.PASS]
    names = dict.fromkeys(row.quantity.replace("_", " ") for row in exact)
    return f"{len(exact)} exact figures agree: {', '.join(names)}"


def _peak_lines(run: DryRun) -> list[str]:
    fullest = run.fullest
    moment = peak_parts(fullest.step)
    parts = ", ".join(f"{name} {size / GIB:.3g}" for name, size in moment.bytes.items() if size >= moment.total / 1000)
    return [
        f"fullest: rank {fullest.of.rank} of stage {fullest.of.stage}, {moment.total / GIB:.4g} GiB in its "
        f"{moment.phase}: {parts}"
    ]


def fit_lines(run: DryRun, board: Accelerator | None) -> list[str]:
    """Whether the fullest rank fits an accelerator; none where none is named."""
    if board is None:
        return []
    room = f"{run.fullest.step.counts.peak_bytes / GIB:,.4g} of {usable_memory(board.board).usable / GIB:,.4g} GiB"
    return [f"{fitting_of(run, board).words}: {room} usable on {board.name}, {NOT_INCLUDED}"]


def fitting_of(run: DryRun, board: Accelerator) -> Fitting:
    """Whether the fullest rank fits an accelerator."""
    usable = usable_memory(board.board).usable
    return peak_uncertainty(PeakKind.WALKED).fitting(run.fullest.step.counts.peak_bytes, usable)


def print_side_by_side(out: Console, runs: list[DryRun]) -> None:
    """The fullest rank of several layouts, and what each of its ranks computes and sends at most."""
    titles = (
        "layout",
        "verdict",
        "peak GiB",
        "activations GiB",
        "hardware Tflop",
        "sent GiB",
        "messages",
        "in the peak",
    )
    cells = []
    for run in runs:
        counts = [each.step.counts for each in run.counted]
        parts = list(peak_parts(run.fullest.step).bytes.items())[:3]
        cells.append(
            (
                layout_text(run.workload.layout),
                run.verdict.value,
                f"{run.fullest.step.counts.peak_bytes / GIB:.4g}",
                f"{max(each.activation_bytes for each in counts) / GIB:.4g}",
                f"{max(each.hardware_flop for each in counts) / TFLOP:,.4g}",
                f"{max(sum(c.payload_bytes for c in each.collectives) for each in counts) / GIB:.4g}",
                f"{max(sum(c.messages for c in each.collectives) for each in counts):,}",
                ", ".join(f"{name} {size / GIB:.3g}" for name, size in parts),
            )
        )
    print_table(out, cells, titles, right=titles[2:7])
