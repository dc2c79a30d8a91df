"""`predict` of a model that no run file describes: a config.json, or a module of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer

from reference_runs.configured_run import configured_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, parse_layout
from reference_runs.run import Precision
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.job.trace_job import ModelSource, NumberFormat, OptimizerKernel, Sharding, TraceJob
from suite.launch.interruption import end_as_interrupted
from suite.machine.packages import require
from suite.predict.plan.asked import USUAL_ACCELERATOR, AskedTraining
from suite.predict.traced_run.prediction import TracedPrediction, traced_prediction
from suite.report.terminal.tables import console
from suite.report.terminal.traced import print_traced
from suite.reproduce.traced import TraceError, traced

_FORMATS = {
    Precision.FP32: NumberFormat.FP32,
    Precision.BF16: NumberFormat.BF16,
    Precision.BF16_PURE: NumberFormat.BF16_PURE,
}
_SPLITS = ("data_parallel", "zero_stage", "reshard_after_forward", "recomputation", "accumulation", "micro_batch")
ALLOWED = "dpN, zero0 (DistributedDataParallel), zero3 (FSDP2), noreshard, recompute-full, accumulateN, microN"


class ModelRequest(NamedTuple):
    """Options of a command about a model that is traced; None: not given."""

    on: str | None
    gpus: int | None
    network_bytes_per_second: float | None
    layout: str | None
    training: AskedTraining
    optimizer: OptimizerKernel | None


def is_traced(name: str, *, always: bool) -> bool:
    """Whether a command's argument names a function, or a configuration that no formula describes.

    Args:
        always: a configuration is traced whatever describes it.
    """
    if not name.endswith(".json"):
        return ".py:" in name
    if always:
        return True
    try:
        configured_run(Path(name))
    except InputError:
        return Path(name).is_file()
    return False


def predict_model(name: str, request: ModelRequest, *, complete: bool, as_json: bool) -> TracedPrediction:
    """Trace a model, and print what its step takes.

    Raises:
        InputError: no such file, a model that cannot be traced, or an option that a trace does not know.
    """
    source = _source(name)
    require("torch", *(("transformers",) if source.configuration else ()))
    end_as_interrupted()
    job, assumed = _job(source, request)
    on = request.on or USUAL_ACCELERATOR
    try:
        (trace,) = traced([job])
    except TraceError as error:
        console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(exit_codes.EXECUTION_FAILED) from error
    if request.training.sequence is None:
        assumed.append(f"{trace.sequence:,} tokens a sample, as many as the model takes (--sequence)")
    predicted = traced_prediction(job, trace, on=on, network_bytes_per_second=request.network_bytes_per_second)
    if as_json:
        print_json(_entry(name, predicted, assumed))
    else:
        print_traced(console(), predicted, assumed=assumed, complete=complete)
    return predicted


def _source(name: str) -> ModelSource:
    file, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    path = Path(file)
    if not path.is_file():
        raise InputError("no such file", got=file, allowed="a config.json, or FILE.py:FUNCTION")
    if function:
        if not function.isidentifier():
            raise InputError("not a function's name", got=function, allowed="FILE.py:FUNCTION", where=file)
        return ModelSource(module=f"{path.resolve()}:{function}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"not a JSON file: {error}", where=file) from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError("has no model_type", allowed="a config.json of Hugging Face's transformers", where=file)
    return ModelSource(configuration=str(path.resolve()))


def _job(source: ModelSource, request: ModelRequest) -> tuple[TraceJob, list[str]]:
    """The job that options ask for, and what is assumed in it."""
    assumed: list[str] = []
    training = request.training
    precision = training.precision
    if precision is None:
        precision = Precision.BF16
        assumed.append("bf16 with fp32 weights (--precision)")
    if precision not in _FORMATS:
        raise InputError("is not traced", got=precision.value, allowed=", ".join(_FORMATS), where="--precision")
    ranks = request.gpus or 1
    usual = Layout(data_parallel=ranks, zero_stage=3 if ranks > 1 else 0)
    if request.layout is None:
        layout = usual
        if ranks == 1 and request.gpus is None:
            assumed.append("one accelerator (--gpus, or --layout)")
        elif ranks > 1:
            assumed.append("FSDP2: weights, gradients and optimizer state are sharded (--layout)")
    else:
        layout = _layout(request.layout, ranks=request.gpus)
    ranks = layout.data_parallel
    micro_batch = training.micro_batch or layout.micro_batch
    if training.micro_batch is None and "micro" not in (request.layout or ""):
        assumed.append(f"micro-batches of {micro_batch} sample{'' if micro_batch == 1 else 's'} (--micro-batch)")
    micro_batches = layout.accumulation or 1
    if training.batch is not None:
        micro_batches, rest = divmod(training.batch, ranks * micro_batch)
        if rest or not micro_batches:
            what = f"no multiple of {ranks * micro_batch:,} samples, a micro-batch of each rank"
            raise InputError(what, got=training.batch, where="--batch")
    optimizer = request.optimizer
    if optimizer is None:
        optimizer = OptimizerKernel.ADAMW
        assumed.append("AdamW as PyTorch computes it on a GPU (--optimizer)")
    if layout.zero_stage == 0:
        sharding = Sharding.REPLICATED
    else:
        sharding = Sharding.RESHARDED if layout.reshard_after_forward else Sharding.KEPT
    job = TraceJob(
        source=source,
        ranks=ranks,
        sharding=sharding,
        number_format=_FORMATS[precision],
        optimizer=optimizer,
        micro_batches=micro_batches,
        micro_batch=micro_batch,
        sequence=training.sequence,
        recompute=layout.recomputation is Recomputation.FULL,
    )
    return job, assumed


def _layout(text: str, *, ranks: int | None) -> Layout:
    """The layout of that text, which only data parallelism may split.

    Raises:
        InputError: it splits tensors or layers, or has another number of ranks.
    """
    plain = Layout()
    layout = parse_layout(text, base=plain)
    for field in msgspec.structs.fields(Layout):
        if field.name not in _SPLITS and getattr(layout, field.name) != getattr(plain, field.name):
            what = "a trace splits neither tensors nor layers"
            raise InputError(what, got=text, allowed=ALLOWED, where="--layout")
    if layout.zero_stage not in (0, 3) or layout.recomputation not in (Recomputation.NONE, Recomputation.FULL):
        raise InputError("is not traced", got=text, allowed=ALLOWED, where="--layout")
    if ranks is not None and ranks != layout.ranks:
        raise InputError(f"has {layout.ranks:,} ranks, and --gpus says {ranks:,}", got=text, where="--layout")
    return layout


def _entry(name: str, predicted: TracedPrediction, assumed: list[str]) -> dict[str, Any]:
    job, trace, time = predicted.job, predicted.trace, predicted.time
    return {
        "run": name,
        "traced": {"model": trace.model, "software": trace.software, "seconds": trace.seconds},
        "job": msgspec.to_builtins(job),
        "assumed": assumed,
        "accelerator": predicted.machine.accelerator.name,
        "fits": predicted.verdict.value,
        "usable_bytes": predicted.memory.usable,
        "parameters": msgspec.to_builtins(trace.parameters),
        "model_flop": predicted.model_flop,
        "hardware_flop": predicted.hardware_flop,
        "step_seconds": None if time is None else time.total_seconds,
        "tokens_per_second": predicted.tokens_per_second,
        "mfu": predicted.mfu,
        "peak_bytes": trace.peak_bytes,
        "at_peak": {"phase": trace.at_peak.phase, "bytes": trace.at_peak.bytes},
        "kept_bytes": trace.kept_bytes,
        "collectives": msgspec.to_builtins(trace.collectives),
        "operators": msgspec.to_builtins(trace.operators),
    }
