from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Recomputation, Schedule, usual_virtual_stages
from suite.job.pipeline_passes import PassKind
from suite.predict.analytic.pipeline_schedule import (
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
Pass = tuple[str, int]


def gpipe(stage: int, stages: int, micro_batches: int) -> Iterator[Pass]:
    """The order of passes of one stage, from the schedule's own definition."""
    yield from (("forward", m) for m in range(micro_batches))
    yield from (("backward", m) for m in range(micro_batches))


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> Iterator[Pass]:
    warmup = min(stages - stage - 1, micro_batches)
    yield from (("forward", m) for m in range(warmup))
    for m in range(micro_batches - warmup):
        yield ("forward", m + warmup)
        yield ("backward", m)
    yield from (("backward", m) for m in range(micro_batches - warmup, micro_batches))


ORDERS = {Schedule.GPIPE: gpipe, Schedule.ONE_F_ONE_B: one_f_one_b}


def simulated(schedule: Schedule, stages: int, micro_batches: int) -> tuple[list[int], Fraction]:
    """Micro-batches in flight at most on each stage, and the share of the step in which the first stage waits.

    A forward pass takes 1 and a backward pass 2 units; a pass starts when its stage is free and its neighbour's has
    ended.
    """
    queues = [list(ORDERS[schedule](stage, stages, micro_batches)) for stage in range(stages)]
    ends: dict[tuple[int, Pass], int] = {}
    free, in_flight, most = [0] * stages, [0] * stages, [0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, m = queue[0]
                if kind == "forward":
                    needed = (stage - 1, ("forward", m)) if stage else None
                else:
                    needed = (stage + 1, ("backward", m)) if stage < stages - 1 else (stage, ("forward", m))
                if needed is not None and needed not in ends:
                    break
                begin = max(free[stage], ends[needed] if needed else 0)
                ends[stage, queue.pop(0)] = free[stage] = begin + (1 if kind == "forward" else 2)
                in_flight[stage] += 1 if kind == "forward" else -1
                most[stage] = max(most[stage], in_flight[stage])
    step = max(free)
    return most, Fraction(step - 3 * micro_batches, step)


@given(st.sampled_from(list(ORDERS)), STAGES, MICRO_BATCHES)
def test_in_flight_and_bubble_equal_a_simulation_pass_by_pass(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    layout = Layout(pipeline_stages=stages, schedule=schedule)
    most, waiting = simulated(schedule, stages, micro_batches)
    assert most == [micro_batches_in_flight(layout, micro_batches=micro_batches, stage=k) for k in range(stages)]
    # one division of integers: correctly rounded
    assert bubble_fraction(layout, micro_batches=micro_batches) == float(waiting)


def interleaved_order(rank: int, stages: int, chunks: int, micro_batches: int) -> list[tuple[str, int, int]]:
    """Passes (kind, micro-batch, chunk) of one rank in Megatron-LM's interleaved schedule; m a multiple of p."""
    units = [
        (first + m, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for m in range(stages)
    ]
    backward = [(m, chunks - 1 - chunk) for m, chunk in units]
    total = len(units)
    warmup = total if micro_batches == stages else min(total, 2 * (stages - rank - 1) + (chunks - 1) * stages)
    order = [("forward", *unit) for unit in units[:warmup]]
    for place in range(total - warmup):
        order += [("forward", *units[place + warmup]), ("backward", *backward[place])]
    return order + [("backward", *unit) for unit in backward[total - warmup :]]


@given(st.integers(2, 6), st.integers(2, 4), st.integers(2, 5))
def test_interleaved_in_flight_equals_the_schedules_order(stages: int, chunks: int, rounds: int) -> None:
    micro_batches = rounds * stages
    layout = Layout(pipeline_stages=stages, virtual_stages=chunks)
    for rank in range(stages):
        held = most = 0
        for kind, _, _ in interleaved_order(rank, stages, chunks, micro_batches):
            held += 1 if kind == "forward" else -1
            most = max(most, held)
        assert micro_batches_in_flight(layout, micro_batches=micro_batches, stage=rank) * chunks == pytest.approx(
            most, rel=1e-12
        )


@given(st.integers(1, 40), st.integers(2, 8))
def test_the_first_stage_keeps_korthikantis_factor(stages: int, chunks: int) -> None:
    layout = Layout(pipeline_stages=stages, virtual_stages=chunks)
    kept = micro_batches_in_flight(layout, micro_batches=100 * stages, stage=0)
    # three roundings each side
    assert kept == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)), rel=6 * 2**-53)


@given(st.sampled_from([Schedule.ZERO_BUBBLE, Schedule.ZBV, Schedule.DUALPIPEV]), STAGES, MICRO_BATCHES)
def test_micro_batches_of_halved_schedules_in_flight_are_those_of_their_order(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    virtual = usual_virtual_stages(schedule, pipeline_stages=stages)
    layout = Layout(pipeline_stages=stages, virtual_stages=virtual, schedule=schedule)
    if stages == 1 or micro_batches < least_micro_batches(layout):
        return
    for stage in range(stages):
        held = most = 0
        for done in passes(layout, micro_batches=micro_batches, stage=stage):
            held += {PassKind.FORWARD: 1, PassKind.INPUT: 0}.get(done.kind, -1)
            most = max(most, held)
        assert most == virtual * micro_batches_in_flight(layout, micro_batches=micro_batches, stage=stage)
        assert held == 0
        if schedule is Schedule.DUALPIPEV:
            assert most == 2 * stages + 1  # published as PP + 1, of PP chunks


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


def versions_held(stages: int, stage: int, *, vertical_sync: bool) -> int:
    """Weight versions that a stage holds at most when 1F1B runs on without flush, an update behind each backward pass.

    A micro-batch uses the newest version at its forward pass, with vertical sync the one that it used on stage 0;
    versions are held from the oldest that is in use, or will be, to the newest.
    """
    used_on_first: dict[int, int] = {}
    updates = 0
    for kind, m in one_f_one_b(0, stages, 40):
        if kind == "forward":
            used_on_first[m] = updates
        else:
            updates += 1
    updates = most = 0
    in_use: dict[int, int] = {}
    for kind, m in one_f_one_b(stage, stages, 40):
        if kind == "forward":
            in_use[m] = used_on_first[m] if vertical_sync else updates
            most = max(most, updates - min(in_use.values()) + 1)
        else:
            updates += 1
            del in_use[m]
    return most


@given(STAGES)
def test_pipedreams_versions_equal_a_simulation(stages: int) -> None:
    for schedule, vertical in ((Schedule.PIPEDREAM, False), (Schedule.PIPEDREAM_VERTICAL_SYNC, True)):
        layout = Layout(pipeline_stages=stages, schedule=schedule)
        held = [versions_held(stages, k, vertical_sync=vertical) for k in range(stages)]
        assert held == [weight_versions(layout, stage=k) for k in range(stages)]


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
