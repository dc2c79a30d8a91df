from __future__ import annotations

import math

import msgspec
import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule, usual_virtual_stages
from suite.job.pipeline_passes import PassKind
from suite.predict.analytic.pipeline_schedule import (
    NO_FLUSH,
    bubble_fraction,
    chunks_in_flight,
    halves_backward,
    least_micro_batches,
    micro_batches_in_flight,
    stages_ahead,
    waits_of_a_pass,
    weight_versions,
)
from suite.predict.simulation.pipeline_order import passes

STAGES, MICRO_BATCHES = st.integers(1, 8), st.integers(1, 20)


@given(st.sampled_from([each for each in Schedule if each not in NO_FLUSH]), STAGES, MICRO_BATCHES, st.integers(1, 4))
def test_micro_batches_in_flight_are_those_of_the_schedules_order(
    schedule: Schedule, stages: int, micro_batches: int, chunks: int
) -> None:
    """The order is PyTorch's (tests/predict/simulation/test_pipeline_order.py)."""
    virtual = usual_virtual_stages(schedule, pipeline_stages=stages)
    if schedule is Schedule.ONE_F_ONE_B and stages > 1 and chunks > 1:
        virtual, micro_batches = chunks, stages * (1 + micro_batches // stages)
        assume(micro_batches > stages)  # with one round PyTorch runs all forward passes first
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual, schedule=schedule)
    assume(stages > 1 and micro_batches >= least_micro_batches(layout))
    for stage in range(stages):
        held = most = 0
        for done in passes(layout, micro_batches=micro_batches, stage=stage):
            held += {PassKind.FORWARD: 1, PassKind.INPUT: 0}.get(done.kind, -1)
            most = max(most, held)
        kept = micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
        assert virtual * kept == pytest.approx(most, rel=1e-12)
        assert held == 0
        if schedule is Schedule.DUALPIPEV:
            assert most == 2 * stages + 1  # published as PP + 1, of PP chunks


@given(st.integers(1, 40), st.integers(2, 8))
def test_the_first_stage_keeps_korthikantis_factor(stages: int, chunks: int) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=chunks)
    kept = micro_batches_in_flight(layout, micro_batches=100 * stages, stage=0)
    # three roundings each side
    assert kept == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)), rel=6 * 2**-53)


@given(STAGES, MICRO_BATCHES, st.integers(1, 6))
def test_interleaving_and_micro_batches_only_shrink_the_bubble(stages: int, micro_batches: int, chunks: int) -> None:
    def bubble(m: int, v: int) -> float:
        return bubble_fraction(Layout(pipeline_stages=stages, virtual_stages=v), micro_batches=m)

    assert 0 <= bubble(micro_batches, chunks + 1) <= bubble(micro_batches, chunks) < 1
    assert bubble(micro_batches + 1, chunks) <= bubble(micro_batches, chunks)
    assert (bubble(micro_batches, chunks) == 0) == (stages == 1)


def test_published_bubble_and_rounds() -> None:
    # GLM-130B, arXiv 2210.02414, appendix B.4: 7 / (176 + 7), printed as 3.8 %
    assert round(bubble_fraction(Layout(pipeline_stages=8), micro_batches=176), 3) == 0.038
    # of 80 stages without flush
    assert chunks_in_flight(pipeline_stages=80, virtual_stages=1, stage=0) == 159


def test_the_published_versions_of_pipedream() -> None:
    """Narayanan et al. 2019, section 3.3: stage n of N keeps N - n + 1; 2021: two everywhere; others have one."""
    published = {schedule: [1, 1, 1, 1] for schedule in Schedule}
    published[Schedule.PIPEDREAM] = [4, 3, 2, 1]
    published[Schedule.PIPEDREAM_VERTICAL_SYNC] = [4, 4, 4, 4]
    published[Schedule.PIPEDREAM_2BW] = [2, 2, 2, 2]
    found = {
        schedule: [weight_versions(Layout(pipeline_stages=4, schedule=schedule), stage=k) for k in range(4)]
        for schedule in Schedule
    }
    assert found == published
    one_stage = [weight_versions(Layout(schedule=schedule), stage=0) for schedule in Schedule]
    assert set(one_stage) == {1}


@given(st.sampled_from(Schedule), st.integers(2, 6))
def test_arrays_of_stages_give_what_each_stage_gives(schedule: Schedule, stages: int) -> None:
    layout = Layout(pipeline_stages=stages, schedule=schedule)
    k = numpy.arange(stages, dtype=float)
    many = micro_batches_in_flight(layout, micro_batches=9, stage=k)
    versions = weight_versions(layout, stage=k)
    for stage in range(stages):
        assert many[stage] == micro_batches_in_flight(layout, micro_batches=9, stage=stage)
        assert versions[stage] == weight_versions(layout, stage=stage)
    assert not math.isnan(bubble_fraction(layout, micro_batches=9))


def test_backward_passes_have_halves_where_a_bubble_can_be_filled_with_one() -> None:
    """A pass is as long as so many waits, kept or recomputed."""
    waits = {Schedule.ZERO_BUBBLE: (3, 2), Schedule.ZBV: (3, 2), Schedule.DUALPIPEV: (1.5, 1)}
    halved = {n: {s for s in Schedule if halves_backward(Layout(schedule=s, pipeline_stages=n))} for n in (1, 2, 3)}
    assert halved == {1: set(), 2: set(waits), 3: set(waits)}
    for recomputation in Recomputation:
        again = recomputation in (Recomputation.FULL, Recomputation.FROM_INPUT)
        for schedule, expected in {**waits, Schedule.ONE_F_ONE_B: (1, 1)}.items():
            assert waits_of_a_pass(Layout(schedule=schedule, recomputation=recomputation)) == expected[again]


def test_a_stage_with_fewer_replicas_than_those_after_it_has_more_in_flight() -> None:
    uneven = Layout(pipeline_stages=3, stage_replicas=(1, 3, 2))
    assert [stages_ahead(uneven, stage) for stage in range(3)] == [6, 2, 1]
    assert [stages_ahead(Layout(pipeline_stages=3), stage) for stage in range(3)] == [3, 2, 1]
    bound = msgspec.structs.replace(uneven, schedule=Schedule.PIPEDREAM_2BW)
    assert least_micro_batches(bound) == 5  # of 1 (6 - 1), 3 (2 - 1) and 2 (1 - 1)


def test_with_vertical_sync_replicas_of_a_stage_share_the_versions_that_the_first_one_is_ahead() -> None:
    uneven = Layout(pipeline_stages=3, stage_replicas=(2, 6, 4), schedule=Schedule.PIPEDREAM_VERTICAL_SYNC)
    assert stages_ahead(uneven, 0) == 6
    # 5 micro-batches ahead, over 2, 6 and 4 an update on each replica
    versions = [weight_versions(uneven, stage=stage, micro_batches=2) for stage in range(3)]
    assert versions == [3 + 1, 1 + 1, 2 + 1]


def test_dualpipev_keeps_a_micro_batch_a_stage_and_a_half() -> None:
    layout = Layout(pipeline_stages=4, virtual_stages=2, schedule=Schedule.DUALPIPEV)
    kept = {2: 4 * [2.0], 4: 4 * [4.0], 5: 4 * [4.5], 40: 4 * [4.5]}
    found = {m: [micro_batches_in_flight(layout, micro_batches=m, stage=stage) for stage in range(4)] for m in kept}
    assert found == kept
