"""Prints whether a traced model fits, in which layouts of data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from suite.job.trace_layout import layout_words
from suite.predict.analytic.usable_memory import GIB
from suite.predict.traced_run.prediction import TracedPrediction
from suite.report.terminal.plan import samples
from suite.report.terminal.prediction import FITTING_COLOURS
from suite.report.terminal.tables import print_folded, print_table
from suite.reproduce.traced_fit import TracedFit, fits


def print_traced_fit(out: Console, name: str, answer: TracedFit, *, reason: str, assumed: Iterable[str]) -> None:
    """Print whether it fits, the fastest and the smallest layout, the largest micro-batch, and what was traced.

    Args:
        reason: why no formula answers.
        assumed: what nobody said, each with the option that changes it.
    """
    best, smallest, question = answer.fastest, answer.smallest, answer.question
    fitting = (best or smallest).fitting
    of_layouts = answer.of_layouts
    where = f"{name} on {question.ranks:,} {smallest.machine.accelerator.name}"
    words = f"{fitting.words}: {where}, traced; {sum(map(fits, of_layouts))} of {len(of_layouts)} layouts do"
    print_folded(out, words, f"bold {FITTING_COLOURS[fitting.verdict]}")
    print_folded(out, f"no formula: {reason}, so its own code was executed", "")
    if best is not None:
        print_folded(out, f"fastest: {layout_words(best.job)}; {_step_words(best)}", "")
    print_folded(out, f"least memory: {layout_words(smallest.job)}, {_gib(smallest)} GiB", "")
    if answer.largest is not None:
        size = samples(answer.largest.job.micro_batch)
        words = f"{size} of {smallest.trace.sequence:,} tokens, {layout_words(answer.largest.job)}"
        print_folded(out, f"largest micro-batch that fits: {words}", "")
    if best is None:
        print_folded(out, _remedy(answer), "")
    usable = f"{smallest.memory.usable / GIB:,.1f} GiB usable"
    out.print()
    _print_layouts(out, of_layouts)
    out.print()
    print_folded(
        out, f"{usable}; {answer.traces} steps were traced, {smallest.trace.model} of {smallest.trace.software}"
    )
    parameters = smallest.trace.parameters
    frozen = parameters.total - parameters.trainable
    print_folded(out, f"parameters: {parameters.total:,}{f', {frozen:,} of them frozen' if frozen else ''}")
    if smallest.time is None:
        print_folded(out, f"not predicted: {smallest.machine.missing}", "yellow")
    tokens = smallest.trace.sequence
    said = [*assumed, *([f"{tokens:,} tokens a sample (--sequence)"] if smallest.job.sequence is None else [])]
    for line in said:
        print_folded(out, f"assumed: {line}")


def _remedy(answer: TracedFit) -> str:
    if answer.enough is None:
        return "nor would more accelerators do"
    ranks, words = answer.enough.job.ranks, layout_words(answer.enough.job)
    return f"{ranks:,} accelerators would do (--gpus {ranks}): {words}, {_gib(answer.enough)} GiB"


def _print_layouts(out: Console, steps: Sequence[TracedPrediction]) -> None:
    """Print a step of each layout, the fastest first and those that do not fit last."""
    ordered = sorted(steps, key=lambda step: (not fits(step), -(step.tokens_per_second or 0.0), step.trace.peak_bytes))
    rows = [
        [
            layout_words(step.job),
            "" if step.time is None else f"{step.time.total_seconds:,.3f}",
            "" if step.tokens_per_second is None else f"{step.tokens_per_second:,.0f}",
            _gib(step),
            step.fitting.percent,
        ]
        for step in ordered
    ]
    print_table(out, rows, ["layout", "step s", "tokens/s", "GiB", "fits"], right=("step s", "tokens/s", "GiB", "fits"))


def _step_words(step: TracedPrediction) -> str:
    memory = f"{_gib(step)} GiB"
    if step.time is None:
        return memory
    rates = f"{step.tokens_per_second:,.0f} tokens/s, MFU {100 * (step.mfu or 0):.1f} %"
    return f"{step.time.total_seconds:,.3g} s a step, {rates}, {memory}"


def _gib(step: TracedPrediction) -> str:
    return f"{step.trace.peak_bytes / GIB:,.1f}"
