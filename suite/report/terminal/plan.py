"""A plan and a fit in the terminal: layouts, what binds the best one, and other numbers of accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.text import Text

from reference_runs.layout import Layout, Offload, layout_text
from reference_runs.run import Workload
from reference_runs.units import printed
from suite.predict.analytic.offload import UPDATE_SECONDS, UPDATED_PARAMETERS
from suite.predict.machine_model.intervals import is_unlike_dense, step_interval
from suite.predict.machine_model.model import RunMachine
from suite.predict.plan.asked import Assumed
from suite.predict.plan.changes import HelpfulChange
from suite.predict.plan.fit import Fit, host_bytes
from suite.predict.plan.frontier import frontier
from suite.predict.plan.plan import OtherNumber, PlannedLayout, TrainingPlan
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found
from suite.predict.plan.training import Goodput, TrainingBill
from suite.predict.recorded_run.prediction import run_prediction
from suite.report.plots.plan import spent
from suite.report.terminal.columns import duration_column, energy_column, fixed, more_or_less, percent
from suite.report.terminal.tables import print_folded, print_table

if TYPE_CHECKING:  # `plan` reads no published table
    from suite.predict.plan.published_layouts import RankedLayout

GIB = 2**30
BINDING_TERMS = 3
STEP_DIGITS = 4
NEAR = 0.03  # of the best step


def print_question(out: Console, name: str, machine: RunMachine, question: Question, *, tokens: int) -> None:
    """Print what is asked: run, accelerators and software in the first line, batch, tokens and nodes in the second."""
    print_folded(out, where_words(name, machine, question.ranks), "bold")
    batch = f"{samples(question.recipe.global_batch)} of {question.architecture.sequence:,} tokens a step"
    per_node = question.machine.accelerators_per_node
    nodes = f"; nodes of {per_node}" if question.ranks > per_node else ""
    print_folded(out, f"{batch}, {tokens / 1e9:,.6g} billion tokens in all{nodes}", "")


def where_words(name: str, machine: RunMachine, ranks: int) -> str:
    """The run, its accelerators and its software: "llama2-7b on 64 h100-sxm with megatron-core"."""
    return f"{name} on {ranks:,} {machine.accelerator.name} with {machine.stack.name}"


def print_plan(out: Console, plan: TrainingPlan) -> None:
    """Print the layouts, or the smallest one where none fits."""
    question, result = plan.question, plan.result
    if not plan.best:
        if result.smallest is None:
            print_folded(out, undivided_words(question), "bold red")
            return
        smallest = result.smallest
        needed = f"{smallest.figures.peak_bytes / GIB:,.1f} GiB with {layout_text(smallest.layout, complete=True)}"
        words = question.fitting(smallest.figures.peak_bytes).words
        print_folded(out, f"{words}: the least is {needed}; {_room_words(question)}", "bold red")
        return
    computed = result.considered - result.left_out
    print_folded(out, f"fits: {result.fitting:,} of {computed:,} layouts; {_room_words(question)}", "green")
    out.print()
    _print_layouts(out, ["", *_columns(plan)], _rows(plan), [_short(each, question) for each in plan.best])
    least, most = question.peak_uncertainty.interval(1.0)
    times = f"{least:.2f} to {most:.2f} times the predicted one"
    print_folded(out, f"fits: the probability of it; 80 % of measured peaks are {times}")
    error = "a dense model's step time" if is_unlike_dense(question.architecture) else "a step time"
    equal = f"layouts as fast as the first, within the error of {error} ({plan.uncertainty:.0%})"
    print_folded(out, f"= marks {equal}: {result.within:,} of all that fit".replace("%", " %"))


def undivided_words(question: Question) -> str:
    """The line for a number of accelerators that neither batch nor model can be dealt to."""
    batch = samples(question.recipe.global_batch)
    return f"no layout deals the batch of {batch} and the model to {question.ranks:,} accelerators"


def _room_words(question: Question) -> str:
    """How much of the memory a layout may fill."""
    limit, memory = question.memory_bytes / GIB, question.machine.memory_bytes / GIB
    return f"at most {limit:,.1f} of {memory:,.1f} usable GiB are filled"


def _bill_columns(bills: Sequence[TrainingBill]) -> dict[str, list[str]]:
    """Durations, GPU-hours, energy and cost of trainings, a column each in one unit; none of what is not known."""
    duration, durations = duration_column([bill.seconds for bill in bills])
    columns = {duration: durations, "GPU-hours": fixed([bill.accelerator_seconds / 3600 for bill in bills])}
    joules = [bill.joules for bill in bills if bill.joules is not None]
    if len(joules) == len(bills):
        energy, energies = energy_column(joules)
        columns[energy] = energies
    costs = [bill.cost for bill in bills if bill.cost is not None]
    return columns | ({"cost": fixed(costs)} if len(costs) == len(bills) else {})


def _columns(plan: TrainingPlan) -> dict[str, list[str]]:
    figures = [each.found.figures for each in plan.best]
    return {
        "step s": fixed([each.step_seconds for each in figures], STEP_DIGITS),
        "GiB": [f"{each.peak_bytes / GIB:,.1f}" for each in figures],
        "MFU %": [f"{100 * each.mfu:.1f}" for each in figures],
        **_bill_columns([each.training for each in plan.best]),
        "fits": [plan.question.fitting(each.peak_bytes).percent for each in figures],
    }


def _rows(plan: TrainingPlan) -> list[list[str]]:
    fastest = plan.best[0].found.figures.step_seconds
    rows = []
    for number, cells in enumerate(zip(*_columns(plan).values(), strict=True), start=1):
        seconds = plan.best[number - 1].found.figures.step_seconds
        equal = number > 1 and seconds <= fastest * (1 + plan.equal_share)
        rows.append(["=" if equal else str(number), *cells])
    return rows


def _print_layouts(out: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], layouts: Sequence[str]) -> None:
    """Print a table of numbers, and below each row its layout, which no column is wide enough for."""
    widths = [max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate(titles)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    out.print(Text(line(titles), "bold"), soft_wrap=True)
    for cells, layout in zip(rows, layouts, strict=True):
        out.print(Text(line(cells)), soft_wrap=True)
        print_folded(out, f"    {layout}", "dim")


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
    print_folded(out, f"largest parts of the first one's step: {', '.join(names)}".replace("%", " %"), "")
    if not plan.changes:
        print_folded(out, "no single change of layout, batch or network would shorten it", "")
        return
    rows = [_change(change, plan) for change in plan.changes]
    print_table(out, rows, ["what would shorten it", "time", "memory", "but"], right=())


def _change(change: HelpfulChange, plan: TrainingPlan) -> list[str]:
    more = change.more_bytes / GIB
    memory = f"{abs(more):,.1f} GiB {'more' if more > 0 else 'less'}" if abs(more) >= 0.05 else "the same"
    against = []
    if not change.fits:
        over = plan.best[0].found.figures.peak_bytes + change.more_bytes - plan.question.memory_bytes
        against.append(f"{over / GIB:,.1f} GiB too many")
    if not change.allowed:
        against.append("the software does not execute it")
    return [change.words, more_or_less(change.time, "time"), memory, " and ".join(against)]


def print_assumptions(out: Console, assumed: Sequence[Assumed], notes: Sequence[str] = ()) -> None:
    """Print what neither run nor options say, each with the option that changes it; and what is to be noted."""
    for note in notes:
        print_folded(out, f"note: {note}", "yellow")
    for each in assumed:
        print_folded(out, f"assumed: {each.words} ({each.option})")


def print_goodput(out: Console, expected: Goodput) -> None:
    """Print the expected duration of the first layout's training, and what it rests on."""
    title, (duration,) = duration_column([expected.seconds])
    failure, interval = (
        printed(seconds / 3600, "h") for seconds in (expected.between_failures_seconds, expected.interval_seconds)
    )
    out.print()
    share = percent(expected.share)
    print_folded(out, f"with failures: {duration} {title}, of which {share} train undisturbed", "")
    rest = f"a checkpoint of {expected.checkpoint_seconds:g} s each {interval} h (Daly), {expected.restart_seconds:g} s"
    print_folded(out, f"a failure each {failure} h, {rest} to restart", "")
    for words in expected.assumed:
        print_folded(out, words)


def print_numbers(out: Console, question: Question, others: Sequence[OtherNumber]) -> None:
    """Print the fastest layout of each number of accelerators; * where none is as fast for as little."""
    best = frontier(others, spent, lambda each: each.planned.training.seconds)
    columns = {
        "accelerators": [f"{each.ranks:,}{'*' if each in best else ' '}" for each in others],
        **_bill_columns([each.planned.training for each in others]),
        "MFU %": [f"{100 * each.planned.found.figures.mfu:.1f}" for each in others],
    }
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    out.print()
    _print_layouts(out, [*columns], rows, [_short(each.planned, question) for each in others])
    priced = "cost" in columns
    print_folded(out, f"*: no other number is as fast for as {'little money' if priced else 'few GPU-hours'}")


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
    where = where_words(name, machine, question.ranks) + (" and switches of any software" if any_software else "")
    if result.best:
        fastest = result.best[0]
        words = question.fitting(fastest.figures.peak_bytes).words
        computed = result.considered - result.left_out
        print_folded(out, f"{words}: {where}; {result.fitting:,} of {computed:,} layouts do", "bold green")
        _print_fastest(out, fastest, question, machine)
    elif result.smallest is None:
        print_folded(out, f"does not divide: {where}; {undivided_words(question)}", "bold red")
    else:
        print_folded(out, f"{question.fitting(result.smallest.figures.peak_bytes).words}: {where}", "bold red")
    for words in remedies(answer.ranks, answer.batch) if not result.best else ():
        print_folded(out, words, "")
    if result.smallest is not None:
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
    print_folded(out, f"limit: {_room_words(question)}")
    batch = f"{samples(question.recipe.global_batch)} of {question.architecture.sequence:,} tokens a step"
    print_folded(out, f"held: {batch}, {question.recipe.precision}{f', {fix}' if fix else ''}")
    switches = "every switch, whatever software has it" if any_software else f"what {machine.stack.name} executes"
    print_folded(out, f"searched: {switches}; {_offloading(question)}")
    if result.best and result.best[0].layout.offload is not Offload.NONE:
        gibibytes = host_bytes(question, result.best[0].layout) / GIB
        print_folded(out, f"the fastest keeps {gibibytes:,.0f} GiB in the memory of each host, which is not checked")


def _print_fastest(out: Console, fastest: Found, question: Question, machine: RunMachine) -> None:
    """Print the fastest layout, its step and its peak, each with its interval."""
    figures = fastest.figures
    print_folded(out, f"fastest: {_layout_words(fastest, question)}", "")
    step = run_prediction(Workload(question.architecture, question.recipe, fastest.layout), question.machine).step
    assert step is not None
    least, most = step_interval(step, question.architecture, machine.beyond_tables)
    seconds, low, high = fixed([figures.step_seconds, least, most], 3)
    rates = f"{figures.tokens_per_second:,.0f} tokens/s, MFU {percent(figures.mfu)}"
    print_folded(out, f"step time: {seconds} s (80 %: {low} to {high} s), {rates}", "")
    least, most = (end / GIB for end in question.peak_uncertainty.interval(figures.peak_bytes))
    memory = f"{figures.peak_bytes / GIB:,.1f} GiB of {question.machine.memory_bytes / GIB:,.1f} usable"
    print_folded(out, f"memory: {memory} (80 %: {least:,.1f} to {most:,.1f} GiB)", "")


def remedies(ranks: int | None, batch: int | None) -> Iterator[str]:
    """Lines that name the number of accelerators or the batch that would fit."""
    if ranks is not None:
        yield f"{ranks:,} accelerators would do (--gpus {ranks})"
    if batch is not None:
        yield f"a batch of {samples(batch)} would do (--batch {batch})"
    if ranks is batch is None:
        yield "nor would more accelerators do"


def samples(number: int) -> str:
    """The number with its noun: "1 sample", "1,024 samples"."""
    return f"{number:,} {'sample' if number == 1 else 'samples'}"


def _offloading(question: Question) -> str:
    """Whether state may go to the host, and how fast that is supposed to be."""
    link = question.machine.host_bytes_per_second
    if link is None:
        return "no offloading: the link to the host is not recorded"
    if question.fixed.get("offload") is Offload.NONE:
        return "no offloading, as was asked for"
    if question.offloads[-1] is Offload.NONE:
        return "no offloading"
    update = f"the host updates {UPDATED_PARAMETERS / UPDATE_SECONDS / 1e9:.2g} billion parameters a second and node"
    return f"the optimizer's state may be offloaded: {link / 1e9:.3g} GB/s, the peak of the link, and {update}, assumed"


def _layout_words(found: Found, question: Question) -> str:
    """The layout in words that `predict` reads as it: how ZeRO-1 reduces is said, as stacks have a way of their own."""
    base = msgspec.structs.replace(question.base, reduce_scatter=found.layout.zero_stage == 1)
    return layout_text(found.layout, base=base)


def _layout(found: Found, question: Question) -> str:
    return f"{_layout_words(found, question)}, {found.figures.peak_bytes / GIB:,.1f} GiB"
