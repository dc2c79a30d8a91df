"""The vocabulary: quantities, their units, and figures under one spelling everywhere."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

OF_DATASHEET = "of the data sheet's peak"  # the term of mfu and hfu over a GPU's dense peak


class Quantity(enum.StrEnum):
    """A quantity of a run: its name, which every source of figures uses, and its unit."""

    unit: str

    def __new__(cls, name: str, unit: str = "") -> Quantity:
        member = str.__new__(cls, name)
        member._value_, member.unit = name, unit
        return member

    PARAMETERS = "parameters", "1"
    MODEL_FLOP = "model_flop", "flop"
    HARDWARE_FLOP = "hardware_flop", "flop"
    WEIGHT_BYTES = "weight_bytes", "byte"
    GRADIENT_BYTES = "gradient_bytes", "byte"
    OPTIMIZER_BYTES = "optimizer_bytes", "byte"
    WEIGHT_VERSIONS = "weight_versions", "1"
    STALENESS = "staleness", "1"
    ACTIVATION_BYTES = "activation_bytes", "byte"
    PEAK_BYTES = "peak_bytes", "byte"
    PAYLOAD_BYTES = "payload_bytes", "byte"
    MESSAGES = "messages", "1"
    SENT_BYTES = "sent_bytes", "byte"
    BUBBLE_FRACTION = "bubble_fraction", "1"
    STEP_SECONDS = "step_seconds", "s"
    CPU_SLOWDOWN = "cpu_slowdown", "1"
    STEP_SECONDS_AT_CPU_SPEED = "step_seconds_at_cpu_speed", "s"
    TOKENS_PER_SECOND = "tokens_per_second", "token/s"
    MODEL_FLOP_PER_SECOND = "model_flop_per_second", "flop/s"
    HARDWARE_FLOP_PER_SECOND = "hardware_flop_per_second", "flop/s"
    MFU = "mfu", "1"
    HFU = "hfu", "1"
    FIRST_LOSS = "first_loss", "1"
    TRAINING_FLOP = "training_flop", "flop"
    TRAINING_SECONDS = "training_seconds", "s"
    ACCELERATOR_SECONDS = "accelerator_seconds", "accelerator s"
    ENERGY_JOULES = "energy_joules", "J"
    COST = "cost", "1"


EXACT = frozenset(
    {
        Quantity.PARAMETERS,
        Quantity.MODEL_FLOP,
        Quantity.HARDWARE_FLOP,
        Quantity.WEIGHT_BYTES,
        Quantity.GRADIENT_BYTES,
        Quantity.OPTIMIZER_BYTES,
        Quantity.WEIGHT_VERSIONS,
        Quantity.STALENESS,
        Quantity.PAYLOAD_BYTES,
        Quantity.MESSAGES,
    }
)


class StepTerm(enum.StrEnum):
    """The parts that a step's seconds are split into, predicted and measured; together they are all of them.

    Compute of the forward pass, the backward pass and the update; communication that no compute hides; a pipeline
    stage's waiting; time in which the processor or the GPU computes nothing because the host is dispatching. What
    is left over, with its sign, is unexplained.
    """

    DATA_LOADING = "data loading"
    HOST_DEVICE_COPY = "host-device copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    EXPOSED_COMMUNICATION = "exposed communication"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"
    OVERHEAD = "launch and host overhead"
    UNEXPLAINED = "unexplained"


ACTIVATIONS = "kept for the backward pass of one micro-batch"
ALLOCATED = "largest sum of allocated blocks in one step, executed eagerly"
MEASURED_PASSES = "of measured passes"  # term of a pipeline's bubble: the schedule's own, each pass as long as measured
LAST_LOSSES = 3  # steps whose mean is the last loss


class Figure(msgspec.Struct, frozen=True):
    """One value of one quantity, in its base unit.

    Args:
        axis, operation: mesh axis and collective, for traffic.
        rank: absent for the whole job or the maximum over ranks.
        why: what the value rests on, where it needs saying.
        tolerance: relative half-width that a comparison may allow, with `why` as its reason; None where exact.
    """

    quantity: Quantity
    value: int | float
    axis: str | None = None
    operation: str | None = None
    rank: int | None = None
    stage: int | None = None
    term: str | None = None
    convention: str | None = None
    tolerance: float | None = None
    why: str = ""

    @property
    def key(self) -> tuple[str, str | None, str | None, int | None, int | None, str | None]:
        """Key that two figures must share to be compared; the convention may differ and is shown."""
        return (self.quantity.value, self.axis, self.operation, self.rank, self.stage, self.term)


def of_job(figures: Iterable[Figure], quantity: Quantity) -> int | float | None:
    """The value of a quantity for the whole job, no rank's and no term's; None where it is not there."""
    return next((f.value for f in figures if f.quantity is quantity and f.rank is None and f.term is None), None)


def last_loss(losses: Sequence[float]) -> float:
    """Mean loss of the last 3 steps."""
    last = losses[-LAST_LOSSES:]
    return sum(last) / len(last)


def with_maximum_over_ranks(per_rank: list[Figure]) -> list[Figure]:
    """For each quantity, axis and operation: the maximum over ranks first, then every rank's own figure."""
    groups: dict[tuple[object, ...], list[Figure]] = {}
    for figure in per_rank:
        groups.setdefault((figure.quantity, figure.axis, figure.operation, figure.term), []).append(figure)
    out: list[Figure] = []
    for figures in groups.values():
        largest = max(figures, key=lambda figure: figure.value)
        out += [msgspec.structs.replace(largest, rank=None, stage=None), *figures]
    return out


def of_processes(each: list[list[Figure]]) -> list[Figure]:
    """Figures of a slice: those of its process, or of several each one's after the largest."""
    if len(each) == 1:
        return each[0]
    numbered = [msgspec.structs.replace(f, rank=number) for number, figures in enumerate(each) for f in figures]
    return with_maximum_over_ranks(numbered)
