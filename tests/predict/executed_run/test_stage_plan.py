from __future__ import annotations

import msgspec
import pytest

from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.job.pipeline_passes import PassKind, PassMedian, PipelineTimes
from suite.predict.analytic.flop import head_forward_flop, layer_forward_flop
from suite.predict.executed_run.stage_plan import stage_plan
from tests.support.strategies import BLOOM


def measured(*seconds: float) -> list[PipelineTimes | None]:
    """Times of stages whose backward pass takes twice the forward pass, both together so many seconds."""
    return [
        PipelineTimes(
            medians=[PassMedian(PassKind.FORWARD, n, each / 3), PassMedian(PassKind.BACKWARD, n, 2 * each / 3)],
            step=3,
            passes=[],
        )
        for n, each in enumerate(seconds)
    ]


def workload(layers: int, layout: Layout) -> Workload:
    return Workload(msgspec.structs.replace(BLOOM.architecture, layers=layers), BLOOM.recipe, layout)


def test_a_slow_head_leaves_the_last_stage_fewer_layers() -> None:
    run = workload(8, Layout(pipeline_stages=2))
    layer = sum(layer_forward_flop(run.architecture, samples=1).values())
    head = head_forward_flop(run.architecture, samples=1)
    plan = stage_plan(run, measured(4.0, 4.0 * (4 * layer + head) / (4 * layer)))
    assert plan is not None
    assert plan.layers == [4, 4]
    assert plan.seconds == pytest.approx([4.0, 4.0 + head / layer])
    best = min(range(1, 8), key=lambda first: max(first, 8 - first + head / layer))
    assert plan.planned_layers == [best, 8 - best]
    assert plan.planned_seconds == pytest.approx([best, 8 - best + head / layer])


def test_a_stage_whose_layers_are_slow_gives_some_away() -> None:
    plan = stage_plan(workload(8, Layout(pipeline_stages=4)), measured(2.0, 6.0, 2.0, 2.0))
    assert plan is not None
    assert plan.seconds == pytest.approx([2, 6, 2, 2])
    assert sum(plan.planned_seconds) == pytest.approx(12)
    assert max(plan.planned_seconds) < 6
    assert sum(plan.planned_layers) == 8


def test_without_measured_stages_of_one_chunk_there_is_no_plan() -> None:
    assert stage_plan(workload(8, Layout()), [None]) is None
    assert stage_plan(workload(8, Layout(pipeline_stages=2)), [*measured(1.0), None]) is None
    assert stage_plan(workload(8, Layout(pipeline_stages=2, virtual_stages=2)), measured(1.0, 1.0)) is None
