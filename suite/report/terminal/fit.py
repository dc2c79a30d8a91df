"""Whether a model fits, in the terminal: the answer in the first line."""

from __future__ import annotations

import msgspec
from rich.console import Console

from reference_runs.layout import Offload, layout_text
from reference_runs.units import printed
from suite.predict.analytic.offload import UPDATE_SECONDS, UPDATED_PARAMETERS
from suite.predict.machine_model.model import RunMachine
from suite.predict.plan.fit import Fit, host_bytes
from suite.predict.plan.question import Question
from suite.predict.plan.search import Found
from suite.report.terminal.tables import print_folded

GIB = 2**30


def print_fit_answer(out: Console, name: str, machine: RunMachine, answer: Fit, fix: str) -> None:
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
    print_folded(out, f"searched: every layout, ZeRO stage, schedule, recomputation, fusion; {_offloading(question)}")
    if result.best and result.best[0].layout.offload is not Offload.NONE:
        gibibytes = host_bytes(question, result.best[0].layout) / GIB
        print_folded(out, f"the fastest keeps {gibibytes:,.0f} GiB in the memory of each host, which is not checked")


def samples(number: int) -> str:
    """Such as "1 sample", "1,024 samples"."""
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
