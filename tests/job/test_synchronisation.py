from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_runs.errors import InputError
from suite.job.synchronisation import (
    Contribution,
    SlowRank,
    Staleness,
    Synchronisation,
    Waiting,
    WorkerClocks,
    parse_slow_ranks,
    parse_synchronisation,
    slowing_factor,
    updates_of,
)

BOUNDS = st.none() | st.integers(0, 5)
Delays = list[list[int]]


@st.composite
def delays(draw: st.DrawFn) -> Delays:
    """Seconds of each step of each worker."""
    workers, steps = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    row = st.lists(st.integers(1, 30), min_size=steps, max_size=steps)
    return draw(st.lists(row, min_size=workers, max_size=workers))


def played(seconds: Delays, bound: int | None) -> list[int]:
    """The order in which gradients come from workers that take so long, and wait for the store, with nothing else."""
    workers, steps = len(seconds), len(seconds[0])
    clocks = WorkerClocks(workers, bound)
    busy = [(own[0], worker) for worker, own in enumerate(seconds)]
    heapq.heapify(busy)
    arrivals = []
    while busy:
        now, worker = heapq.heappop(busy)
        arrivals.append(worker)
        update = clocks.push(worker)
        for reader in update.readers if update else ():
            if (step := clocks.clocks[reader]) < steps:
                heapq.heappush(busy, (now + seconds[reader][step], reader))
    return arrivals


@settings(max_examples=300)
@given(delays(), BOUNDS)
def test_over_random_schedules_of_delays_no_worker_is_ever_further_ahead_than_the_bound(seconds, bound):
    workers, steps = len(seconds), len(seconds[0])
    arrivals = played(seconds, bound)
    made = updates_of(arrivals, workers=workers, bound=bound)
    # counted anew from the order alone: what a worker had sent, less what the slowest had, when it read
    sent, read_at, position = [0] * workers, {}, 0
    for update in made.updates:
        while position < len(arrivals) and not all(sent[m.worker] > m.step for m in update.members):
            sent[arrivals[position]] += 1
            position += 1
        for reader in update.readers:
            read_at[reader, sent[reader]] = sent[reader] - min(sent)
    for (reader, step), ahead in read_at.items():
        assert bound is None or ahead <= bound
        if step < steps:
            assert made.staleness[reader][step].ahead == ahead
    assert sorted(member for update in made.updates for member in update.members) == sorted(
        Contribution(step, worker) for step in range(steps) for worker in range(workers)
    )


@settings(max_examples=300)
@given(delays())
def test_with_bound_0_every_update_takes_one_step_of_every_worker_and_none_is_stale(seconds):
    workers, steps = len(seconds), len(seconds[0])
    made = updates_of(played(seconds, 0), workers=workers, bound=0)
    assert [update.members for update in made.updates] == [
        tuple(Contribution(step, worker) for worker in range(workers)) for step in range(steps)
    ]
    assert all(each == Staleness(0, 0) for own in made.staleness for each in own)
    assert all(own == list(range(steps + 1)) for own in made.versions)


@settings(max_examples=300)
@given(delays())
def test_without_bound_every_gradient_is_an_update_and_its_own_worker_reads_at_once(seconds):
    arrivals = played(seconds, None)
    made = updates_of(arrivals, workers=len(seconds), bound=None)
    assert [(update.members[0].worker, update.readers) for update in made.updates] == [(w, (w,)) for w in arrivals]
    assert all(len(update.members) == 1 for update in made.updates)
    # its delay: what came of the others between its own gradient before and this one
    before = dict.fromkeys(range(len(seconds)), -1)
    delayed: list[list[int]] = [[] for _ in seconds]
    for position, worker in enumerate(arrivals):
        delayed[worker].append(position - before[worker] - 1)
        before[worker] = position
    assert [[each.delay for each in own] for own in made.staleness] == delayed


@settings(max_examples=300)
@given(delays(), BOUNDS)
def test_a_worker_reads_all_of_its_own_gradients_and_all_that_the_bound_requires(seconds, bound):
    workers, steps = len(seconds), len(seconds[0])
    made = updates_of(played(seconds, bound), workers=workers, bound=bound)
    update_of = {member: number for number, each in enumerate(made.updates) for member in each.members}
    for worker, step in itertools.product(range(workers), range(steps)):
        version = made.versions[worker][step]
        assert all(update_of[Contribution(earlier, worker)] < version for earlier in range(step))
        if bound is not None:  # Ho et al.: every update of a clock up to step - bound - 1
            required = range(step - bound)
            assert all(update_of[Contribution(c, other)] < version for c in required for other in range(workers))


def test_a_bound_of_any_size_is_reached_by_a_worker_that_is_fast_enough():
    for bound in range(6):
        made = updates_of(played([[1] * 10, [100] * 10], bound), workers=2, bound=bound)
        assert max(each.ahead for each in made.staleness[0]) == bound
    made = updates_of(played([[1] * 10, [100] * 10], None), workers=2, bound=None)
    assert max(each.ahead for each in made.staleness[0]) == 9
    assert made.staleness[1][0].delay == 10


def test_synchronisations_are_parsed_and_printed_alike_and_others_refused():
    for text, expected in (
        ("bsp", Synchronisation(Waiting.BSP, 0)),
        ("ssp:0", Synchronisation(Waiting.SSP, 0)),
        ("ssp:12", Synchronisation(Waiting.SSP, 12)),
        ("asp", Synchronisation(Waiting.ASP, None)),
    ):
        assert parse_synchronisation(text) == expected
        assert str(expected) == text
    for text in ("", "ssp", "ssp:", "ssp:-1", "ssp:1.5", "ssp:٣", "BSP", "asp:1", "ssp:1234567"):
        with pytest.raises(InputError, match="--synchronisation.*unknown synchronisation.*bsp, ssp:S"):
            parse_synchronisation(text)


def test_slow_ranks_are_slow_in_their_steps_alone_and_take_turns():
    slow = parse_slow_ranks("0:2:10,1:3:10")
    assert slow == (SlowRank(0, 2.0, 10), SlowRank(1, 3.0, 10))
    of_rank = [[slowing_factor(slow, rank, step, ranks=2) for step in range(20)] for rank in range(3)]
    assert of_rank[0] == ([2.0] + [1.0] * 9) * 2
    assert of_rank[1] == ([1.0] * 5 + [3.0] + [1.0] * 4) * 2
    assert of_rank[2] == [1.0] * 20
    assert slowing_factor(parse_slow_ranks("1:1.5"), 1, 7, ranks=2) == 1.5


def test_other_slow_ranks_are_refused_with_what_is_allowed_and_a_rank_is_slow_in_one_way():
    for text in ("", "1", "1:", "1:0.5", "1:2000", "1:2:0", "a:2", "1:nan", "1:2:3:4", "0:2,"):
        with pytest.raises(InputError, match="--slow-rank.*RANK:FACTOR"):
            parse_slow_ranks(text)
    with pytest.raises(InputError, match="named twice"):
        parse_slow_ranks("1:2,1:3")
