"""A slice: what one accelerator of a recorded run computes, and the seconds of its parts."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence

import msgspec

from reference_runs.layout import Layout

SUFFIX = "-slice"  # of its name: bloom-176b-slice
WITHIN_LAYERS = frozenset({"tp", "kv", "cp", "ep"})  # axes of messages that belong to layers, embedding and head


class SliceStage(enum.StrEnum):
    """Which pipeline stage a slice is of: the last one has final norm, head and loss, the first one the embedding.

    An only one has all of it, one in the middle layers alone.
    """

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"

    @property
    def has_embedding(self) -> bool:
        return self in (SliceStage.FIRST, SliceStage.ONLY)

    @property
    def has_head(self) -> bool:
        return self in (SliceStage.LAST, SliceStage.ONLY)


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded run of which a job executes a slice, and how much of it.

    The job itself has the shapes: `job.architecture` is the run's, with the slice's sequence and few layers;
    `job.layout` has the run's tensor, context and expert parallelism, recomputation and micro-batch (or what was asked
    for in place of it), ZeRO-1 over the ranks that share state of the optimizer in the run, and the fewest stages in
    which there is such a one. What differs from the recorded run is in `job.changes`, in words.

    Args:
        run: name of the recorded run, or of a run file's.
        layout: of the whole run: as recorded, or as asked for.
        stage: that it is of.
        layers: that it executes, all alike.
        sequence, micro_batch: of the whole run, in tokens and samples.
        rank: in `job.layout`, whose place the first process takes.
        group: in `job.layout`, the places of all processes, where these are the ranks that share a stage's layers
            (tensor, context and expert parallelism) and exchange messages. Empty: one process, which sends nothing.
        minutes: after the first step, before which no further timed one is begun; None: all steps are taken.
    """

    run: str
    layout: Layout
    stage: SliceStage
    layers: int
    sequence: int
    micro_batch: int
    rank: int
    minutes: float | None = None
    group: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Ranks in `job.layout` whose places the processes take."""
        return self.group or (self.rank,)


class SlicePart(enum.StrEnum):
    """A part of a micro-batch's work on one accelerator, or of the update after the last one.

    shared_forward: what all layers of a stage share: mask or bias of the scores, rotation's angles.
    embedding_*: table, positions, their norm and dropout.
    layer_*: one layer: seconds of all of the slice's over their number. Backward with what is computed again.
    head_*: final norm, head and loss.
    update: all that is done once a step: norm of the gradient, clipping, optimizer, and clearing gradients.
    """

    SHARED_FORWARD = "shared_forward"
    EMBEDDING_FORWARD = "embedding_forward"
    EMBEDDING_BACKWARD = "embedding_backward"
    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    HEAD_FORWARD = "head_forward"
    HEAD_BACKWARD = "head_backward"
    UPDATE = "update"


def relative_spread(samples: list[float]) -> float | None:
    """Half of the range between the quartiles, over the median; None with fewer than 4 samples."""
    if len(samples) < 4:
        return None
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle


class SliceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a slice.

    Args:
        seconds: of each part that the slice has, one number for each timed repetition. A repetition is one micro-batch
            forward and backward, and an update.
        updated_parameters: elements that `update` updates: this accelerator's shard of the slice's.
    """

    seconds: dict[SlicePart, list[float]]
    updated_parameters: int

    def median(self, part: SlicePart) -> float | None:
        """Median seconds of a part; None where the slice has none of it."""
        return statistics.median(self.seconds[part]) if self.seconds.get(part) else None

    def spread(self, part: SlicePart) -> float | None:
        """`relative_spread` of a part's samples."""
        return relative_spread(self.seconds.get(part, []))


def slowest(times: Sequence[SliceTimes]) -> SliceTimes | None:
    """The longest time of all processes for each part and repetition: they wait for each other; None without times."""
    if not times:
        return None
    seconds = {
        part: [max(samples) for samples in zip(*(each.seconds[part] for each in times), strict=True)]
        for part in times[0].seconds
    }
    return SliceTimes(seconds=seconds, updated_parameters=max(each.updated_parameters for each in times))
