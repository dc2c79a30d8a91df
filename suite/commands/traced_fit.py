"""`fit` of a model that no formula describes: layouts of data-parallel ranks, traced."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import typer

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.commands.planned_run import print_command
from suite.commands.traced_model import answered_or_exit, asked_job, required_source
from suite.commands.traced_options import TracedOptions
from suite.commands.training_options import Asked
from suite.job.trace_job import Compiler, TraceJob
from suite.job.trace_layout import layout_words
from suite.predict.plan.asked import USUAL_ACCELERATOR
from suite.predict.traced_run.prediction import TracedPrediction
from suite.report.terminal.tables import console
from suite.report.terminal.traced_fit import print_traced_fit
from suite.reproduce.traced_fit import TracedFit, TracedQuestion, fits, traced_fit

SHARDINGS = ("zero0", "zero3,noreshard", "zero3")
RECOMPUTATIONS = ("", "selective-op", "recompute-full")


def fit_model(name: str, asked: Asked, options: TracedOptions, *, reason: str, as_json: bool) -> None:
    """Search layouts for a model by traces, and print whether it fits.

    Args:
        reason: why no formula answers.

    Raises:
        InputError: a model that cannot be traced, or an option that a trace does not know.
        typer.Exit: it does not fit.
    """
    question, assumed = _question(name, asked, options)
    answer = answered_or_exit(lambda: traced_fit(question))
    if as_json:
        print_json(_entry(name, answer, assumed, reason))
    else:
        print_traced_fit(console(), name, answer, reason=reason, assumed=assumed)
        _print_commands(name, asked, options, answer)
    if answer.fastest is None:
        raise typer.Exit(exit_codes.FAIL)


def _question(name: str, asked: Asked, options: TracedOptions) -> tuple[TracedQuestion, list[str]]:
    source, training = required_source(name, options), asked.training
    ranks, batch, micro_batch = asked.gpus or 1, training.batch, training.micro_batch
    if batch is not None and batch % (ranks * (micro_batch or 1)):
        allowed = f"a multiple of {ranks * (micro_batch or 1):,}, a micro-batch of each rank"
        raise InputError("does not divide", got=batch, allowed=allowed, where="--batch")
    open_ = asked._replace(training=training._replace(batch=None, micro_batch=None))

    def job(words: str, ranks: int) -> tuple[TraceJob, list[str]]:
        complete = ",".join(filter(None, (f"dp{ranks}", words, "micro1")))
        found, assumed = asked_job(source, open_._replace(gpus=ranks), complete, options)
        if options.compile:
            found = msgspec.structs.replace(found, compiler=Compiler.TRITON)
        return found, assumed

    found = [job(words, ranks) for words in layouts(asked.fix, ranks)]
    more = layouts(asked.fix, ranks + 1)  # the last is the smallest
    sharded = job(more[-1], ranks + 1)[0] if "zero3" in more[-1] else None
    assumed = [*found[0][1], *([] if asked.gpus else ["one accelerator (--gpus)"])]
    if batch is None:
        assumed.append("a step is one micro-batch of each rank (--batch)")
    if asked.on is None:
        assumed.append(f"{USUAL_ACCELERATOR} (--on)")
    question = TracedQuestion(
        layouts=tuple(dict.fromkeys(each for each, _ in found)),
        on=asked.on or USUAL_ACCELERATOR,
        network_bytes_per_second=None if asked.network is None else asked.network * 1e9 / 8,
        batch=batch,
        micro_batch=micro_batch,
        sharded=sharded,
    )
    return question, assumed


def layouts(fix: str, ranks: int) -> list[str]:
    """Words of the layouts that are searched, those of the least memory last.

    Args:
        fix: words that stay.
    """
    fixed = [word.strip() for word in fix.split(",") if word.strip()]
    shardings: tuple[str, ...] = ("zero0",) if ranks == 1 else SHARDINGS
    if "zero3" in fixed:
        shardings = ("noreshard", "")
    if any(word in ("zero0", "reshard", "noreshard") for word in fixed):
        shardings = ("",)
    again = ("",) if any(word.startswith(("recompute", "selective")) for word in fixed) else RECOMPUTATIONS
    chosen = [[sharding, words, *fixed] for sharding, words in itertools.product(shardings, again)]
    return [",".join(filter(None, words)) for words in chosen]


def _print_commands(name: str, asked: Asked, options: TracedOptions, answer: TracedFit) -> None:
    """Print the command that says more of the fastest layout."""
    if answer.fastest is None:
        return
    without = {"--gpus": None, "--micro-batch": None, "--fix": None, "--batch": None}
    typed = {"--layout": layout_words(answer.fastest.job)} | asked.options | without | options.words
    print_command(console(), "more of the fastest", ["predict", name], typed, flags=options.flags)


def _entry(name: str, answer: TracedFit, assumed: list[str], reason: str) -> dict[str, Any]:
    smallest = answer.smallest
    return {
        "run": name,
        "answered_by": "trace",
        "no_formula": reason,
        "accelerator": smallest.machine.accelerator.name,
        "accelerators": answer.question.ranks,
        "stack": smallest.machine.stack.name,
        "assumed": assumed,
        "fits": answer.fastest is not None,
        "memory_bytes": smallest.room,
        "layouts": {"considered": len(answer.of_layouts), "fitting": sum(map(fits, answer.of_layouts))},
        "fastest": answer.fastest and _step(answer.fastest),
        "smallest": _step(smallest),
        "largest_micro_batch": answer.largest and answer.largest.job.micro_batch,
        "accelerators_that_would_do": answer.enough and answer.enough.job.ranks,
        "steps": [_step(step) for step in answer.steps],
        "traces": answer.traces,
        "parameters": msgspec.to_builtins(smallest.trace.parameters),
    }


def _step(step: TracedPrediction) -> dict[str, Any]:
    return {
        "layout": layout_words(step.job),
        "micro_batch": step.job.micro_batch,
        "step_seconds": step.time and step.time.total_seconds,
        "tokens_per_second": step.tokens_per_second,
        "mfu": step.mfu,
        "peak_bytes": step.trace.peak_bytes,
        "memory_verdict": step.fitting.verdict,
        "probability_fits": step.fitting.probability,
    }
