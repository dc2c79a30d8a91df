"""Where a history's level changes: by ranks, with a penalty that 1 in 100 unchanged histories exceeds."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.metrics.change_points import FALSE_CHANGES, LEAST_STRETCH, change_points, penalty


def noisy(*levels: tuple[float, int]) -> list[float]:
    """So many launches of each level, which spread by 1 %."""
    chance = random.Random(1)
    return [level * (1 + chance.gauss(0, 0.01)) for level, count in levels for _ in range(count)]


def test_levels_are_found_where_they_begin_and_a_far_one_hides_none() -> None:
    expected = [
        ([12], noisy((1.0, 12), (1.2, 15))),
        ([12], noisy((1.2, 12), (1.0, 15))),
        ([15, 30], noisy((1.0, 15), (1.1, 15), (1.0, 15))),
        ([20, 40], noisy((1.0, 20), (1.1, 20), (50.0, 20))),
        ([5, 10], noisy((1.0, 5), (1.1, 5), (50.0, 20))),  # the first two need all of their ten
        ([5], [1.0, 1.01, 1.02, 1.03, 1.04, 9.0, 9.01, 9.02, 9.03, 9.04]),
    ]
    assert [change_points(values) for _, values in expected] == [found for found, _ in expected]


def test_what_lies_far_out_is_equal_or_is_shorter_than_two_stretches_has_none() -> None:
    far_out = noisy((1.0, 40))
    far_out[10], far_out[25] = 30.0, 100.0
    histories = [far_out, [], [1.0], [1.0] * 40, noisy((1.0, 4), (9.0, 5)), noisy((1.0, 5), (9.0, 4))]
    assert [change_points(values) for values in histories] == [[]] * len(histories)
    assert LEAST_STRETCH == 5


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 10), min_size=10, max_size=40), st.sampled_from([0.25, 8.0]))
def test_another_unit_of_time_moves_no_change_point(values: list[float], unit: float) -> None:
    assert change_points([unit * value for value in values]) == change_points(values)


def test_of_histories_of_identical_launches_1_percent_shows_a_change_point() -> None:
    """Log-normal ones with long tails; of 400 histories 4 are expected, and 12 or more have a chance of 0.001."""
    chance = random.Random(30)
    found = sum(bool(change_points([chance.lognormvariate(0, 1) for _ in range(30)])) for _ in range(400))
    assert found < 12


def test_the_penalty_is_what_1_in_100_orders_of_ranks_gain_at_most() -> None:
    # as its docstring prints it; the quantile of 2000 orders has a standard error of about 3 %
    assert penalty(50) == pytest.approx(11, rel=0.06)
    assert penalty(1000) == pytest.approx(13, rel=0.06)


def test_the_penalty_is_the_quantile_of_gains_computed_one_split_at_a_time() -> None:
    count = 30
    chance = random.Random(7)
    middle = (count + 1) / 2
    scale = (sum((rank - middle) ** 2 for rank in range(1, count + 1)) / count) ** 0.5
    gains = []
    for _ in range(2000):
        ranks = [(rank - middle) / scale for rank in range(1, count + 1)]
        chance.shuffle(ranks)
        sums = list(itertools.accumulate(ranks))
        splits = range(LEAST_STRETCH, count - LEAST_STRETCH + 1)
        gains.append(max(sums[k - 1] ** 2 * (1 / k + 1 / (count - k)) for k in splits))
    above = sum(gain > penalty(count) for gain in gains) / len(gains)
    # 0.01 of 2000 orders here against a quantile of 2000 orders there: three standard errors are 0.0094
    assert above == pytest.approx(FALSE_CHANGES, abs=0.0094)


def test_the_penalty_of_ten_launches_is_that_of_all_their_orders() -> None:
    """The only split of ten is after five: all 252 choices of the first five ranks, each as likely as the others."""
    ranks = [(rank - 5.5) / 8.25**0.5 for rank in range(1, 11)]
    gains = sorted(sum(first) ** 2 * (1 / 5 + 1 / 5) for first in itertools.combinations(ranks, 5))
    assert penalty(10) in (pytest.approx(gains[-1]), pytest.approx(gains[-3]))  # 2 of 252 have the largest, 0.8 %
