"""The vocabulary: quantities, their units, and figures under one spelling everywhere."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Quantity(enum.StrEnum):
    """What can be said of a run. Every source of figures uses these names."""

    PARAMETERS = "parameters"
    MODEL_FLOP = "model_flop"
    HARDWARE_FLOP = "hardware_flop"
    WEIGHT_BYTES = "weight_bytes"
    GRADIENT_BYTES = "gradient_bytes"
    OPTIMIZER_BYTES = "optimizer_bytes"
    ACTIVATION_BYTES = "activation_bytes"
    PEAK_BYTES = "peak_bytes"
    PAYLOAD_BYTES = "payload_bytes"
    MESSAGES = "messages"
    SENT_BYTES = "sent_bytes"
    BUBBLE_FRACTION = "bubble_fraction"
    STEP_SECONDS = "step_seconds"
    PACE = "pace"
    STEP_SECONDS_AT_PACE = "step_seconds_at_pace"
    TOKENS_PER_SECOND = "tokens_per_second"
    MODEL_FLOP_PER_SECOND = "model_flop_per_second"
    HARDWARE_FLOP_PER_SECOND = "hardware_flop_per_second"
    MFU = "mfu"
    HFU = "hfu"
    FIRST_LOSS = "first_loss"
    TRAINING_FLOP = "training_flop"
    TRAINING_SECONDS = "training_seconds"
    ACCELERATOR_SECONDS = "accelerator_seconds"
    ENERGY_JOULES = "energy_joules"
    COST = "cost"


UNIT: dict[Quantity, str] = {
    Quantity.PARAMETERS: "1",
    Quantity.MODEL_FLOP: "flop",
    Quantity.HARDWARE_FLOP: "flop",
    Quantity.WEIGHT_BYTES: "byte",
    Quantity.GRADIENT_BYTES: "byte",
    Quantity.OPTIMIZER_BYTES: "byte",
    Quantity.ACTIVATION_BYTES: "byte",
    Quantity.PEAK_BYTES: "byte",
    Quantity.PAYLOAD_BYTES: "byte",
    Quantity.MESSAGES: "1",
    Quantity.SENT_BYTES: "byte",
    Quantity.BUBBLE_FRACTION: "1",
    Quantity.STEP_SECONDS: "s",
    Quantity.PACE: "1",
    Quantity.STEP_SECONDS_AT_PACE: "s",
    Quantity.TOKENS_PER_SECOND: "token/s",
    Quantity.MODEL_FLOP_PER_SECOND: "flop/s",
    Quantity.HARDWARE_FLOP_PER_SECOND: "flop/s",
    Quantity.MFU: "1",
    Quantity.HFU: "1",
    Quantity.FIRST_LOSS: "1",
    Quantity.TRAINING_FLOP: "flop",
    Quantity.TRAINING_SECONDS: "s",
    Quantity.ACCELERATOR_SECONDS: "accelerator s",
    Quantity.ENERGY_JOULES: "J",
    Quantity.COST: "1",
}

EXACT = frozenset(
    {
        Quantity.PARAMETERS,
        Quantity.MODEL_FLOP,
        Quantity.HARDWARE_FLOP,
        Quantity.WEIGHT_BYTES,
        Quantity.GRADIENT_BYTES,
        Quantity.OPTIMIZER_BYTES,
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


class Figure(msgspec.Struct, frozen=True, kw_only=True):
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
        """What two figures must share to be compared; the convention may differ and is shown."""
        return (self.quantity.value, self.axis, self.operation, self.rank, self.stage, self.term)


def of_job(figures: Iterable[Figure], quantity: Quantity) -> int | float | None:
    """The value of a quantity for the whole job, no rank's and no term's; None where it is not there."""
    return next((f.value for f in figures if f.quantity is quantity and f.rank is None and f.term is None), None)


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
