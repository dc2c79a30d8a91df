"""What the launcher tells the ranks, and what they tell back: the data that both sides share."""

from __future__ import annotations

import enum
from pathlib import PurePath

import msgspec

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Recipe
from suite.calibration_job import Calibrated, Measured, TrialSteps
from suite.pace import Pace
from suite.probe_job import Exchanged, Probed, Replayed, Soaked
from suite.script import SUITE, Script
from suite.shared_processors import Shared


class Status(enum.StrEnum):
    """How a launch ended; apart from whether its figures agree."""

    OK = "ok"
    HANG = "hang"
    OUT_OF_MEMORY = "oom"
    NAN = "nan"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"


class KernelChoice(enum.StrEnum):
    """By what a decoder computes all but its matrix products."""

    TORCH = "torch"
    TRITON = "triton"


class Averaging(enum.StrEnum):
    """How gradients, or what takes their place, are averaged over the data-parallel ranks."""

    EXACT = "exact"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "powersgd"
    ONE_BIT = "one-bit-adam"

    @property
    def exact_at_first(self) -> bool:
        """Whether its first steps average exactly."""
        return self in (Averaging.POWER_SGD, Averaging.ONE_BIT)


class StepKind(enum.StrEnum):
    """What a step's time is good for: only that of timed steps counts. Profiled ones say where it went."""

    WARM_UP = "warm-up"
    COUNTED = "counted"
    TIMED = "timed"
    PROFILED = "profiled"


POWER_SGD_RANK = 4  # of the factors that stand for a gradient matrix
LAUNCH_VARIABLE = "SUITE_LAUNCH"  # marks every process of a launch, so that none is left behind
WARM_UP_STEPS = 2  # the second step is the first with DistributedDataParallel's final buckets
COUNTED_STEPS = 3  # one under the collective counter, one for the peak of memory, one under the flop counter
LEAST_STEPS = WARM_UP_STEPS + COUNTED_STEPS + 1
PROFILED_STEPS = 2  # the last ones, where there are so many that one is timed before them
LEAST_PROFILED = LEAST_STEPS + PROFILED_STEPS


def warm_up_steps(exact_steps: int) -> int:
    """Steps before those that are counted and timed: all exact ones, and the first that is not."""
    return max(WARM_UP_STEPS, exact_steps + 1)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Args:
        device: "cpu" or "cuda".
        tokens_file: little-endian int32 tokens; `tokens` of them.
        directory: where every rank writes its events.
        interface: network interface that only this rank's messages leave by; None where ranks share one.
        collective_timeout_seconds: the process group's own bound, a fallback behind the launcher's hang guard.
        threads: arithmetic threads of a rank, for "cpu".
        kernels: of norms, activations, rotation, softmax and loss.
        trace: the file for the profiled steps of rank 0 (see `trace_path`); None where nobody asked for one.
        averaging: over the data-parallel ranks.
        exact_steps: at the beginning, averaged exactly whatever `averaging` is.
        renewal: of 1-bit Adam's second moment by exact steps, whenever the steps behind the first ones have doubled.
        script: what a rung of the ladder does in another way.
    """

    name: str
    architecture: Architecture
    recipe: Recipe
    layout: Layout
    device: str
    compiled: bool
    seed: int
    steps: int
    tokens_file: str
    tokens: int
    directory: str
    threads: int
    collective_timeout_seconds: float
    interface: str | None = None
    trace: str | None = None
    kernels: KernelChoice = KernelChoice.TORCH
    averaging: Averaging = Averaging.EXACT
    exact_steps: int = 0
    renewal: bool = False
    script: Script = SUITE

    @property
    def ranks(self) -> int:
        """Processes of the launch."""
        return self.layout.ranks

    @property
    def warm_up_steps(self) -> int:
        """Steps before those that are counted and timed: all exact ones, and the first that is not."""
        return warm_up_steps(self.exact_steps)


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A rank is alive."""

    pid: int
    time: float


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """A rank enters a phase that can take a while."""

    name: str
    time: float


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One step as a rank saw it: the mean loss over ranks, and its own wall time.

    Args:
        gradient_norm: of the whole model, before clipping and without the loss scale; infinite or NaN is null.
        loss_scale: the scale that it ran with; None where the precision needs none.
        skipped: its gradient was not finite at that scale on some rank, and nothing was updated.
    """

    step: int
    kind: StepKind
    loss: float
    seconds: float
    time: float
    gradient_norm: float | None = None
    loss_scale: float | None = None
    skipped: bool = False


class Collective(msgspec.Struct, frozen=True):
    """Calls of one collective on one mesh axis in the counted step of a rank."""

    axis: str
    operation: str
    payload_bytes: int
    messages: int


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """What a rank counted.

    Args:
        coordinates: mesh axis -> this rank's place on it.
        parameters: elements of the parameters that this rank stores.
        own_parameters: of them, those that no other rank counts: summed over the ranks of one data-parallel place (over
            all ranks where parameters are sharded), the whole model.
        model_flop, hardware_flop: of its share of one step, without and with recomputation.
        activation_bytes: kept for the backward pass of one micro-batch.
        peak_bytes: the largest sum of blocks that PyTorch's allocator held at a time in one step, executed eagerly.
        worked_seconds: in which this rank's chunks of a pipeline computed, of each timed step; empty without pipeline.
        pipeline_seconds: that the pipeline took, from its first pass to this rank's last message, likewise.
        interface_sent_bytes: bytes a timed step that left the job's interface; None where none is named.
        term_seconds: `StepTerm` -> seconds of this rank's median timed step; empty where no step was profiled.
        shared: with whom it shared the processors; None where the system does not tell.
        resident_bytes: the largest resident set of its process before its timed steps; None where not told.
        reserved_bytes: the most that CUDA's allocator reserved in the step of `peak_bytes`; None on the CPU.
        pace: of its processors, in laps between timed steps; None on a GPU.
        synchronisations: how often the counted step read numbers of the device, as `SynchronisationCounter` counts.
        no_terms: why it is empty, and why a trace was not written; empty where nothing went wrong.
        arithmetic: how matrix products are computed where that is not the dtype's own instructions, and by what kernels
            the rest where they are not PyTorch's.
    """

    coordinates: dict[str, int]
    parameters: int
    own_parameters: int
    model_flop: int
    hardware_flop: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    collectives: list[Collective]
    activation_bytes: int
    peak_bytes: int
    worked_seconds: list[float]
    pipeline_seconds: list[float]
    interface_sent_bytes: float | None
    arithmetic: str
    environment: dict[str, str]
    time: float
    term_seconds: dict[str, float] = {}
    no_terms: str = ""
    shared: Shared | None = None
    resident_bytes: int | None = None
    reserved_bytes: int | None = None
    synchronisations: int | None = None
    pace: Pace | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why a rank gave up. `at_fault` is False where it only saw another rank's failure."""

    status: Status
    message: str
    at_fault: bool
    traceback: str
    time: float


Event = (
    Started
    | Phase
    | Step
    | Finished
    | Failed
    | Measured
    | TrialSteps
    | Calibrated
    | Replayed
    | Exchanged
    | Soaked
    | Probed
)


def events_path(directory: str, rank: int) -> str:
    """The file to which a rank appends its events, a JSON object a line."""
    return f"{directory}/rank{rank}.jsonl"


def stacks_path(directory: str, rank: int) -> str:
    """The file to which a rank dumps its Python stacks when it receives SIGUSR1."""
    return f"{directory}/rank{rank}.stacks"


def recording_path(directory: str, rank: int) -> str:
    """The file to which a rank dumps its flight recorder when it receives SIGUSR1."""
    return f"{directory}/rank{rank}.flight.json"


def trace_path(trace: str, rank: int) -> str:
    """The file for one rank's trace: rank 0's is `trace` itself, the others have .rankN before the suffix."""
    path = PurePath(trace)
    return trace if rank == 0 else str(path.with_name(f"{path.stem}.rank{rank}{path.suffix}"))


def memory_snapshot_path(trace: str, rank: int) -> str:
    """The file beside a rank's trace for what the CUDA allocator did in the profiled steps."""
    return f"{trace_path(trace, rank)}.memory.pickle"
