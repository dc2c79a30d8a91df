from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _ComputationType

from reference_runs.layout import Layout, Schedule
from reference_runs.placement import stage_chunks
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.simulation.pipeline_order import Action, actions, passes


class Stage:
    """Fields that PyTorch's schedules ask of a stage before they run."""

    is_first = is_last = False
    has_backward = True
    submod = None

    def __init__(self, index: int, rank: int, stages: int, chunks: int) -> None:
        self.group_size, self.group_rank = stages, rank
        self.stage_index, self.num_stages = index, chunks
        self.device = "cpu"


KINDS = {
    _ComputationType.FORWARD: PassKind.FORWARD,
    _ComputationType.FULL_BACKWARD: PassKind.BACKWARD,
    _ComputationType.BACKWARD_INPUT: PassKind.INPUT,
    _ComputationType.BACKWARD_WEIGHT: PassKind.WEIGHT,
}


def of_pytorch(action: Any) -> Action:
    return tuple(
        Pass(KINDS[each.computation_type], each.stage_index, each.microbatch_index)
        for each in action.sub_actions or (action,)
    )


@pytest.mark.parametrize(
    ("schedule", "kind", "stages", "virtual", "micro_batches"),
    [
        *(
            (Schedule.ONE_F_ONE_B, ScheduleInterleaved1F1B, *sizes)
            for sizes in [(2, 2, 4), (2, 3, 6), (3, 2, 6), (4, 2, 6), (2, 2, 2)]
        ),
        *(
            (Schedule.ZERO_BUBBLE, ScheduleInterleavedZeroBubble, *sizes)
            for sizes in [(2, 1, 4), (3, 1, 3), (4, 1, 12), (5, 1, 5), (2, 2, 4), (3, 2, 6), (2, 3, 6), (4, 2, 4)]
        ),
        *(
            (Schedule.ZBV, ScheduleZBVZeroBubble, stages, 2, micro_batches)
            for stages, micro_batches in [(2, 1), (2, 2), (2, 4), (3, 4), (3, 9), (4, 4), (4, 8), (5, 7), (8, 20)]
        ),
        *(
            (Schedule.DUALPIPEV, ScheduleDualPipeV, stages, 2, micro_batches)
            for stages, micro_batches in [(2, 4), (2, 5), (3, 6), (3, 11), (4, 8), (4, 20), (5, 10), (8, 16)]
        ),
    ],
)
def test_passes_of_several_chunks_or_in_halves_are_in_the_order_of_pytorch(
    schedule: Schedule, kind: Any, stages: int, virtual: int, micro_batches: int
) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual, schedule=schedule)
    for rank in range(stages):
        chunks: Any = [Stage(chunk, rank, stages, stages * virtual) for chunk in stage_chunks(layout, stage=rank)]
        order = kind(chunks, micro_batches, loss_fn=lambda *_: None).pipeline_order[rank]
        expected = [of_pytorch(action) for action in order if action is not None]
        assert actions(layout, micro_batches=micro_batches, stage=rank) == expected


class Recorder(Stage):
    """A stage that computes nothing and tells in which order it was asked to."""

    def __init__(self, index: int, stages: int) -> None:
        super().__init__(index, index, stages, stages)
        self.order: list[Pass] = []

    def forward_one_chunk(self, micro_batch: int, *_: object, **__: object) -> None:
        self.order.append(Pass(PassKind.FORWARD, self.stage_index, micro_batch))

    def backward_one_chunk(self, micro_batch: int, **_: object) -> None:
        self.order.append(Pass(PassKind.BACKWARD, self.stage_index, micro_batch))

    def nothing(self, *_: object) -> list[object]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = nothing
    clear_runtime_states = perform_reduce_grad = nothing


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (2, 5), (3, 4), (4, 9)])
def test_passes_of_one_chunk_a_stage_are_in_the_order_of_pytorch(
    kind: Any, stages: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_initialize_stage", Recorder.nothing)
    layout = Layout(pipeline_stages=stages, schedule=Schedule.GPIPE if kind is ScheduleGPipe else Schedule.ONE_F_ONE_B)
    for rank in range(stages):
        stage: Any = Recorder(rank, stages)
        schedule = kind(stage, micro_batches, loss_fn=lambda *_: None)
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        assert passes(layout, micro_batches=micro_batches, stage=rank) == stage.order
