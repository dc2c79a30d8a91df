"""Times of a pipeline's passes: medians over steps, and the step that took the median time."""

from __future__ import annotations

import pytest
import torch

from suite.execute.measure.phases import Part
from suite.execute.training.pipeline_times import StepPasses, pipeline_times
from suite.job.pipeline_passes import MOST_PASSES, MeasuredPass, Pass, PassKind, PassMedian

pytestmark = pytest.mark.usefixtures("alone")
CPU = torch.device("cpu")
F, W = PassKind.FORWARD, PassKind.WEIGHT


def step(number: int, began: float, *taken: float) -> StepPasses:
    """Forward passes of chunk 2 that follow each other, and one of weights that takes 9 s."""
    passes, now = [], began
    for micro_batch, seconds in enumerate(taken):
        passes.append((Pass(F, 2, micro_batch), now, now + seconds))
        now += seconds
    return StepPasses(number, [*passes, (Pass(W, 2, 0), now, now + 9.0)])


def phases(pipeline: float, update: float) -> dict[Part, float]:
    """Phases of a step whose samples take two seconds."""
    return dict.fromkeys(Part, 0.0) | {Part.DATA_LOADING: 2.0, Part.PIPELINE: pipeline, Part.UPDATE: update}


def test_the_step_of_the_median_time_is_shown_from_its_first_pass_on() -> None:
    steps = [step(6, 100.0, 1.0, 3.0), step(7, 200.0, 2.0, 2.5), step(9, 300.0, 8.0, 1.5)]
    times = pipeline_times(steps, [phases(13.0, 0.5), phases(99.0, 0.25), phases(18.5, 7.0)], CPU)
    assert times.medians == [PassMedian(F, 2, 2.25), PassMedian(W, 2, 9.0)]
    assert times.between_seconds == 2 + 0.5
    assert times.step == 9
    assert times.passes == [
        MeasuredPass(F, 2, 0, 0, 8_000_000),
        MeasuredPass(F, 2, 1, 8_000_000, 9_500_000),
        MeasuredPass(W, 2, 0, 9_500_000, 18_500_000),
    ]


def test_of_very_many_passes_the_first_are_kept() -> None:
    times = pipeline_times([step(3, 0.0, *[0.5] * MOST_PASSES)], [phases(1.0, 1.0)], CPU)
    assert [each.micro_batch for each in times.passes] == [*range(MOST_PASSES)]
