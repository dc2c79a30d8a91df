"""Looks at launches that go on raise no more false alarms than one look, and say how many launches would do."""

from __future__ import annotations

import itertools
import math
import random

import numpy
import pytest

from suite.metrics.noise_floor import noise_floor
from suite.metrics.two_sample import FALSE_DISCOVERIES, rank_orders, rank_test_p
from suite.regression import looks
from suite.regression.looks import COUNTS, enough_launches, enough_looks, look_price, look_sizes
from suite.regression.verdicts import ChangeVerdict, Sets, judged
from tests.support.histories import normal_launches

HISTORIES = 4000
LOOKS = 7


def rank_test_table(size):
    """Two-sided p by the number of pairs in which the later set is the larger."""
    below = [*itertools.accumulate(rank_orders(size, size))]
    tails = [min(below[pairs], below[size * size - pairs]) for pairs in range(size * size + 1)]
    return numpy.array([min(1.0, 2 * tail / below[-1]) for tail in tails])


def heavy(chance):
    """Seconds of a launch on a machine where one launch of ten is disturbed."""
    return math.exp(chance.gauss(0, 0.03) + (chance.expovariate(3) if chance.random() < 0.1 else 0))


@pytest.fixture(scope="module")
def p_values():
    """The p of every look of histories in which both sides are the same code."""
    chance = random.Random(5)
    sizes = [*itertools.islice(look_sizes(7), LOOKS)]
    old, new = (numpy.array([[heavy(chance) for _ in range(sizes[-1])] for _ in range(HISTORIES)]) for _ in range(2))
    found = numpy.empty((HISTORIES, LOOKS))
    for look, size in enumerate(sizes):
        larger = (new[:, None, :size] > old[:, :size, None]).sum(axis=(1, 2))
        found[:, look] = rank_test_table(size)[larger]
        for history in range(3):
            real = rank_test_p(old[history, :size].tolist(), new[history, :size].tolist())
            assert found[history, look] == pytest.approx(real)
    return found


def test_unchanged_code_alarms_at_some_look_in_at_most_the_promised_share(p_values):
    """5 % are promised. p < 0.05 at every look alarms in far more of the same histories."""
    prices = numpy.array([look_price(look) for look in range(1, LOOKS + 1)])
    priced, unpriced = (
        (p_values * price < FALSE_DISCOVERIES).any(axis=1).mean() for price in (prices, numpy.ones(LOOKS))
    )
    assert priced <= FALSE_DISCOVERIES
    assert unpriced > 2 * FALSE_DISCOVERIES


def test_all_prices_together_are_one_look():
    assert math.fsum(1 / look_price(look) for look in range(1, 10**5)) == pytest.approx(1, abs=2e-5)


def test_the_whole_rule_calls_unchanged_code_a_change_in_at_most_the_promised_share(monkeypatch):
    """Every look with its band, interval and re-run, as the command judges it; a machine that is disturbed."""
    chance = random.Random(6)
    floor = noise_floor([[heavy(chance) for _ in range(40)]])
    monkeypatch.setattr("suite.metrics.two_sample.RESAMPLES", 400)
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 50)
    histories, alarms, candidates = 150, 0, 0
    for _ in range(histories):
        old, new = [], []
        for look, size in enumerate(itertools.islice(look_sizes(7), 4), start=1):
            for side in (old, new):
                side += [heavy(chance) for _ in range(size - len(side))]
            sets = Sets(before=tuple(old), after=tuple(new), floor=floor)
            (found,) = judged([sets], limit=0.001, price=look_price(look))
            candidates += found.to_confirm
            if found.to_confirm:
                again = tuple(tuple(heavy(chance) for _ in range(size)) for _ in range(2))
                sets = Sets(before=tuple(old), after=tuple(new), floor=floor, rerun=again)
                (found,) = judged([sets], limit=0.001, price=look_price(look))
            alarms += found.change in (ChangeVerdict.REGRESSION, ChangeVerdict.IMPROVED)
    assert alarms <= candidates <= FALSE_DISCOVERIES * histories


def test_a_price_multiplies_q_and_takes_members_as_in_a_family_that_many_times_as_large():
    before, after = tuple(normal_launches(1, 7)), tuple(normal_launches(2, 7, median=1.08))
    sets = Sets(before=before, after=after, floor=noise_floor([normal_launches(9, 40)]))
    (one,), (priced,) = judged([sets]), judged([sets], price=6)
    assert priced.q == pytest.approx(6 * one.q)
    assert one.to_confirm
    (dear,) = judged([sets], price=100)
    assert (dear.change, dear.to_confirm) == (ChangeVerdict.INCONCLUSIVE, False)
    assert (
        dear.why
        == "7 and 7 launches show one change among 85 quantities at most, here are 1, 100-fold as one of several looks"
    )


def test_members_that_are_settled_stay_in_the_family():
    before, after = tuple(normal_launches(1, 7)), tuple(normal_launches(2, 7, median=1.08))
    sets = Sets(before=before, after=after, floor=noise_floor([normal_launches(9, 40)]))
    (alone,), (with_others,) = judged([sets]), judged([sets], settled=3)
    assert (with_others.family, with_others.q) == (4, pytest.approx(4 * alone.q))


def test_looks_grow_by_the_same_share_from_the_first_on():
    assert [*itertools.islice(look_sizes(7), 7)] == [7, 10, 14, 20, 28, 40, 56]
    assert [*itertools.islice(look_sizes(1), 5)] == [1, 2, 3, 5, 7]


def test_the_fewest_launches_that_show_the_limit_are_found():
    for limit, enough in ((1 / 7, 10), (0.1, 10), (0.09, 15), (1 / 60, 60), (0.01, None)):
        assert enough_launches(lambda count: 1 / count, 7, limit) == enough
    assert enough_launches(lambda count: 1 / count, 20, 1.0) == 30
    assert enough_launches(lambda count: 1 / count, COUNTS[-1], 1.0) is None


def test_the_look_that_decides_pays_its_own_price_and_there_may_be_none(monkeypatch):
    asked = []

    def least(floor, before, after, *, family, rerun):
        asked.append((before, after, family, rerun))
        return None if after < 10 else family / after**2

    monkeypatch.setattr(looks, "least_detectable", least)
    assert (
        enough_looks("floor", None, family=2, first=7, limit=0.05) == 56
    )  # 2 x 7 x 8 / 56^2 is 0.036, and 2 x 6 x 7 / 40^2 0.053
    assert all(
        before == after == rerun and family == 2 * look_price(1 + [7, 10, 14, 20, 28, 40, 56].index(after))
        for before, after, family, rerun in asked
    )
    assert enough_looks("floor", 9, family=1, first=7, limit=1e-9) is None
    assert asked[-1][0] == 9
