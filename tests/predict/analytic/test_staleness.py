from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.job.synchronisation import WorkerClocks
from suite.predict.analytic.staleness import bounded_training, iteration_times, steady_iterations_per_second


def bulk_synchronous_seconds(iteration_seconds: Sequence[Sequence[float]]) -> float:
    """Seconds of all iterations with a barrier after each: the sum over iterations of the slowest worker's seconds."""
    iterations = range(len(iteration_seconds[0]))
    return sum(max(own[iteration] for own in iteration_seconds) for iteration in iterations)


def asynchronous_seconds(iteration_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each worker for all its iterations when nobody waits: the sum of its own."""
    return [sum(seconds) for seconds in iteration_seconds]


def bulk_synchronous_iterations_per_second(seconds: Sequence[float]) -> float:
    """Iterations a second of n workers together with a barrier after each, worker p taking t_p seconds: n / max(t)."""
    return len(seconds) / max(seconds)


def asynchronous_iterations_per_second(seconds: Sequence[float]) -> float:
    """Iterations a second of n workers together that never wait, worker p taking t_p seconds: the sum of 1 / t_p.

    Differs from `bounded_training` without a bound, where every worker stops after the same number of iterations, so
    that the fast ones stand idle in the end."""
    return sum(1 / own for own in seconds)


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
    iterations = len(seconds[0])
    # each worker's own rate is one rounded quotient, and their sum at most five rounded terms
    assert free == pytest.approx(sum(iterations / own for own in asynchronous_seconds(seconds)), rel=2**-49)


@pytest.mark.parametrize(
    ("bound", "rate"), [(0, 20 / 11), (3, 40 / 44 + 40 / 41), (None, 1 + 10 / 11)], ids=["bsp", "ssp3", "asp"]
)
def test_a_worker_that_is_twice_as_slow_in_one_iteration_of_ten_slows_barriers_most(
    bound: int | None, rate: float
) -> None:
    # within 40 iterations it loses 4: without a bound the other one loses none, with S = 3 it waits for the last one
    seconds = [[1] * 40, [2 if i % 10 == 0 else 1 for i in range(40)]]
    assert steady_iterations_per_second(seconds, bound=bound) == pytest.approx(rate, rel=2**-50)


@given(durations())
def test_a_bound_of_0_equals_the_bulk_synchronous_sum_of_the_slowest(seconds: Durations) -> None:
    training = bounded_training(seconds, bound=0)
    assert training.seconds == bulk_synchronous_seconds(seconds)
    assert training.largest_staleness == 0


@given(durations(), st.integers(0, 3))
def test_a_bound_that_no_worker_reaches_equals_asynchronous(seconds: Durations, beyond: int) -> None:
    unbounded = bounded_training(seconds, bound=None)
    assert unbounded.seconds == max(asynchronous_seconds(seconds))
    assert [own[-1] for own in iteration_times(seconds, bound=None).finishes] == asynchronous_seconds(seconds)
    assert bounded_training(seconds, bound=len(seconds[0]) - 1 + beyond) == unbounded


@given(durations(), st.integers(0, 6))
def test_a_looser_bound_is_never_slower_and_stays_between_both_ends(seconds: Durations, bound: int) -> None:
    tight, loose = (bounded_training(seconds, bound=S).seconds for S in (bound, bound + 1))
    assert bulk_synchronous_seconds(seconds) >= tight >= loose >= max(asynchronous_seconds(seconds))


@given(durations(), st.integers(0, 6))
def test_staleness_never_exceeds_the_bound(seconds: Durations, bound: int) -> None:
    training = bounded_training(seconds, bound=bound)
    assert 0 <= training.largest_staleness <= bound


@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 5))
def test_rounded_seconds_do_not_let_a_worker_past_the_bound(seconds: list[list[float]], bound: int) -> None:
    training = bounded_training(seconds, bound=bound)
    assert training.largest_staleness <= bound


def test_an_iteration_too_short_to_move_the_clock_is_not_finished_when_it_starts() -> None:
    assert 1e20 + 1 == 1e20
    assert bounded_training([[1e20, 1]], bound=None).largest_staleness == 0


@pytest.mark.parametrize("bound", [0, 1, 3, 7])
def test_the_fastest_worker_gets_as_far_ahead_as_the_bound_and_no_further(bound: int) -> None:
    # the documented example is S = 3; ten fast iterations fit into a slow one, so the bound is reached
    seconds = [[1] * 20, [1] * 20, [10] * 20]
    assert bounded_training(seconds, bound=bound).largest_staleness == bound


def test_with_a_bound_of_3_the_fast_worker_blocks_before_its_fifth_iteration() -> None:
    starts, finishes = iteration_times([[1] * 6, [10] * 6], bound=3)
    # it starts iterations 0 to 3 while the slow one has finished none, and then one for each that the slow one finishes
    assert starts[0] == [0, 1, 2, 3, 10, 20]
    assert finishes[1] == [10, 20, 30, 40, 50, 60]
    # so it is blocked from 4 to 10 and from 11 to 20
    assert finishes[0] == [1, 2, 3, 4, 11, 21]


def test_a_bound_hides_delays_that_take_turns() -> None:
    # each worker is slow once, in different iterations: with barriers both delays are paid, with S = 1 they overlap
    seconds = [[5, 1, 1, 1], [1, 5, 1, 1]]
    assert bounded_training(seconds, bound=0).seconds == 5 + 5 + 1 + 1
    assert bounded_training(seconds, bound=1).seconds == 5 + 1 + 1 + 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_steady_throughput_equals_the_iterations_finished_in_a_common_multiple(seconds: list[int]) -> None:
    horizon = math.lcm(*seconds)  # at most 60 s, so 60 iterations of the fastest
    table = [[own] * horizon for own in seconds]

    def finished(bound: int | None) -> int:
        return sum(end <= horizon for own in iteration_times(table, bound=bound).finishes for end in own)

    # up to four quotients and sums, each rounded by 2**-53
    assert asynchronous_iterations_per_second(seconds) * horizon == pytest.approx(finished(None), rel=2**-50)
    assert bulk_synchronous_iterations_per_second(seconds) * horizon == pytest.approx(finished(0), rel=2**-50)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 4))
def test_with_constant_speeds_a_bound_gains_a_worker_no_more_than_itself(seconds: list[int], bound: int) -> None:
    iterations = 30
    starts, finishes = iteration_times([[own] * iterations for own in seconds], bound=bound)
    slow = max(seconds)
    assert max(own[-1] for own in finishes) == iterations * slow
    assert all(own[-1] >= (iterations - 1 - bound) * slow for own in starts)


REFUSED = [
    ([], "at least 1 worker with at least 1 iteration"),
    ([[]], "at least 1 worker with at least 1 iteration"),
    ([[1, 2], [1]], "worker 1 must have 2 iterations as worker 0 has, got 1"),
    ([[1, 2], [1, 0]], "seconds of worker 1 in iteration 1 must be above 0 and finite, got 0"),
    ([[-1]], "must be above 0 and finite, got -1"),
    ([[math.nan]], "must be above 0 and finite, got nan"),
    ([[math.inf]], "must be above 0 and finite, got inf"),
]


@pytest.mark.parametrize(("seconds", "message"), REFUSED)
def test_impossible_seconds_are_refused_with_what_is_allowed(seconds: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bounded_training(seconds, bound=0)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="bound must be at least 0, or None for unbounded, got -1"):
        bounded_training([[1]], bound=-1)
