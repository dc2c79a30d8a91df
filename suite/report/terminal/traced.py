"""Prints the prediction of a traced step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from rich.console import Console

from suite.job.operators import TracedOperator
from suite.job.trace_job import NumberFormat, OptimizerKernel, Sharding, StepTrace, TraceJob
from suite.predict.analytic.usable_memory import GIB
from suite.predict.traced_run.prediction import TracedPrediction
from suite.report.terminal.prediction import print_bars
from suite.report.terminal.tables import print_folded

MIB = 2**20
_LARGEST = 8  # parts that are listed; the rest is one line
_FORMATS = {
    NumberFormat.FP32: "fp32",
    NumberFormat.BF16: "fp32 weights, products in bf16",
    NumberFormat.BF16_PURE: "bf16 alone",
}
_OPTIMIZERS = {
    OptimizerKernel.ADAMW: "AdamW",
    OptimizerKernel.ADAMW_FUSED: "fused AdamW",
    OptimizerKernel.ADAMW_8BIT: "AdamW with states of 8 bits",
    OptimizerKernel.MUON: "Muon for the layers' matrices, AdamW for the rest",
    OptimizerKernel.SGD: "SGD without momentum",
    OptimizerKernel.SGD_MOMENTUM: "SGD with momentum",
}
_SHARDINGS = {
    Sharding.REPLICATED: "DistributedDataParallel",
    Sharding.KEPT: "FSDP2, weights kept after the forward pass",
    Sharding.RESHARDED: "FSDP2",
}


def print_traced(
    out: Console, predicted: TracedPrediction, *, reason: str, assumed: Iterable[str], complete: bool
) -> None:
    """Print who executed what, whether it fits, figures, and where time and memory go.

    Args:
        reason: why no formula answers.
        assumed: what nobody said, each with the option that changes it.
        complete: every part, not only the largest.
    """
    job, trace, time = predicted.job, predicted.trace, predicted.time
    how = "eager PyTorch operators one by one"
    if job.compiler:
        what = f"each {trace.layer_class}" if trace.layers else "the model"
        how = f"torch.compile of {what}, kernel by kernel; the rest eager"
    print_folded(out, f"traced: {trace.model} of {trace.software}, {how}", "bold")
    print_folded(out, f"no formula: {reason}, so its own code was executed")
    on = f"{job.ranks:,} {predicted.machine.accelerator.name}"
    room = f"{_need(trace.peak_bytes)} of {predicted.memory.usable / GIB:,.1f} GiB usable on {on}"
    print_folded(out, f"{predicted.fitting.words}: {room}", "bold")
    print_folded(out, _job_words(job, trace.sequence))
    for line in assumed:
        print_folded(out, f"assumed: {line}")
    for each in trace.graph_breaks:
        where = f" at {each.place}" if each.place else ""
        print_folded(out, f"graph break{where}: {each.reason}", "yellow")
    if kernels := published_kernels(trace.operators):
        print_folded(out, f"as published kernels, not as transformers executes them without: {', '.join(kernels)}")
    parameters = trace.parameters
    frozen = parameters.total - parameters.trainable
    print_folded(
        out,
        f"parameters: {parameters.total:,}{f', {frozen:,} of them frozen' if frozen else ''}; "
        f"buffers: {parameters.buffers:,} elements",
    )
    print_folded(
        out, f"model flop of a step: {predicted.model_flop:.4g}; with recomputation {predicted.hardware_flop:.4g}"
    )
    if time is None:
        print_folded(out, f"not predicted: {predicted.machine.missing}", "yellow")
    else:
        print_folded(
            out,
            f"step: {time.total_seconds:,.3g} s; {predicted.tokens_per_second:,.0f} tokens/s; MFU "
            f"{100 * (predicted.mfu or 0):.1f} %; error to expect: {_error(predicted.machine.uncertainty)}",
        )
        out.print()
        print_bars(out, ("where the time goes", "s"), _largest(_time_parts(predicted), complete), time.total_seconds)
        out.print()
        modules = {name or "the loss and the update": spent for name, spent in time.modules.items()}
        print_bars(out, ("by module", "s"), _largest(modules, complete), sum(time.operators.values()))
    out.print()
    held = trace.at_peak
    title = f"where the memory goes, in the {held.phase}"
    unit, factor = ("GiB", GIB) if held.total >= GIB else ("MiB", MIB)
    print_bars(out, (title, unit), _largest(held.bytes, complete), held.total, factor)
    out.print()
    owned = {name or "no module": sum(each.values()) for name, each in trace.peak_modules.items()}
    print_bars(out, ("then, by module", unit), _largest(owned, complete), held.total, factor)


def _error(uncertainty: float | None) -> str:
    return "unknown" if uncertainty is None else f"{100 * uncertainty:.0f} %"


def print_model(out: Console, trace: StepTrace) -> None:
    """Print what a launch executes: the module, and each rule of its miniature with the keys that it changed."""
    print_folded(out, f"{trace.model} of {trace.software}, {trace.layers} {trace.layer_class}", "")
    keys = defaultdict[str, list[str]](list)
    for each in trace.scaled:
        keys[each.rule].append(f"{each.key} {_shortened(each.given)} -> {_shortened(each.here)}")
    for rule, changed in keys.items():
        print_folded(out, f"{rule}: {', '.join(changed)}", "")


def _shortened(value: object) -> str:
    """A value, of a long list how long it is."""
    return f"{len(value)} items" if isinstance(value, (list, str)) and len(value) > _LARGEST else str(value)


def published_kernels(operators: Iterable[TracedOperator]) -> list[str]:
    """Names of operators that stand for kernels of other packages."""
    names = (each.operator for each in operators if each.operator.startswith("mamba_ssm."))
    return sorted({name.removesuffix("_backward") for name in names})


def _need(size: int) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"


def _job_words(job: TraceJob, sequence: int) -> str:
    samples = f"{job.micro_batch} {'sample' if job.micro_batch == 1 else 'samples'} of {sequence:,} tokens"
    batches = "" if job.micro_batches == 1 else f"{job.micro_batches} micro-batches of "
    words = [f"{batches}{samples} a rank", _FORMATS[job.number_format], _OPTIMIZERS[job.optimizer]]
    if job.ranks > 1:
        words.append(_SHARDINGS[job.sharding])
    if job.adapters is not None:
        frozen = "QLoRA over weights in NF4" if job.adapters.quantised else "LoRA"
        words.append(f"{frozen}, rank {job.adapters.rank}")
    if job.ranks > 1 and job.micro_batches > 1:
        words.append(f"gradients reduced {'once' if job.synchronises_once else 'after each micro-batch'}")
    if job.recompute:
        layers = "each layer" if job.recompute_every == 1 else f"one of every {job.recompute_every} layers"
        products = " but for attention and every other matrix product" if job.saves_products else ""
        words.append(f"{layers} computed again in the backward pass{products}")
    return "; ".join(words)


def _time_parts(predicted: TracedPrediction) -> dict[str, float]:
    time = predicted.time
    assert time is not None
    parts = defaultdict[str, float](float)
    for (phase, kind), spent in time.operators.items():
        parts[f"{kind}, {phase}"] += spent
    parts["waiting for launches"] = time.launch_seconds
    parts["messages that nothing hides"] = time.message_seconds
    parts["overhead of each step"] = time.overhead_seconds
    return dict(parts)


def _largest(parts: Mapping[str, float], complete: bool) -> list[tuple[str, float]]:
    ordered = sorted(((name, value) for name, value in parts.items() if value), key=lambda part: -part[1])
    if complete or len(ordered) <= _LARGEST + 1:
        return ordered
    rest = ordered[_LARGEST:]
    return [*ordered[:_LARGEST], (f"{len(rest)} more", sum(value for _, value in rest))]
