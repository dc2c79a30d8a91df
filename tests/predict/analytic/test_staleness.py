from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.job.synchronisation import WorkerClocks
from suite.predict.analytic.staleness import bounded_training, iteration_times, steady_iterations_per_second

# Durations are small integers, so that sums of seconds are exact and moments compare with ==.
Durations = list[list[int]]
BOUNDS = st.none() | st.integers(0, 6)


@st.composite
def durations(draw: st.DrawFn) -> Durations:
    workers, iterations = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    row = st.lists(st.integers(1, 6), min_size=iterations, max_size=iterations)
    return draw(st.lists(row, min_size=workers, max_size=workers))


class Played(NamedTuple):
    seconds: int
    staleness: list[int]
    finishes: list[int]


def played(seconds_by_worker: Durations, bound: int | None) -> Played:
    """The same training, second by second: workers that count their own iterations and look at the slowest count."""
    workers, iterations = range(len(seconds_by_worker)), len(seconds_by_worker[0])
    done = [0 for _ in workers]
    busy_until: list[int | None] = [None for _ in workers]
    finishes = [0 for _ in workers]
    staleness: list[int] = []
    now = 0
    while min(done) < iterations:
        for worker in workers:
            if busy_until[worker] == now:
                done[worker] += 1
                busy_until[worker] = None
                finishes[worker] = now
        for worker in workers:
            if busy_until[worker] is None and done[worker] < iterations:
                ahead = done[worker] - min(done)
                if bound is None or ahead <= bound:
                    staleness.append(ahead)
                    busy_until[worker] = now + seconds_by_worker[worker][done[worker]]
        now += 1
    return Played(now - 1, staleness, finishes)


@given(durations(), BOUNDS)
def test_the_recurrence_equals_workers_played_second_by_second(seconds: Durations, bound: int | None) -> None:
    training, expected = bounded_training(seconds, bound=bound), played(seconds, bound)
    assert training.seconds == expected.seconds
    assert training.iterations_per_second == len(expected.staleness) / expected.seconds
    assert training.largest_staleness == max(expected.staleness)
    assert [ends[-1] for ends in iteration_times(seconds, bound=bound).finishes] == expected.finishes


@given(durations(), BOUNDS)
def test_workers_at_the_clocks_of_a_parameter_store_finish_as_the_recurrence_says(
    seconds: Durations, bound: int | None
) -> None:
    workers, iterations = range(len(seconds)), len(seconds[0])
    clocks = WorkerClocks(len(seconds), bound)
    busy = [(seconds[worker][0], worker) for worker in workers]
    finishes: Durations = [[] for _ in workers]
    while busy:
        busy.sort()
        now, worker = busy.pop(0)
        finishes[worker].append(now)
        update = clocks.push(worker)
        for reader in update.readers if update else ():
            if clocks.clocks[reader] < iterations:
                busy.append((now + seconds[reader][clocks.clocks[reader]], reader))
    assert finishes == iteration_times(seconds, bound=bound).finishes


@given(durations(), st.integers(0, 6))
def test_the_steady_rate_grows_with_the_bound_from_that_of_barriers_to_that_without_waiting(
    seconds: Durations, bound: int
) -> None:
    tight, loose = (steady_iterations_per_second(seconds, bound=S) for S in (bound, bound + 1))
    barriers, free = (steady_iterations_per_second(seconds, bound=S) for S in (0, None))
    assert barriers <= tight <= loose <= free
    # each worker's own rate is one rounded quotient, and their sum at most five rounded terms
    assert free == pytest.approx(sum(len(own) / sum(own) for own in seconds), rel=2**-49)


def test_a_worker_that_is_twice_as_slow_in_one_iteration_of_ten_slows_barriers_most() -> None:
    # within 40 iterations it loses 4: without a bound the other one loses none, with S = 3 it waits for the last one
    seconds = [[1] * 40, [2 if i % 10 == 0 else 1 for i in range(40)]]
    rates = {0: 20 / 11, 3: 40 / 44 + 40 / 41, None: 1 + 10 / 11}
    found = {bound: steady_iterations_per_second(seconds, bound=bound) for bound in rates}
    assert found == pytest.approx(rates, rel=2**-50)


@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 5))
def test_rounded_seconds_do_not_let_a_worker_past_the_bound(seconds: list[list[float]], bound: int) -> None:
    training = bounded_training(seconds, bound=bound)
    assert training.largest_staleness <= bound


def test_an_iteration_too_short_to_move_the_clock_is_not_finished_when_it_starts() -> None:
    assert 1e20 + 1 == 1e20
    assert bounded_training([[1e20, 1]], bound=None).largest_staleness == 0


def test_with_a_bound_of_3_the_fast_worker_blocks_before_its_fifth_iteration() -> None:
    starts, finishes = iteration_times([[1] * 6, [10] * 6], bound=3)
    # it starts iterations 0 to 3 while the slow one has finished none, and then one for each that the slow one finishes
    assert starts[0] == [0, 1, 2, 3, 10, 20]
    assert finishes[1] == [10, 20, 30, 40, 50, 60]
    # so it is blocked from 4 to 10 and from 11 to 20
    assert finishes[0] == [1, 2, 3, 4, 11, 21]


REFUSED = [
    ([], "at least 1 worker with at least 1 iteration"),
    ([[]], "at least 1 worker with at least 1 iteration"),
    ([[1, 2], [1]], "worker 1 must have 2 iterations as worker 0 has, got 1"),
    ([[1, 2], [1, 0]], "seconds of worker 1 in iteration 1 must be above 0 and finite, got 0"),
    ([[-1]], "must be above 0 and finite, got -1"),
    ([[math.nan]], "must be above 0 and finite, got nan"),
    ([[math.inf]], "must be above 0 and finite, got inf"),
]


def test_impossible_seconds_and_a_negative_bound_are_refused_with_what_is_allowed() -> None:
    for seconds, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            bounded_training(seconds, bound=0)
    with pytest.raises(ValueError, match="bound must be at least 0, or None for unbounded, got -1"):
        bounded_training([[1]], bound=-1)
