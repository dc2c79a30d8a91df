"""Stages with different numbers of replicas: passes that wait for nobody, and how long those that wait do."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reference_runs.layout import Layout, Schedule
from suite.job.pipeline_passes import PassKind
from suite.predict.analytic.pipeline_schedule import NO_FLUSH, stages_ahead
from suite.predict.simulation.pipeline_schedule import Durations
from suite.predict.simulation.replicated_schedule import replica_steps


def laid_out(*counts: int, schedule: Schedule = Schedule.PIPEDREAM) -> Layout:
    return Layout(pipeline_stages=len(counts), schedule=schedule, stage_replicas=counts)


def equal_rates(layout: Layout) -> Durations:
    """Passes of a stage take as many times one second as it has replicas: 1 forward and 2 backward."""
    assert layout.stage_replicas is not None
    seconds = [float(count) for count in layout.stage_replicas]
    return Durations(seconds, [2 * each for each in seconds], seconds)


@pytest.mark.parametrize("counts", [(2, 1), (15, 1), (2, 2, 1), (5, 5, 1)])
def test_nobody_waits_where_one_replica_follows_on_many_that_take_as_many_times_as_long(
    counts: tuple[int, ...],
) -> None:
    """The paper's 2-1 and 15-1: an update takes a micro-batch of each replica of the first stage."""
    layout = laid_out(*counts)
    steps = replica_steps(layout, equal_rates(layout), micro_batches=math.lcm(*counts))
    assert steps.idle == pytest.approx(0, abs=1e-12)
    assert steps.seconds == pytest.approx(3 * math.lcm(*counts))


@given(st.sampled_from(NO_FLUSH), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 2))
def test_no_passes_wait_for_each_other_and_no_stage_is_faster_than_its_replicas(
    schedule: Schedule, counts: list[int], rounds: int
) -> None:
    assume(len(set(counts)) > 1)
    micro_batches = rounds * math.lcm(*counts)
    assume(micro_batches <= 12)
    layout = laid_out(*counts, schedule=schedule)
    durations = Durations([1.0] * len(counts), [2.0] * len(counts), [1.0] * len(counts))
    steps = replica_steps(layout, durations, micro_batches=micro_batches)
    assert steps.seconds >= 3 * micro_batches / min(counts) - 1e-9
    assert 0 <= steps.idle < 1
    for rank, done in enumerate(steps.passes):
        stage = sum(rank >= sum(counts[: number + 1]) for number in range(len(counts)))
        assert len(done) == 2 * micro_batches // counts[stage]
        backward = [each.done.micro_batch for each in done if each.done.kind is PassKind.BACKWARD]
        assert backward == list(range(micro_batches // counts[stage]))


def test_the_first_stage_admits_as_many_micro_batches_as_the_paper_says() -> None:
    """NOAM, of each of its replicas: ceil(workers / replicas of the first stage)."""
    assert [stages_ahead(laid_out(*counts), 0) for counts in ((2, 1), (15, 1), (1, 15), (4, 2, 2))] == [2, 2, 16, 2]
    assert [stages_ahead(laid_out(2, 2, 2, 2), stage) for stage in range(4)] == [4, 3, 2, 1]


def test_a_stage_that_takes_longer_decides_and_the_others_wait() -> None:
    layout = laid_out(2, 1)
    steps = replica_steps(layout, Durations([1.0, 1.0], [2.0, 2.0], [1.0, 1.0]), micro_batches=2)
    assert steps.seconds == pytest.approx(6)  # of two micro-batches through the last stage
    with_update = replica_steps(layout, equal_rates(layout), micro_batches=2, between=[0.0, 1.0])
    assert with_update.seconds == pytest.approx(7)
