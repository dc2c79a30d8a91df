"""The input of a dry run's worker, and what it answers."""

from __future__ import annotations

import msgspec

from suite.job.events import Finished


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """Bytes by category after some allocation or free of a step, and the phase that it happened in."""

    phase: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all categories."""
        return sum(self.bytes.values())


class AskedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step that is counted.

    Args:
        in_flight: micro-batches that a pipeline stage has in flight at most; None for as many as in the run.
    """

    micro_batches: int
    in_flight: int | None = None


class AskedRank(msgspec.Struct, frozen=True, array_like=True):
    """A line of a worker's input: what it counts of its job.

    Args:
        steps: that are counted, one after the other.
        activations: whether it counts them too, in a pass of their own.
        layers: of the model; None for all.
    """

    rank: int
    steps: tuple[AskedStep, ...]
    activations: bool
    layers: int | None = None


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what one rank executes in a step of so many micro-batches.

    Args:
        counts: as a launched rank reports them; nothing that needs a clock. Activations are 0 where they
            were not asked for.
        stage_parameters: that the ranks of its pipeline stage have together, if each has as many; copies count once.
        fullest: the moment of each phase of the step in which its sum is the largest.
        history: at most some hundred moments of the step, in order, the peak among them.
    """

    micro_batches: int
    counts: Finished
    stage_parameters: int
    fullest: list[Moment]
    history: list[Moment]

    @property
    def at_peak(self) -> Moment:
        """The fullest moment of all."""
        return max(self.fullest, key=lambda moment: moment.total)


class CountedRank(msgspec.Struct, frozen=True, kw_only=True, tag="counted"):
    """A worker's answer: the steps of one rank of a model with so many layers, None for all."""

    rank: int
    seconds: float
    steps: list[StepCounts]
    layers: int | None = None


class NotCounted(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why a worker has no counts."""

    rank: int
    message: str
    traceback: str


Answer = CountedRank | NotCounted
