from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Schedule
from reference_runs.run import Workload
from suite.job.pipeline_passes import PassKind
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, bubble_fraction
from suite.predict.simulation.pipeline_order import passes
from suite.predict.simulation.pipeline_schedule import (
    Durations,
    flop_durations,
    idle_fraction,
    steady_idle_fraction,
    timed_passes,
)
from tests.support.strategies import BLOOM


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE, Schedule.ZBV, Schedule.DUALPIPEV]),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_equal_chunks_wait_for_the_bubble(
    stages: int, virtual: int, rounds: int, schedule: Schedule, forward: int, backward: int
) -> None:
    if schedule not in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):  # their bubbles are those of equal passes
        backward = 2 * forward
    if schedule.shape_of_v:  # which fills as many micro-batches as it has chunks
        stages, virtual, rounds = stages + 1, 2, rounds + 1
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


def test_what_overlapping_passes_give_leaves_after_both() -> None:
    layout = Layout(pipeline_stages=2, virtual_stages=2, schedule=Schedule.DUALPIPEV)
    first, second = timed_passes(layout, Durations([1] * 4, [2] * 4, [1] * 4), micro_batches=4)
    # the second stage's third pair is [F1 of micro-batch 2, B0 of 0]: chunk 3 begins when B0 has ended
    pair = next(n for n, each in enumerate(second) if each.done == (PassKind.FORWARD, 2, 2))
    assert second[pair + 1].done == (PassKind.BACKWARD, 1, 0)
    (above,) = [each for each in first if each.done == (PassKind.FORWARD, 3, 2)]
    assert above.start >= second[pair + 1].end > second[pair].end


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


@given(st.sampled_from(NO_FLUSH), st.integers(2, 5), st.integers(1, 6), st.integers(0, 9), st.data())
def test_without_flush_stages_that_are_equally_busy_hardly_wait_whatever_they_do_between_steps(
    schedule: Schedule, stages: int, micro_batches: int, update: int, data: st.DataObject
) -> None:
    layout = Layout(pipeline_stages=stages, schedule=schedule)
    assume(schedule is not Schedule.PIPEDREAM_2BW or micro_batches >= stages - 1)
    forward, backward = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    equal = Durations([forward] * stages, [backward] * stages, [0.0] * stages)
    idle = steady_idle_fraction(layout, equal, micro_batches=micro_batches, between=[update] * stages)
    assert idle == 0


def test_without_flush_a_longer_update_is_waited_for() -> None:
    layout = Layout(pipeline_stages=2, schedule=Schedule.PIPEDREAM)
    durations = Durations([1, 1], [2, 2], [0.0] * 2)
    # a step of four micro-batches: 12 s of passes on each stage; stage 0 updates for 3 s, stage 1 for 1 s
    assert steady_idle_fraction(layout, durations, micro_batches=4, between=[3, 1]) == pytest.approx(2 / (12 + 12 + 2))
    assert steady_idle_fraction(layout, durations, micro_batches=4, between=[1, 3]) == pytest.approx(2 / (12 + 12 + 2))
