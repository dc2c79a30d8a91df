"""A plan in the terminal: the layouts, what binds the best one, what would help, and other numbers of accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from reference_runs.layout import Layout, layout_text
from reference_runs.units import printed
from suite.predict.plan.changes import HelpfulChange
from suite.predict.plan.frontier import frontier
from suite.predict.plan.plan import OtherNumber, PlannedLayout, TrainingPlan
from suite.predict.plan.question import Question
from suite.predict.plan.training import SECONDS_PER_DAY, Goodput, TrainingBill
from suite.report.terminal.tables import print_folded, print_table

if TYPE_CHECKING:  # `plan` reads no published table
    from suite.predict.plan.published_layouts import RankedLayout

GIB = 2**30
BINDING_TERMS = 3
NEAR = 0.03  # of the best step


def print_plan(out: Console, plan: TrainingPlan) -> None:
    """Print the layouts, or the smallest one where none fits."""
    question, result = plan.question, plan.result
    limit, memory = question.memory_bytes / GIB, question.machine.memory_bytes / GIB
    if not plan.best:
        if result.smallest is None:
            print_folded(out, "no layout divides model, batch and accelerators", "bold red")
            return
        smallest = result.smallest
        needed = f"{smallest.figures.peak_bytes / GIB:,.1f} GiB with {layout_text(smallest.layout, complete=True)}"
        print_folded(out, f"does not fit: the least is {needed}; allowed: {limit:,.1f} of {memory:,.1f}", "bold red")
        return
    counts = f"fits: {result.fitting:,} of {result.considered - result.left_out:,} layouts"
    margin = f"{limit:,.1f} GiB, {memory:,.1f} less the error to expect of a predicted peak"
    print_folded(out, f"{counts} within {margin}", "green")
    rows = [_row(number, planned, plan) for number, planned in enumerate(plan.best, start=1)]
    titles = ["", "step s", "GiB", "free", "MFU", "days", "1,000 h", "MWh", "cost", "layout"]
    kept = [index for index, _ in enumerate(titles) if index == 0 or any(row[index] for row in rows)]
    shown = [titles[index] for index in kept]
    out.print()
    print_table(
        out, [[row[index] for index in kept] for row in rows], shown, optional=("MWh", "free"), right=shown[1:-1]
    )
    share = f"± {plan.uncertainty:.0%}"
    print_folded(
        out, f"=: equal to the first within the error to expect of a step time, {share}; {result.within:,} are"
    )


def _row(number: int, planned: PlannedLayout, plan: TrainingPlan) -> list[str]:
    figures, training = planned.found.figures, planned.training
    fastest = plan.best[0].found.figures.step_seconds
    equal = number > 1 and figures.step_seconds <= fastest * (1 + plan.equal_share)
    return [
        "=" if equal else str(number),
        printed(figures.step_seconds, "s"),
        f"{figures.peak_bytes / GIB:,.1f}",
        f"{(plan.question.machine.memory_bytes - figures.peak_bytes) / GIB:,.1f}",
        f"{figures.mfu:.1%}",
        printed(training.days, "d"),
        _thousand_hours(training),
        "" if training.joules is None else printed(training.joules / 3.6e9, "MWh"),
        "" if training.cost is None else f"{training.cost:,.0f}",
        _short(planned, plan.question),
    ]


def _thousand_hours(training: TrainingBill) -> str:
    return printed(training.accelerator_seconds / 3.6e6, "h")


def _short(planned: PlannedLayout, question: Question) -> str:
    """The words of the layout that a search chooses: buckets are the run's own.

    The order of ranks and how layers are dealt are said where they are not the run's own.
    """
    layout, base = planned.found.layout, question.base
    scatters = base.reduce_scatter and layout.zero_stage == 1  # has no meaning elsewhere
    bucket_bytes = Layout().bucket_bytes
    return layout_text(
        msgspec.structs.replace(layout, bucket_bytes=bucket_bytes),
        base=msgspec.structs.replace(base, bucket_bytes=bucket_bytes, reduce_scatter=scatters),
    )


def print_why(out: Console, plan: TrainingPlan) -> None:
    """Print what the best layout's step consists of, and the changes that would shorten it."""
    if plan.step is None:
        return
    terms = sorted(plan.step._asdict().items(), key=lambda term: -term[1])[:BINDING_TERMS]
    total = plan.step.total_seconds
    names = [f"{name.removesuffix('_seconds').replace('_', ' ')} {seconds / total:.0%}" for name, seconds in terms]
    out.print()
    print_folded(out, f"what binds the first: {', '.join(names)}", "")
    if not plan.changes:
        print_folded(out, "what would help it: no single change of layout, batch or network saves time", "")
        return
    rows = [_change(change, plan) for change in plan.changes]
    print_table(out, rows, ["what would help it", "time", "memory", "but"], right=("time", "memory"))


def _change(change: HelpfulChange, plan: TrainingPlan) -> list[str]:
    more = change.more_bytes / GIB
    memory = f"{more:+,.1f} GiB" if abs(more) >= 0.05 else "as much"
    against = []
    if not change.fits:
        over = plan.best[0].found.figures.peak_bytes + change.more_bytes - plan.question.memory_bytes
        against.append(f"{over / GIB:,.1f} GiB too many")
    if not change.allowed:
        against.append("the software does not execute it")
    return [change.words, f"{change.time:+.1%}", memory, " and ".join(against)]


def print_goodput(out: Console, expected: Goodput) -> None:
    """Print the expected days of the first layout's training, and what they rest on."""
    days = printed(expected.seconds / SECONDS_PER_DAY, "d")
    failure, interval = (
        printed(seconds / 3600, "h") for seconds in (expected.between_failures_seconds, expected.interval_seconds)
    )
    out.print()
    print_folded(out, f"with failures: {days} days, of which {expected.share:.1%} train undisturbed", "")
    rest = f"a checkpoint of {expected.checkpoint_seconds:g} s each {interval} h (Daly), {expected.restart_seconds:g} s"
    print_folded(out, f"a failure each {failure} h, {rest} to restart", "")
    for words in expected.assumed:
        print_folded(out, words)


def print_numbers(out: Console, question: Question, others: Sequence[OtherNumber]) -> None:
    """Print the fastest layout of each number of accelerators; * where none is as fast for as little."""
    best = frontier(others, _held, lambda each: each.planned.training.seconds)
    rows = []
    for each in others:
        training = each.planned.training
        rows.append(
            [
                f"{each.ranks:,}{'*' if each in best else ' '}",
                printed(training.days, "d"),
                _thousand_hours(training),
                *([] if training.cost is None else [f"{training.cost:,.0f}"]),
                f"{each.planned.found.figures.mfu:.1%}",
                _short(each.planned, question),
            ]
        )
    priced = others[0].planned.training.cost is not None
    titles = ["accelerators", "days", "1,000 h", *(["cost"] if priced else []), "MFU", "layout"]
    out.print()
    print_table(out, rows, titles, right=titles[:-1])
    print_folded(out, f"*: no other number is as fast for as {'little money' if priced else 'few accelerator-hours'}")


def print_ranked(out: Console, ranked: Sequence[RankedLayout]) -> None:
    """Print published layouts beside the best ones, and how many come near."""
    rows = [
        [
            each.name,
            each.layout,
            f"{each.rank} of {each.fitting}",
            f"{each.loss:.1%}",
            "" if each.loss < NEAR else each.best,
            "" if each.loss < NEAR else each.term,
            f"{each.rank_interleaved} of {each.fitting_interleaved}",
            f"{each.loss_interleaved:.1%}",
        ]
        for each in ranked
    ]
    titles = ["published", "layout", "rank", "slower", "than", "by its", "chunks searched", "slower "]
    print_table(out, rows, titles, right=("rank", "slower", "chunks searched", "slower "))
    near = sum(each.loss < NEAR for each in ranked)
    print_folded(out, f"{near} of {len(ranked)} within {NEAR:.0%} of the best dp, tp, pp and micro-batch that fits")


def _held(each: OtherNumber) -> float:
    training = each.planned.training
    return training.accelerator_seconds if training.cost is None else training.cost
