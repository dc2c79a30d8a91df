"""The passes of a pipeline's step: what a rank computes one after the other, and what was measured of them."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.run import Workload

MOST_PASSES = 1000  # of a rank's step, whose times are recorded one by one: the first ones


class PassKind(enum.StrEnum):
    """The result of a pass: outputs, all gradients, or one half of these; by PyTorch's letters.

    FORWARD, BACKWARD
    INPUT: gradients of the chunk's input, which the chunk before waits for.
    WEIGHT: gradients of the weights, which none waits for.
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Pass(NamedTuple):
    """One micro-batch through one chunk of the model."""

    kind: PassKind
    chunk: int
    micro_batch: int


def most_passes(workload: Workload) -> int:
    """Passes of a rank that are recorded at most; 0 without pipeline."""
    layout = workload.layout
    if layout.pipeline_stages == 1:
        return 0
    return min(MOST_PASSES, 3 * layout.virtual_stages * accumulation(workload.recipe, layout))


class MeasuredPass(msgspec.Struct, frozen=True, array_like=True):
    """One pass of a rank, in whole microseconds since the first pass of the step began on any rank."""

    kind: PassKind
    chunk: int
    micro_batch: int
    start_us: int
    end_us: int


class PassMedian(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of a pass of one kind through one chunk on a rank: the median over micro-batches and timed steps."""

    kind: PassKind
    chunk: int
    seconds: float


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a pipeline's rank of its passes.

    Args:
        medians: of each kind and chunk that it has.
        step: number of the step that `passes` are of: of all timed steps that whose pipeline took the median time, the
            same on every rank.
        passes: in their order; the first `MOST_PASSES` where there are more.
        between_seconds: what the rank does besides them in a step, its update and its samples: the median over timed
            steps. None in records of earlier schema versions.
    """

    medians: list[PassMedian]
    step: int
    passes: list[MeasuredPass]
    between_seconds: float | None = None
