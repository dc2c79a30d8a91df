"""Times of the passes of a pipeline's rank in its timed steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from suite.execute.measure import clock
from suite.execute.measure.phases import Part
from suite.execute.parallel.mesh import slowest
from suite.job.pipeline_passes import MOST_PASSES, MeasuredPass, Pass, PassKind, PassMedian, PipelineTimes

BETWEEN = (Part.DATA_LOADING, Part.HOST_DEVICE_COPY, Part.UPDATE)  # what a rank does besides its pipeline


class StepPasses(NamedTuple):
    """One timed step: its number, and start and end of this rank's passes in seconds of its own clock."""

    step: int
    passes: list[tuple[Pass, float, float]]


def pipeline_times(
    steps: Sequence[StepPasses], phase_seconds: Sequence[Mapping[Part, float]], device: torch.device
) -> PipelineTimes:
    """Medians over `steps`, and the passes of the one whose pipeline took the median time on its slowest rank.

    All ranks must call it together.

    Args:
        phase_seconds: of this rank in each of the steps.
    """
    everyone = dist.group.WORLD
    assert everyone is not None
    longest = slowest(everyone, *(seconds[Part.PIPELINE] for seconds in phase_seconds), device=device)
    shown = steps[sorted(range(len(steps)), key=longest.__getitem__)[(len(steps) - 1) // 2]]
    ahead = clock.seconds_ahead(device)
    (latest,) = slowest(everyone, ahead - shown.passes[0][1], device=device)

    def microseconds(moment: float) -> int:
        return round(1e6 * (moment - ahead + latest))

    return PipelineTimes(
        medians=_medians(steps),
        step=shown.step,
        passes=[
            MeasuredPass(*done, microseconds(start), microseconds(end))
            for done, start, end in shown.passes[:MOST_PASSES]
        ],
        between_seconds=statistics.median(sum(seconds[part] for part in BETWEEN) for seconds in phase_seconds),
    )


def _medians(steps: Sequence[StepPasses]) -> list[PassMedian]:
    seconds: dict[tuple[PassKind, int], list[float]] = defaultdict(list)
    for step in steps:
        for done, start, end in step.passes:
            seconds[done.kind, done.chunk].append(end - start)
    return [PassMedian(kind, chunk, statistics.median(taken)) for (kind, chunk), taken in seconds.items()]
