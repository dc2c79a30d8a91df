"""A step is held to what accepted batteries measured, with room for what good batteries differ by, and no more."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.acceptance.judge.noninferiority import FALSE_REJECTION, look
from suite.acceptance.judge.step_time_margin import MARGIN, WIDEST, WITHOUT_HISTORY, reference, spread_of_batteries

RUNS = 400
LAUNCHES = 5
RATIOS = st.lists(st.floats(0.3, 3.0), min_size=1, max_size=12)
SPREADS = st.lists(st.floats(0.0, 0.5), max_size=12)


@given(RATIOS, SPREADS)
def test_the_bias_lies_among_the_batteries_and_the_margin_between_5_and_27_percent(ratios, spreads):
    held_to = reference(ratios, spreads, "batteries")
    assert min(ratios) * (1 - 1e-12) <= held_to.bias <= max(ratios) * (1 + 1e-12)
    assert MARGIN <= held_to.margin <= WIDEST


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.3), st.integers(1, 10))
def test_batteries_that_agree_tighten_the_margin(ratio, spread, count):
    fewer, more = (reference([ratio] * n, [spread] * n, "batteries").margin for n in (count, count + 1))
    assert more <= fewer


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.2))
def test_launches_that_spread_more_never_tighten_it(ratio, spread):
    assert reference([ratio], [spread], "").margin <= reference([ratio], [1.5 * spread], "").margin


def test_without_a_battery_the_prediction_and_its_own_error_are_what_it_is_held_to():
    assert reference([], [], "batteries") is WITHOUT_HISTORY
    assert (WITHOUT_HISTORY.bias, WITHOUT_HISTORY.margin) == (1.0, pytest.approx(0.27))


def test_steady_launches_hold_a_node_to_5_percent_from_its_first_battery_on():
    held_to = reference([0.9], [0.01], "accepted batteries of this node")
    assert (held_to.bias, held_to.margin) == (pytest.approx(0.9), MARGIN)
    assert held_to.source == "prediction x 0.900 of 1 accepted battery of this node; margin 5%: they spread by 1.0%"


def test_what_nothing_tells_the_spread_of_has_the_room_of_a_node_without_a_past():
    for ratios in ([0.9], [0.9, 1.1]):
        assert reference(ratios, [], "").margin == WIDEST
        assert spread_of_batteries(ratios, []) is None
    assert spread_of_batteries([1.0, math.e, 1.0], []) == pytest.approx(math.sqrt(1 / 3))


def test_the_spread_moves_from_that_of_launches_to_that_of_batteries():
    launches, batteries = 0.02, 0.1
    expected = {1: 0.02, 3: math.sqrt((2 * 0.02**2 + 2 * 0.1**2) / 4), 201: 0.1}
    for count, spread in expected.items():
        logs = [0.0] * (count % 2) + [sign for sign in (-1.0, 1.0) for _ in range(count // 2)]
        scale = batteries / statistics.stdev(logs) if count > 1 else 1.0
        ratios = [math.exp(scale * value) for value in logs]
        assert spread_of_batteries(ratios, [launches] * count) == pytest.approx(spread, rel=0.01)


def shares(*, past, between, within, slower=0.0):
    """How often a battery is accepted and rejected after as many accepted ones, slower by a share.

    Logarithms of batteries differ by a normal `between`, of their launches by `within`.
    """
    chance, found = random.Random(11), Counter()

    def battery(late):
        middle = chance.gauss(math.log1p(late), between)
        return [math.exp(chance.gauss(middle, within)) for _ in range(LAUNCHES)]

    for _ in range(RUNS):
        ratios, spreads = [], []
        while len(ratios) < past:
            good = battery(0.0)
            held_to = reference(ratios, spreads, "")
            seen = look([one / held_to.bias for one in good], margin=held_to.margin, looks=(LAUNCHES,))
            if seen.verdict == "PASS":
                ratios.append(statistics.geometric_mean(good))
                spreads.append(seen.spread)
        held_to = reference(ratios, spreads, "")
        last = [one / held_to.bias for one in battery(slower)]
        found[look(last, margin=held_to.margin, looks=(LAUNCHES,)).verdict] += 1
    return found["PASS"] / RUNS, found["FAIL"] / RUNS


NOISE = 3 * math.sqrt(FALSE_REJECTION / RUNS)  # three standard errors of the simulated share


@pytest.mark.parametrize("past", [0, 1, 2, 4, 9])
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05, 0.08])
def test_a_good_node_is_rejected_in_at_most_1_of_100_batteries_and_accepted_in_most(past, spread):
    accepted, rejected = shares(past=past, between=spread, within=spread)
    assert rejected <= FALSE_REJECTION + NOISE
    assert accepted >= 0.8


@pytest.mark.parametrize(("spread", "slower"), [(0.005, 0.10), (0.02, 0.2), (0.05, 0.5)])
@pytest.mark.parametrize("past", [1, 4, 9])
def test_a_node_late_by_more_than_its_batteries_differ_is_rejected(spread, slower, past):
    accepted, rejected = shares(past=past, between=spread, within=spread, slower=slower)
    assert accepted <= 0.01
    assert rejected >= 0.85


@pytest.mark.parametrize("past", [0, 1, 4, 9])
def test_however_noisy_a_node_half_slower_again_is_hardly_ever_accepted(past):
    accepted, _ = shares(past=past, between=0.08, within=0.08, slower=0.5)
    assert accepted <= 0.05
