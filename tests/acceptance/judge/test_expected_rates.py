"""What a rate should be, and the room that each source of it leaves."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from suite.acceptance.check_table import CHECKS, MATRIX
from suite.acceptance.findings import CheckVerdict
from suite.acceptance.judge.expected_rates import from_peak, from_values, modified_z, rated


def test_every_rate_is_judged_by_the_expectation_that_it_looks_worst_against():
    past = from_values(CHECKS[MATRIX], [100.0, 101.0, 99.0], "batteries")
    found = rated(CHECKS[MATRIX], "x", 90.0, [from_peak(100.0, "a data sheet"), past], part="rank 0")
    assert (found.verdict, found.ratio, found.part) == (CheckVerdict.FAIL, 0.9, "rank 0")
    assert found.source == "median of 3 batteries, spread 1.0%"
    assert "0.900 of a data sheet" in found.evidence
    assert rated(CHECKS[MATRIX], "x", 71.0, [from_peak(100.0, "s")], part="").verdict is CheckVerdict.PASS
    assert rated(CHECKS[MATRIX], "x", 69.0, [from_peak(100.0, "s")], part="").verdict is CheckVerdict.FAIL
    assert (
        rated(CHECKS[MATRIX], "x", 69.0, [from_peak(100.0, "s", rejects=False)], part="").verdict is CheckVerdict.WARN
    )


def test_a_rate_that_nobody_expects_did_not_run_but_is_kept_for_later():
    found = rated(CHECKS[MATRIX], "x", 90.0, [], part="rank 0")
    assert (found.verdict, found.measured, found.compared_as) == (CheckVerdict.NOT_RUN, 90.0, "x")


def test_the_spread_of_the_past_widens_the_thresholds_and_two_values_have_none():
    tight = from_values(CHECKS[MATRIX], [100.0, 100.5, 99.5], "b")
    loose = from_values(CHECKS[MATRIX], [100.0, 103.0, 97.0], "b")
    wild = from_values(CHECKS[MATRIX], [100.0, 110.0, 90.0], "b")
    few = from_values(CHECKS[MATRIX], [100.0, 110.0], "b")
    assert (tight.warn, tight.fail) == (0.965, 0.93)
    another = 0.03 * math.sqrt(4 / 3)
    assert (loose.warn, loose.fail) == pytest.approx((1 - 2 * another, 1 - 6.965 * another), abs=1e-4)
    # three deviations of many values are more than what few have room for
    assert (wild.warn, wild.fail) == pytest.approx((1 - 0.2 * math.sqrt(4 / 3), 1 - 0.3 * math.sqrt(4 / 3)))
    assert few.fail == 0.70


@pytest.mark.parametrize("count", [3, 4, 5, 10, 30])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_one_more_good_value_fails_in_at_most_1_of_100_batteries_however_few_there_are(count, spread):
    chance, trials, failed = random.Random(5), 4000, 0
    for _ in range(trials):
        values = [chance.gauss(100.0, 100.0 * spread) for _ in range(count + 1)]
        last = values.pop()
        failed += last < statistics.median(values) * from_values(CHECKS[MATRIX], values, "").fail
    # four standard errors of a share of 1 in 100
    assert failed / trials <= 0.01 + 4 * math.sqrt(0.01 / trials)


def test_many_values_that_spread_by_1_percent_leave_no_room_for_a_tenth():
    for count in (3, 10):
        values = [100.0 + (place % 3 - 1) for place in range(count)]
        expected = from_values(CHECKS[MATRIX], values, "")
        assert rated(CHECKS[MATRIX], "x", 90.0, [expected], part="p").verdict is CheckVerdict.FAIL


def test_a_modified_z_needs_ten_nodes_and_flags_beyond_3_5():
    fleet = [100.0 + step for step in range(-5, 6)]  # MAD 3
    assert modified_z(80.0, fleet[:9]) is None
    assert modified_z(80.0, fleet) == pytest.approx(-20 * 0.6745 / 3)
    same = rated(CHECKS[MATRIX], "x", 97.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    flagged = rated(CHECKS[MATRIX], "x", 80.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    assert (same.verdict, flagged.verdict, flagged.part) == (CheckVerdict.PASS, CheckVerdict.WARN, "p")
