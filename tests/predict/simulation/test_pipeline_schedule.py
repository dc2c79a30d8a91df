from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import _ComputationType

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Workload
from suite.job.pipeline_passes import Pass, PassKind
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, bubble_fraction
from suite.predict.simulation.pipeline_schedule import Durations, flop_durations, idle_fraction, passes, timed_passes
from tests.support.strategies import BLOOM


class Stage:
    """What PyTorch's schedules ask of a stage before they run."""

    is_first = is_last = False
    has_backward = True
    submod = None

    def __init__(self, index: int, stages: int, chunks: int) -> None:
        self.group_size, self.group_rank = stages, index % stages
        self.stage_index, self.num_stages = index, chunks
        self.stage_index_to_group_rank = {chunk: chunk % stages for chunk in range(chunks)}
        self.device = "cpu"


KINDS = {
    _ComputationType.FORWARD: PassKind.FORWARD,
    _ComputationType.FULL_BACKWARD: PassKind.BACKWARD,
    _ComputationType.BACKWARD_INPUT: PassKind.INPUT,
    _ComputationType.BACKWARD_WEIGHT: PassKind.WEIGHT,
}


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
    ],
)
def test_passes_of_several_chunks_or_in_halves_are_in_the_order_of_pytorch(
    schedule: Schedule, kind: Any, stages: int, virtual: int, micro_batches: int
) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual, schedule=schedule)
    for rank in range(stages):
        chunks: Any = [Stage(chunk, stages, stages * virtual) for chunk in range(rank, stages * virtual, stages)]
        order = kind(chunks, micro_batches, loss_fn=lambda *_: None).pipeline_order[rank]
        expected = [
            Pass(KINDS[action.computation_type], action.stage_index, action.microbatch_index)
            for action in order
            if action is not None and action.microbatch_index is not None
        ]
        assert passes(layout, micro_batches=micro_batches, stage=rank) == expected


class Recorder(Stage):
    """A stage that computes nothing and tells in which order it was asked to."""

    def __init__(self, index: int, stages: int) -> None:
        super().__init__(index, stages, stages)
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


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_equal_chunks_wait_for_the_bubble(
    stages: int, virtual: int, rounds: int, schedule: Schedule, forward: int, backward: int
) -> None:
    if schedule is Schedule.ZERO_BUBBLE:  # its bubble is that of equal passes
        backward = 2 * forward
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual if stages > 1 else 1, schedule=schedule)
    chunks = stages * layout.virtual_stages
    micro_batches = rounds * stages
    durations = Durations([forward] * chunks, [backward] * chunks, [backward / 2] * chunks)
    idle = idle_fraction(layout, durations, micro_batches=micro_batches)
    assert idle == pytest.approx(bubble_fraction(layout, micro_batches=micro_batches), abs=1e-12)


def test_unequal_stages_wait_for_the_slowest() -> None:
    # stage 0: 1 forward, 2 backward; stage 1: 2 forward, 4 backward; 2 micro-batches
    # 0: F0 0-1, F1 1-2, B0 7-9, B1 13-15;  1: F0 1-3, B0 3-7, F1 7-9, B1 9-13
    layout = Layout(pipeline_stages=2, schedule=Schedule.ONE_F_ONE_B)
    assert idle_fraction(layout, Durations([1, 2], [2, 4], [1, 2]), micro_batches=2) == pytest.approx(
        1 - (6 + 12) / (2 * 15)
    )


def test_a_chunk_takes_as_long_as_its_flop() -> None:
    layout = Layout(pipeline_stages=2)
    forward, backward, weight = flop_durations(Workload(BLOOM.architecture, BLOOM.recipe, layout))
    layers = BLOOM.architecture.layers
    assert forward[1] > forward[0]
    assert sum(backward) == 2 * sum(forward)
    assert all(half < whole / 2 for half, whole in zip(weight, backward, strict=True))  # attention has products besides
    assert layers % 2 == 0


@given(st.sampled_from(NO_FLUSH), st.integers(2, 5), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
def test_without_flush_equal_stages_never_wait(
    schedule: Schedule, stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    layout = Layout(pipeline_stages=stages, schedule=schedule)
    assume(schedule is not Schedule.PIPEDREAM_2BW or micro_batches >= stages - 1)
    equal = Durations([forward] * stages, [backward] * stages, [0.0] * stages)
    timed = timed_passes(layout, equal, micro_batches=micro_batches)
    assert idle_fraction(layout, equal, micro_batches=micro_batches) == 0
    assert min(done[0].start for done in timed) == 0
    for stage, done in enumerate(timed):
        assert [each.done for each in done] == passes(layout, micro_batches=micro_batches, stage=stage)
        assert all(after.start == before.end for before, after in itertools.pairwise(done))


@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_without_flush_the_slowest_stage_decides(stages: int, micro_batches: int, data: st.DataObject) -> None:
    layout = Layout(pipeline_stages=stages, schedule=Schedule.PIPEDREAM)
    times = [float(data.draw(st.integers(1, 9))) for _ in range(2 * stages)]
    durations = Durations(times[:stages], times[stages:], [0.0] * stages)
    seconds = [sum(both) for both in zip(times[:stages], times[stages:], strict=True)]
    idle = idle_fraction(layout, durations, micro_batches=micro_batches)
    assert idle == pytest.approx(1 - sum(seconds) / (stages * max(seconds)))
    slowest = timed_passes(layout, durations, micro_batches=micro_batches)[seconds.index(max(seconds))]
    assert slowest[-1].end - slowest[0].start == pytest.approx(micro_batches * max(seconds))
