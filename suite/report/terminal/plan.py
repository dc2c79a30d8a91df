"""A plan and a fit in the terminal: layouts, what binds the best one, and other numbers of accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from reference_runs.layout import Layout, Offload, layout_text
from reference_runs.units import printed
from suite.predict.analytic.offload import UPDATE_SECONDS, UPDATED_PARAMETERS
from suite.predict.machine_model.model import RunMachine
from suite.predict.plan.asked import Assumed
from suite.predict.plan.changes import HelpfulChange
from suite.predict.plan.fit import Fit, host_bytes
from suite.predict.plan.frontier import frontier
from suite.predict.plan.plan import OtherNumber, PlannedLayout, TrainingPlan
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found
from suite.predict.plan.training import SECONDS_PER_DAY, Goodput, TrainingBill
from suite.report.plots.plan import spent
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


def print_assumptions(out: Console, assumed: Sequence[Assumed], notes: Sequence[str] = ()) -> None:
    """Print what neither run nor options say, each with the option that changes it; and what is to be noted."""
    for note in notes:
        print_folded(out, f"note: {note}", "yellow")
    for each in assumed:
        print_folded(out, f"assumed: {each.words} ({each.option})")


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
    best = frontier(others, spent, lambda each: each.planned.training.seconds)
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


def print_fit_answer(
    out: Console, name: str, machine: RunMachine, answer: Fit, fix: str, *, any_software: bool = False
) -> None:
    """Print whether it fits, the fastest and the smallest layout, the largest that would fit, and what was held."""
    question, result = answer.question, answer.result
    limit, memory = question.memory_bytes / GIB, question.machine.memory_bytes / GIB
    where = f"{name} on {question.ranks:,} {machine.accelerator.name}"
    if result.best:
        counts = f"{result.fitting:,} of {result.considered:,} layouts"
        print_folded(out, f"fits: {where}, in {counts}", "bold green")
        figures = result.best[0].figures
        error = "" if machine.uncertainty is None else f" ± {machine.uncertainty:.0%}"
        time = f"{printed(figures.step_seconds, 's')} s a step{error}, {figures.tokens_per_second:,.0f} tokens/s"
        print_folded(out, f"fastest: {_layout(result.best[0], question)}, {time}, MFU {figures.mfu:.1%}", "")
    else:
        would = f"{answer.ranks:,} accelerators would do" if answer.ranks else "nor would more accelerators do"
        print_folded(out, f"does not fit: {where}; {would}", "bold red")
    if result.smallest is None:
        print_folded(out, "no layout divides model, batch and accelerators", "")
    else:
        print_folded(out, f"least memory: {_layout(result.smallest, question)}", "")
    if answer.micro_batch is not None:
        words = f"{samples(answer.micro_batch)} of {question.architecture.sequence:,} tokens"
        print_folded(out, f"largest micro-batch that fits: {words}", "")
    if answer.largest is not None:
        layers, parameters = answer.largest
        words = f"{layers:,} layers, {parameters / 1e9:,.4g} billion parameters (to 2 %)"
        print_folded(
            out, f"largest model of this width that fits: {words}; this one has {question.architecture.layers}", ""
        )
    print_folded(out, f"memory: {limit:,.1f} GiB, {memory:,.1f} less the error to expect of a predicted peak")
    batch = f"{samples(question.recipe.global_batch)} of {question.architecture.sequence:,} tokens a step"
    print_folded(out, f"held: {batch}, {question.recipe.precision}{f', {fix}' if fix else ''}")
    switches = "every switch, whatever software has it" if any_software else f"what {machine.stack.name} executes"
    print_folded(out, f"searched: {switches}; {_offloading(question)}")
    if result.best and result.best[0].layout.offload is not Offload.NONE:
        gibibytes = host_bytes(question, result.best[0].layout) / GIB
        print_folded(out, f"the fastest keeps {gibibytes:,.0f} GiB in the memory of each host, which is not checked")


def samples(number: int) -> str:
    """The number with its noun: "1 sample", "1,024 samples"."""
    return f"{number:,} {'sample' if number == 1 else 'samples'}"


def _offloading(question: Question) -> str:
    """Whether state may go to the host, and how fast that is supposed to be."""
    link = question.machine.host_bytes_per_second
    if link is None:
        return "no offloading: the link to the host is not recorded"
    if question.offloads[-1] is Offload.NONE:
        return "no offloading, as was asked for"
    update = f"the host updates {UPDATED_PARAMETERS / UPDATE_SECONDS / 1e9:.2g} billion parameters a second and node"
    return f"the optimizer's state may be offloaded: {link / 1e9:.3g} GB/s, the peak of the link, and {update}, assumed"


def _layout(found: Found, question: Question) -> str:
    """The layout in words that `predict` reads as it: how ZeRO-1 reduces is said, as stacks have a way of their own."""
    base = msgspec.structs.replace(question.base, reduce_scatter=found.layout.zero_stage == 1)
    return f"{layout_text(found.layout, base=base)}, {found.figures.peak_bytes / GIB:,.1f} GiB"
