"""Causes of a slow step: what its log shows, and changes of the predicted run that would take as long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Workload
from reference_runs.stack import AttentionKernel, Stack
from reference_runs.training_logs.facts import Sign
from reference_runs.training_logs.training_log import DEEPSPEED_TIMERS, TrainingLog
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.step_time import StepTime
from suite.predict.diagnosis.pace import DRIFT, Pace
from suite.predict.recorded_run.sweep import layout_seconds

SHARE = 0.05  # of the step: what takes less is no cause
_WAITING_SHARE = 0.2  # of the step that stages wait for each other in; less is usual
_EXPLAINS = 0.5  # of the excess: a change that explains less is no candidate
_MOST_SLOWDOWN = 1000.0  # of a link
_STEPS_OF_BISECTION = 40
_WAITING = ("forward-recv", "backward-recv", "backward-send-forward-recv", "forward-send-backward-recv")
_LOADING = ("batch-generator", "batch generator", "batch_input", "train_dataloader_next")
_WAITS = 2  # times the predicted step: what is slower than that waits for something
_LARGE_SHARE = 0.25  # of the predicted step
_OF_LAYOUT = {
    "data_parallel": (
        "gathering weights and reducing gradients",
        "larger micro-batches and fewer of them, ZeRO-1 in place of ZeRO-3, shards within a node",
    ),
    "bubble": ("stages that wait for each other", "more micro-batches, interleaved stages, fewer stages"),
    "tensor_parallel": ("tensor-parallel messages", "less tensor parallelism, sequence parallelism, overlap"),
    "context_parallel": ("context-parallel messages", "less context parallelism"),
    "expert_parallel": ("tokens to their experts and back", "expert parallelism within a node, overlapped dispatch"),
    "launch": ("waiting for the host that launches kernels", "larger micro-batches, torch.compile, CUDA graphs"),
    "recomputation": ("computing activations again", "recompute less: `plan` says what fits"),
}
_DRAINING = "backward-embedding-all-reduce"  # of the first stage, with the last: it waits until the pipeline is empty


class SlowCause(msgspec.Struct, frozen=True):
    """Something that makes the step longer.

    Args:
        words: what it is.
        seconds: of a step that it takes, or would explain; None: not known.
        confirm: what would confirm it, or what helps.
        is_seen: whether the log shows it; else it is a candidate.
        standing: of a candidate: whether it would explain the step, or is part of what was expected.
    """

    words: str
    seconds: float | None
    confirm: str
    is_seen: bool = False
    standing: str = "would explain it"


_OF_SIGNS = {
    Sign.CACHE_FLUSHES: (
        "memory is nearly full: the allocator frees its cache and asks the driver again",
        "a smaller micro-batch, or recomputation; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    Sign.OFFLOAD: (
        "state is offloaded to the host: it crosses PCIe in every step, with FSDP in every micro-batch",
        "a step without offloading, with more shards or recomputation in its place",
    ),
    Sign.EAGER_ATTENTION: (
        "attention without a fused kernel: it stores the scores",
        'attn_implementation="sdpa" or "flash_attention_2"',
    ),
    Sign.ANOMALY: ("PyTorch's anomaly detection is on: it records a traceback of each operator", "switch it off"),
    Sign.OUT_OF_MEMORY: ("an allocation failed, and was tried again or ended the run", "a smaller micro-batch"),
}


def seen_causes(log: TrainingLog, pace: Pace) -> Iterator[SlowCause]:
    """Causes that the log itself shows."""
    for sign, count in log.signs.items():
        if sign in _OF_SIGNS:
            words, helps = _OF_SIGNS[sign]
            lines = "1 line" if count == 1 else f"{count} lines"
            yield SlowCause(f"{words} ({lines})", pace.stalled_seconds or None, helps, is_seen=True)
    yield from _of_timers(log, pace)
    if pace.stalls and pace.stalled_seconds > SHARE * pace.seconds:
        when = f"every {pace.rhythm} steps" if pace.rhythm else f"{pace.stalls} of {pace.steps} steps"
        what = "checkpoints, evaluation" if pace.rhythm else "the input pipeline, storage, garbage collection"
        confirm = f"what the host does then: {what}"
        yield SlowCause(
            f"stalls: {when} take longer than 1.5 times the others", pace.stalled_seconds, confirm, is_seen=True
        )
    if pace.pauses and pace.pauses.seconds > SHARE * pace.seconds:
        when = f"a pause every {pace.pauses.rhythm} steps" if pace.pauses.rhythm else "between the steps"
        confirm = "checkpoints, evaluation" if pace.pauses.rhythm else "the input pipeline; checkpoints, evaluation"
        words = f"{when}, by the stamps of the lines: the framework does not time it"
        yield SlowCause(words, pace.pauses.seconds, confirm, is_seen=True)
    if pace.drift is not None and abs(pace.drift) > DRIFT:
        direction = "slower" if pace.drift > 0 else "faster"
        confirm = "clocks and temperature (nvidia-smi -q -d PERFORMANCE), longer samples, a memory that fills"
        words = f"the last third of the steps is {100 * abs(pace.drift):.0f} % {direction} than the first"
        yield SlowCause(words, max(pace.drift, 0.0) * pace.seconds or None, confirm, is_seen=True)
    shares = [step.data_share for step in log.steps if step.data_share is not None]
    if shares and (share := sorted(shares)[len(shares) // 2]) > SHARE:
        yield SlowCause(
            "waiting for the input pipeline", share * pace.seconds, "more workers, cached samples", is_seen=True
        )


def _of_timers(log: TrainingLog, pace: Pace) -> Iterator[SlowCause]:
    """Causes that a framework's own timers show."""
    timers = log.timers
    batches = next((timers[name] for name in _LOADING if name in timers), None)
    if batches and batches[1] > SHARE * pace.seconds:
        yield SlowCause("waiting for the input pipeline", batches[1], "more workers, cached samples", is_seen=True)
    if all(name in timers for name in DEEPSPEED_TIMERS):
        rest = pace.seconds - sum(timers[name][1] for name in DEEPSPEED_TIMERS)
        if rest > SHARE * pace.seconds:
            words = f"time that is in none of the timers {', '.join(DEEPSPEED_TIMERS)}"
            yield SlowCause(words, rest, "the input pipeline; logging, checkpoints, evaluation", is_seen=True)
    saving = sum(seconds[1] for name, seconds in timers.items() if name.startswith("ModelCheckpoint"))
    if saving > SHARE * pace.seconds:
        yield SlowCause("saving checkpoints", saving, "fewer of them; asynchronous saving", is_seen=True)
    waiting = sum(timers[name][1] for name in (*_WAITING, _DRAINING) if name in timers)
    if waiting > _WAITING_SHARE * pace.seconds:
        words = "stages wait for each other: the pipeline fills and drains (its bubble)"
        confirm = "more micro-batches a step, interleaved stages, or fewer stages"
        yield SlowCause(words, waiting, confirm, is_seen=True)
    for name in ("forward-backward", "forward-compute", "backward-compute"):
        if name in timers and timers[name][1] - timers[name][0] > SHARE * pace.seconds:
            least, most = timers[name]
            confirm = "a straggler: compare clocks and temperatures of the ranks, or `accept` each node"
            yield SlowCause(
                f"ranks differ: {name} takes {least:.3g} to {most:.3g} s", most - least, confirm, is_seen=True
            )
            break


class ExpectedStep(NamedTuple):
    """The predicted step that a measured one is compared with."""

    workload: Workload
    machine: Machine
    step: StepTime

    @property
    def seconds(self) -> float:
        """Seconds of the predicted step."""
        return self.step.total_seconds


def candidates(expected: ExpectedStep, measured: float, *, known: Layout | None = None) -> list[SlowCause]:
    """Changes of the predicted run that would take about as long as measured, the likeliest first.

    A change of a kind (attention, recomputation, software) that explains at least half of the excess and not much more
    than all of it is a candidate. A slower link can explain any excess: the rate that would do so exactly is named.

    Args:
        known: a layout that the caller stated: what it says is not doubted.
    """
    excess = measured - expected.seconds
    found: list[tuple[float, SlowCause]] = []
    for words, confirm, workload, machine in _variants(expected, known):
        seconds = layout_seconds(workload, machine) - expected.seconds
        if _EXPLAINS * excess <= seconds <= excess / _EXPLAINS:
            found.append((abs(math.log(seconds / excess)), SlowCause(words, seconds, confirm)))
    causes = [cause for _, cause in sorted(found, key=lambda pair: pair[0])]
    links = list(_slow_links(expected, measured))
    found_first = [*links, *causes] if measured > _WAITS * expected.seconds else [*causes, *links]
    return [*found_first, *_of_layout(expected.step)]


def _of_layout(step: StepTime) -> Iterator[SlowCause]:
    """Costs of the layout although all is well: terms of the predicted step that take a quarter of it, or more."""
    for term, (words, helps) in _OF_LAYOUT.items():
        seconds: float = getattr(step, f"{term}_seconds")
        if seconds > _LARGE_SHARE * step.total_seconds:
            yield SlowCause(words, seconds, helps, standing="expected of this layout")


def _variants(expected: ExpectedStep, known: Layout | None) -> Iterator[tuple[str, str, Workload, Machine]]:
    """Runs that differ in one thing: its words, what would confirm it, the workload, the machine."""
    workload, machine = expected.workload, expected.machine
    layout, stack = workload.layout, machine.stack

    def laid_out(**changes: object) -> Workload:
        return workload._replace(layout=msgspec.structs.replace(layout, **changes))

    def under(**changes: object) -> Machine:
        changed: Stack = msgspec.structs.replace(stack, **changes)
        return msgspec.structs.replace(machine, stack=changed)

    if layout.fused_attention and stack.attention is not AttentionKernel.UNFUSED:
        confirm = "a profile shows softmax kernels; the log of the start says which attention runs"
        yield "attention without a fused kernel", confirm, laid_out(fused_attention=False), machine
    if layout.recomputation is not Recomputation.FULL and known is None:
        words = "full recomputation that was not asked for"
        yield words, "gradient checkpointing in the configuration", laid_out(recomputation=Recomputation.FULL), machine
    if machine.overlap_share > 0 and layout.ranks > 1:
        words = "data-parallel messages that do not overlap with computation"
        confirm = "a profile, or CUDA_DEVICE_MAX_CONNECTIONS, overlap options, bucket sizes"
        yield words, confirm, workload, msgspec.structs.replace(machine, overlap_share=0.0)
    if machine.launch_seconds > 0:
        words = "a host that launches kernels twice as slowly: small operators, other load, no compiler"
        confirm = "gaps between kernels in a profile; CPU pinning; torch.compile or CUDA graphs"
        yield words, confirm, workload, msgspec.structs.replace(machine, launch_seconds=2 * machine.launch_seconds)
    if workload.architecture.experts is not None:
        words = "experts that are not equally busy, twice as slow"
        confirm = "tokens of each expert, the balancing loss"
        yield words, confirm, workload, msgspec.structs.replace(machine, expert_slowdown=2 * machine.expert_slowdown)


def _slow_links(expected: ExpectedStep, measured: float) -> Iterator[SlowCause]:
    """The rates of links at which the step would take as long as measured."""
    machine, layout = expected.machine, expected.workload.layout
    excess = measured - expected.seconds
    if layout.ranks > machine.accelerators_per_node:
        rate = _rate_that_explains(expected, measured, "network_bytes_per_second")
        if rate is not None:
            gigabit = rate * 8 / 1e9
            words = f"a network of {gigabit:,.3g} Gbit/s a node, not {machine.network_bytes_per_second * 8 / 1e9:,.0f}"
            yield SlowCause(words, excess, "NCCL_DEBUG=INFO (NET/IB or NET/Socket), nccl-tests between nodes")
    if layout.ranks > 1:
        rate = _rate_that_explains(expected, measured, "link_bytes_per_second")
        if rate is not None:
            words = f"links inside the node of {rate / 1e9:,.3g} GB/s, not {machine.link_bytes_per_second / 1e9:,.0f}"
            yield SlowCause(words, excess, "nvidia-smi topo -m, NCCL_DEBUG=INFO (P2P or SHM), nccl-tests in the node")


def _rate_that_explains(expected: ExpectedStep, measured: float, field: str) -> float | None:
    """The rate at which the step takes as long as measured; None: no rate above a thousandth of the known one does."""
    whole: float = getattr(expected.machine, field)

    def seconds(slowdown: float) -> float:
        slower = {field: whole / slowdown}
        if field == "link_bytes_per_second" and expected.machine.network_bytes_per_second == whole:
            slower["network_bytes_per_second"] = whole / slowdown
        return layout_seconds(expected.workload, msgspec.structs.replace(expected.machine, **slower))

    if not math.isfinite(whole) or seconds(_MOST_SLOWDOWN) < measured:
        return None
    return whole / _bisected(seconds, measured)


def _bisected(seconds: Callable[[float], float], measured: float) -> float:
    low, high = 0.0, math.log(_MOST_SLOWDOWN)
    for _ in range(_STEPS_OF_BISECTION):
        middle = (low + high) / 2
        if seconds(math.exp(middle)) < measured:
            low = middle
        else:
            high = middle
    return math.exp(high)
