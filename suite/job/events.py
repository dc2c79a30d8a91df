"""The events that the ranks of a launch report, and the paths of their files."""

from __future__ import annotations

import enum
from pathlib import PurePath

import msgspec

from suite.job.calibration_job import CalibrationEvent
from suite.job.device_kernels import DeviceKernel
from suite.job.pipeline_passes import PipelineTimes
from suite.job.probe_job import ProbeEvent
from suite.job.slice import SliceTimes
from suite.machine.cpu_contention import Shared
from suite.machine.cpu_speed import SpeedSample


class Status(enum.StrEnum):
    """How a launch ended, independent of whether its figures agree."""

    OK = "ok"
    HANG = "hang"
    OUT_OF_MEMORY = "oom"
    NAN = "nan"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"


class StepKind(enum.StrEnum):
    """The purpose of a step. Only the time of timed steps counts; profiled steps show how it is spent."""

    WARM_UP = "warm-up"
    COUNTED = "counted"
    TIMED = "timed"
    PROFILED = "profiled"


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A rank is alive."""

    pid: int
    time: float


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """A rank enters a phase that can take a while."""

    name: str
    time: float


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One step on one rank: the mean loss over ranks, of workers at a parameter store their own, and its wall time.

    Args:
        gradient_norm: of the whole model, before clipping and without the loss scale; None if infinite or NaN.
        loss_scale: of this step; None where the precision needs none.
        skipped: whether the gradient was not finite on some rank, so that nothing was updated.
    """

    step: int
    kind: StepKind
    loss: float
    seconds: float
    time: float
    gradient_norm: float | None = None
    loss_scale: float | None = None
    skipped: bool = False


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """Training begins with `step`: 0, or that of the checkpoint that was loaded in `seconds`.

    Args:
        attempt: how often torchrun had started all ranks again.
        damaged: a line for each newer checkpoint, which is damaged; of rank 0.
    """

    step: int
    seconds: float
    time: float
    attempt: int = 0
    damaged: list[str] = []


class CheckpointStored(msgspec.Struct, frozen=True, tag="checkpoint stored"):
    """A checkpoint before `step` is complete.

    Args:
        bytes: of this rank's tensors.
        stall_seconds: that training waited while they were copied.
        seconds: until all ranks had written theirs, while training went on.
    """

    step: int
    bytes: int
    stall_seconds: float
    seconds: float
    time: float


class CountedCollective(msgspec.Struct, frozen=True):
    """Calls of one collective on one mesh axis in the counted step of a rank."""

    axis: str
    operation: str
    payload_bytes: int
    messages: int


class RoutedLayer(msgspec.Struct, frozen=True):
    """Routing of a rank's micro-batches by one layer's router, in the counted step.

    Args:
        layer: its number in the whole model.
        rows: that each expert computed; a token has one for each expert that it chooses.
        dropped: rows that no expert computed, for want of capacity.
        auxiliary_loss: E sum_i f_i P_i, unweighted, mean over micro-batches: with equally busy experts, C a token, C.
        sequence_loss: sum_i f_i P_i within a sequence, unweighted, mean over sequences: with equally busy experts 1.
    """

    layer: int
    rows: list[int]
    dropped: int
    auxiliary_loss: float
    sequence_loss: float | None = None


class PackedDocuments(msgspec.Struct, frozen=True):
    """The documents in a rank's samples of the first step.

    Args:
        sequences: of `tokens` each.
        documents: in all of them, cut ones too.
        attended: pairs of a token and one that it sees, itself included.
    """

    sequences: int
    tokens: int
    documents: int
    attended: int


class ComputedRows(msgspec.Struct, frozen=True):
    """Rows of all layers together that the experts of a rank computed, of every rank's tokens.

    Args:
        forward: with those that recomputation repeats.
        layers: of each layer with experts in each micro-batch, where memory depends on them: of the peak.
    """

    forward: int
    backward: int
    layers: list[list[int]] = []


class StoreWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a rank at a parameter store, as a worker, step by step.

    Args:
        computed_seconds: until its gradient was there.
        slept_seconds: after that, to be slower.
        waited_seconds: for other workers, at the end of the step.
        ahead: steps that it was ahead of the slowest worker when it read the weights of the step.
        delays: gradients that updates took between that and the update that took the step's gradient.
        updates: that the store made in all.
        arrivals: of rank 0 alone: the workers of all gradients, in the order in which they came.
    """

    computed_seconds: list[float]
    slept_seconds: list[float]
    waited_seconds: list[float]
    ahead: list[int]
    delays: list[int]
    updates: int
    arrivals: list[int] = []


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The counts and times of a rank.

    Args:
        coordinates: mesh axis -> this rank's coordinate on it.
        parameters: elements of the parameters that this rank stores.
        own_parameters: those that no other rank counts. Their sum over the ranks with one data-parallel coordinate
            (over all ranks where parameters are sharded) is the whole model.
        model_flop, hardware_flop: of its share of one step, without and with recomputation.
        activation_bytes: kept for the backward pass of one micro-batch.
        peak_bytes: the largest sum of blocks that PyTorch's allocator held at a time in one step, executed eagerly.
        worked_seconds: of each timed step, the time in which this rank's chunks of a pipeline computed; empty without
            pipeline.
        pipeline_seconds: of each timed step, the time from the pipeline's first pass to this rank's last message;
            without flush, the time of its passes and of all its waits for other ranks. Empty without pipeline.
        interface_sent_bytes: sent through the job's interface in a timed step; None where none is named.
        term_seconds: `StepTerm` -> seconds of this rank's median timed step; empty where no step was profiled.
        shared: how it shared the processors; None where the system does not report it.
        resident_bytes: the largest resident set of its process before its timed steps; None where not reported.
        reserved_bytes: the most that CUDA's allocator reserved in the step of `peak_bytes`; None on the CPU.
        cpu_speed: median of the samples between timed steps; None on a GPU.
        synchronisations: how often the counted step read numbers from the device (see `SynchronisationCounter`).
        routed: what each router of this rank's layers did in the counted step; empty without experts.
        computed_rows: where experts are shared out over ranks, what this rank's computed in the pass in which a figure
            was measured, by the figure: that pass alone, as routing changes from step to step.
        slice_times: of a slice; None of a whole run.
        pipeline_times: of a pipeline's passes; None without pipeline.
        weight_versions, staleness: of a stage without flush: versions that it stores, and updates by which gradients
            are late at most; None elsewhere.
        store_work: at a parameter store; None without one.
        device_kernels: of a profiled step on a GPU, the longest first; empty elsewhere.
        no_terms: why `term_seconds` is empty, and why a trace was not written; empty where nothing went wrong.
        counted: whether a step was counted and timed; False where a training that went on had too few steps left.
        arithmetic: how matrix products are computed where not by the dtype's own instructions, and which kernels
            compute the rest where not PyTorch's.
    """

    coordinates: dict[str, int]
    parameters: int
    own_parameters: int
    model_flop: int
    hardware_flop: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    collectives: list[CountedCollective]
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
    device_kernels: list[DeviceKernel] = []
    shared: Shared | None = None
    resident_bytes: int | None = None
    reserved_bytes: int | None = None
    synchronisations: int | None = None
    routed: list[RoutedLayer] = []
    computed_rows: dict[str, ComputedRows] = {}
    packed: PackedDocuments | None = None
    slice_times: SliceTimes | None = None
    pipeline_times: PipelineTimes | None = None
    weight_versions: int | None = None
    staleness: int | None = None
    store_work: StoreWork | None = None
    cpu_speed: SpeedSample | None = None
    counted: bool = True


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why a rank gave up. `at_fault` is False where it only saw another rank's failure."""

    status: Status
    message: str
    at_fault: bool
    traceback: str
    time: float


class Hung(msgspec.Struct, frozen=True, tag="hung"):
    """The launch hangs. The launcher says so before it ends the ranks; no rank reports it."""

    time: float


Event = Started | Phase | Step | Resumed | CheckpointStored | Finished | Failed | Hung | CalibrationEvent | ProbeEvent


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
    """The file next to a rank's trace with the events of the CUDA allocator in the profiled steps."""
    return f"{trace_path(trace, rank)}.memory.pickle"
