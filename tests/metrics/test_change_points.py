"""Where a history's level changes: by ranks, with a penalty that 1 in 100 unchanged histories exceeds."""

from __future__ import annotations

import itertools
import random

import pytest

from suite.metrics.change_points import FALSE_CHANGES, LEAST_STRETCH, change_points, penalty


def noisy(levels: list[tuple[float, int]], *, seed: int = 1, spread: float = 0.01) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, spread)) for level, count in levels for _ in range(count)]


def test_a_step_is_found_where_it_is() -> None:
    assert change_points(noisy([(1.0, 12), (1.2, 15)])) == [12]
    assert change_points(noisy([(1.2, 12), (1.0, 15)])) == [12]


def test_two_steps_are_found_and_a_far_third_level_hides_none() -> None:
    assert change_points(noisy([(1.0, 15), (1.1, 15), (1.0, 15)])) == [15, 30]
    assert change_points(noisy([(1.0, 20), (1.1, 20), (50.0, 20)])) == [20, 40]
    assert change_points(noisy([(1.0, 5), (1.1, 5), (50.0, 20)])) == [5, 10]  # the first two need all of their ten


def test_one_launch_that_lies_far_out_is_no_level() -> None:
    values = noisy([(1.0, 30)])
    values[14] = 100.0
    assert change_points(values) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 40, noisy([(1.0, 4), (9.0, 5)]), noisy([(1.0, 5), (9.0, 4)])])
def test_what_is_equal_or_shorter_than_two_stretches_has_none(values: list[float]) -> None:
    assert change_points(values) == []


def test_the_shortest_history_with_a_change_has_ten_launches() -> None:
    assert LEAST_STRETCH == 5
    assert change_points([1.0, 1.01, 1.02, 1.03, 1.04, 9.0, 9.01, 9.02, 9.03, 9.04]) == [5]


def test_the_penalty_is_what_1_in_100_orders_of_ranks_gain_at_most() -> None:
    # as its docstring prints it; the quantile of 2000 orders has a standard error of about 3 %
    assert penalty(50) == pytest.approx(11, rel=0.06)
    assert penalty(1000) == pytest.approx(13, rel=0.06)


@pytest.mark.parametrize("count", [12, 30])
def test_the_penalty_is_the_quantile_of_gains_computed_one_split_at_a_time(count: int) -> None:
    chance = random.Random(7)
    middle = (count + 1) / 2
    scale = (sum((rank - middle) ** 2 for rank in range(1, count + 1)) / count) ** 0.5
    gains = []
    for _ in range(2000):
        ranks = [(rank - middle) / scale for rank in range(1, count + 1)]
        chance.shuffle(ranks)
        largest = 0.0
        for k in range(LEAST_STRETCH, count - LEAST_STRETCH + 1):
            largest = max(largest, sum(ranks[:k]) ** 2 * (1 / k + 1 / (count - k)))
        gains.append(largest)
    above = sum(gain > penalty(count) for gain in gains) / len(gains)
    # 0.01 of 2000 orders here against a quantile of 2000 orders there: three standard errors are 0.0094
    assert above == pytest.approx(FALSE_CHANGES, abs=0.0094)


def test_the_penalty_of_ten_launches_is_that_of_all_their_orders() -> None:
    """The only split of ten is after five: all 252 choices of the first five ranks, each as likely as the others."""
    ranks = [(rank - 5.5) / 8.25**0.5 for rank in range(1, 11)]
    gains = sorted(sum(first) ** 2 * (1 / 5 + 1 / 5) for first in itertools.combinations(ranks, 5))
    assert penalty(10) in (pytest.approx(gains[-1]), pytest.approx(gains[-3]))  # 2 of 252 have the largest, 0.8 %
