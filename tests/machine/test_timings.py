"""Repetitions are combined over rounds and ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.machine.timings import Repetitions, Timing, median, over_ranks, over_rounds, quantile, usual


def test_quantiles_are_linear_between_neighbours() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.2) == pytest.approx(2)
    assert median([4, 1]) == pytest.approx(2.5)


def test_slow_phases_count_by_their_share_and_a_competing_process_at_most_twice() -> None:
    assert usual([1.0, 1.0, 1.0, 2.0]) == 1.25
    assert usual([1.0, 1.0, 1.0, 500.0]) == 1.25
    assert usual([1.0, 500.0]) == 1.5
    assert usual([3.0]) == 3.0


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30))
def test_the_usual_sample_lies_between_the_least_and_twice_the_median(samples: list[float]) -> None:
    assert min(samples) * (1 - 1e-9) <= usual(samples) <= min(max(samples), 2 * median(samples)) * (1 + 1e-9)


def test_rounds_are_one_with_the_repetitions_of_all_of_them() -> None:
    rounds = [Repetitions((1.0, 0.9, 1.1), 4), Repetitions((2.0,), 1), Repetitions((1.25,), 0)]
    assert over_rounds(rounds) == Timing(1.25, 1.1, 0.98, 1.4, 5, 4)
    assert over_rounds([rounds[0], rounds[2], rounds[1]]) == over_rounds(rounds)


def of_rank(*seconds: float) -> list[Timing]:
    return [Timing(one, one, one / 2, one * 2, 3, 1) for one in seconds]


def test_chance_at_single_points_of_a_rank_slows_none_of_them() -> None:
    assert over_ranks([[of_rank(1.0, 2.0)], [of_rank(5.0)]]) == [tuple(of_rank(1.0, 2.0)), tuple(of_rank(5.0))]
    (points,) = over_ranks([[of_rank(1.0, 1.2, 1.0), of_rank(1.0, 1.0, 1.2)]])
    assert points == (
        Timing(1.0, 1.0, 0.5, 2.0, 3, 1),
        Timing(1.1, 1.1, 0.5, 2.4, 3, 1),
        Timing(1.1, 1.1, 0.5, 2.4, 3, 1),
    )


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20), st.floats(1.0, 3.0), st.integers(2, 8))
def test_a_rank_that_is_slower_throughout_is_waited_for(seconds: list[float], slower: float, ranks: int) -> None:
    slow = of_rank(*(slower * one for one in seconds))
    tasks = [[of_rank(*seconds)] * (ranks - 1) + [slow]]
    assert [point.seconds for point in over_ranks(tasks)[0]] == pytest.approx([t.seconds for t in slow], rel=1e-3)


def test_no_point_is_faster_than_ranks_were_that_waited_elsewhere() -> None:
    """In each point but the last one another rank waited long: in most points every rank is below the mean."""
    of_ranks = [of_rank(*(10.0 if point == rank else 1.0 for point in range(3)), 1.0) for rank in range(3)]
    (points,) = over_ranks([of_ranks])
    assert [point.seconds for point in points] == [4.0, 4.0, 4.0, 1.0]
