"""`predict` of a model that no run file describes: a config.json, or a module of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer

from reference_runs.configured_run import not_described
from reference_runs.errors import InputError
from reference_runs.machine_model import machine_model
from reference_runs.run import Precision
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.commands.traced_options import TracedOptions
from suite.commands.training_options import Asked
from suite.job.trace_job import Compiler, ModelSource, NumberFormat, OptimizerKernel, TraceJob
from suite.job.trace_layout import TraceLayout, trace_layout
from suite.launch.interruption import end_as_interrupted
from suite.machine.packages import require
from suite.predict.plan.asked import USUAL_ACCELERATOR
from suite.predict.plan.predicted_run import undisturbed_profile
from suite.predict.traced_run.prediction import TracedPrediction, traced_prediction
from suite.report.terminal.tables import console
from suite.report.terminal.traced import print_traced
from suite.reproduce.traced import TraceError, model_source, traced

_FORMATS = {
    Precision.FP32: NumberFormat.FP32,
    Precision.BF16: NumberFormat.BF16,
    Precision.BF16_PURE: NumberFormat.BF16_PURE,
}
Traces = TypeVar("Traces")


def check_absent(options: Mapping[str, object | None], *, what: str) -> None:
    """Refuse options that say nothing about what a command predicts.

    Args:
        options: values by option, None for those that were not given.
        what: says of which predictions they are.

    Raises:
        InputError: one was given.
    """
    for option, value in options.items():
        if value is not None:
            raise InputError(what, where=option)


def no_formula(name: str, options: TracedOptions) -> str | None:
    """Why a model is traced, in words that follow "no formula: "; None: a run, or a formula describes it."""
    if ".py:" in name:
        return "a module of your own"
    if not name.endswith(".json") or not Path(name).is_file():
        return None
    if any(options.given.values()):
        (option, *_) = (option for option, value in options.given.items() if value)
        return f"{option} was given"
    return not_described(Path(name))


def predict_model(  # long: options of a command
    name: str,
    asked: Asked,
    layout: str | None,
    options: TracedOptions,
    machine: Path | None = None,
    *,
    reason: str,
    complete: bool,
    as_json: bool,
) -> TracedPrediction:
    """Trace a model, and print what its step takes.

    Args:
        layout: the words of one; None: not given.
        machine: file of the profile of the machine; None: an accelerator of the catalog.
        reason: why no formula answers.

    Raises:
        InputError: no such file, a model that cannot be traced, or an option that a trace does not know.
    """
    source = required_source(name, options)
    if machine is not None and asked.on is not None:
        got = f"--on {asked.on}"
        raise InputError("excludes --on: the profile is of a machine of its own", got=got, where="--machine")
    profile = None if machine is None else undisturbed_profile(machine)
    job, assumed = asked_job(source, asked, layout, options)
    on_cpu = profile is not None and profile.fingerprint.device == "cpu"
    job = msgspec.structs.replace(job, on_cpu=on_cpu)
    if options.compile:
        job = msgspec.structs.replace(job, compiler=Compiler.CPP if on_cpu else Compiler.TRITON)
    on = asked.on or USUAL_ACCELERATOR
    (trace,) = answered_or_exit(lambda: traced([job]))
    if asked.training.sequence is None:
        assumed.append(f"{trace.sequence:,} tokens a sample (--sequence)")
    network = None if asked.network is None else asked.network * 1e9 / 8
    predicted = traced_prediction(job, trace, on=on, network_bytes_per_second=network, profile=profile)
    if as_json:
        print_json(_entry(name, predicted, assumed, reason))
    else:
        print_traced(console(), predicted, reason=reason, assumed=assumed, complete=complete)
    return predicted


def answered_or_exit(ask: Callable[[], Traces]) -> Traces:
    """The answer of a trace.

    Raises:
        typer.Exit: its process ended without an answer; the reason is on stderr.
    """
    try:
        return ask()
    except TraceError as error:
        console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error


def required_source(name: str, options: TracedOptions) -> ModelSource:
    """The source of a model as it was named, for which every package is there; from here on Ctrl-C ends its traces.

    Raises:
        InputError: as `model_source`, or a package that is missing.
    """
    source = model_source(name)
    require("torch", *(("transformers",) if source.configuration else ()), *options.packages)
    end_as_interrupted()
    return source


def asked_job(
    source: ModelSource, asked: Asked, words: str | None, options: TracedOptions
) -> tuple[TraceJob, list[str]]:
    """The job that options ask for, and what is assumed in it."""
    assumed: list[str] = []
    training, precision = asked.training, asked.training.precision
    adapters = options.adapters
    if precision is None and adapters is not None:
        precision = Precision.BF16_PURE
        assumed.append("weights in bf16, adapters in fp32 or, under FSDP2, bf16 (--precision)")
    elif precision is None:
        precision = Precision.BF16
        assumed.append("bf16 with fp32 weights (--precision)")
    if precision not in _FORMATS:
        raise InputError("is not traced", got=precision.value, allowed=", ".join(_FORMATS), where="--precision")
    if words is not None:
        layout = _layout(words, ranks=asked.gpus)
    else:
        ranks = asked.gpus or 1
        layout = trace_layout(f"dp{ranks},zero{3 if ranks > 1 else 0}")
        if ranks > 1:
            assumed.append("FSDP2: weights, gradients and optimizer state are sharded (--layout)")
        elif asked.gpus is None:
            assumed.append("one accelerator (--gpus, or --layout)")
    micro_batch = training.micro_batch or layout.micro_batch or 1
    if training.micro_batch is None and layout.micro_batch is None:
        assumed.append("micro-batches of 1 sample (--micro-batch)")
    optimizer = options.optimizer
    if optimizer is None:
        optimizer = OptimizerKernel.ADAMW
        assumed.append("AdamW as PyTorch computes it on a GPU (--optimizer)")
    micro_batches = _micro_batches(layout, micro_batch, training.batch)
    if micro_batches > 1 and layout.ranks > 1 and "sync" not in (words or ""):
        when = "after the last micro-batch" if layout.synchronises_once else "after each micro-batch"
        assumed.append(f"gradients are reduced {when} (--layout with sync or no-sync)")
    job = TraceJob(
        source=source,
        ranks=layout.ranks,
        sharding=layout.sharding,
        number_format=_FORMATS[precision],
        optimizer=optimizer,
        micro_batches=micro_batches,
        micro_batch=micro_batch,
        sequence=training.sequence,
        recompute=layout.recompute,
        recompute_every=layout.recompute_every,
        saves_products=layout.saves_products,
        synchronises_once=layout.synchronises_once,
        adapters=adapters,
    )
    return job, assumed


def _micro_batches(layout: TraceLayout, micro_batch: int, batch: int | None) -> int:
    """Micro-batches of a rank's step.

    Raises:
        InputError: the batch is no multiple of them, or not of as many as the layout says.
    """
    if batch is None:
        return layout.accumulation or 1
    number, rest = divmod(batch, layout.ranks * micro_batch)
    if rest or not number:
        what = f"no multiple of {layout.ranks * micro_batch:,} samples, a micro-batch of each rank"
        raise InputError(what, got=batch, where="--batch")
    if layout.accumulation not in (None, number):
        what = f"makes {number:,} micro-batches a rank, and the layout says {layout.accumulation:,}"
        raise InputError(what, got=batch, where="--batch")
    return number


def _layout(text: str, *, ranks: int | None) -> TraceLayout:
    """The layout of that text.

    Raises:
        InputError: it is not traced, or has another number of ranks.
    """
    layout = trace_layout(text)
    if ranks is not None and ranks != layout.ranks:
        raise InputError(f"has {layout.ranks:,} ranks, and --gpus says {ranks:,}", got=text, where="--layout")
    return layout


def _entry(name: str, predicted: TracedPrediction, assumed: list[str], reason: str) -> dict[str, Any]:
    job, trace, time = predicted.job, predicted.trace, predicted.time
    return {
        "run": name,
        "answered_by": "trace",
        "no_formula": reason,
        "traced": {"model": trace.model, "software": trace.software, "seconds": trace.seconds},
        "job": msgspec.to_builtins(job),
        "assumed": assumed,
        "accelerator": predicted.machine.accelerator.name,
        "edition": machine_model().edition,
        "fits": predicted.fitting.verdict,
        "probability_fits": predicted.fitting.probability,
        "usable_bytes": predicted.memory.usable,
        "parameters": msgspec.to_builtins(trace.parameters),
        "model_flop": predicted.model_flop,
        "hardware_flop": predicted.hardware_flop,
        "step_seconds": None if time is None else time.total_seconds,
        "tokens_per_second": predicted.tokens_per_second,
        "mfu": predicted.mfu,
        "peak_bytes": trace.peak_bytes,
        "at_peak": {"phase": trace.at_peak.phase, "bytes": trace.at_peak.bytes, "modules": trace.peak_modules},
        "kept_bytes": trace.kept_bytes,
        "graph_breaks": msgspec.to_builtins(trace.graph_breaks),
        "collectives": msgspec.to_builtins(trace.collectives),
        "operators": msgspec.to_builtins(trace.operators),
    }
