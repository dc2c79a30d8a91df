"""The rate that is expected, and the room that each source of it leaves."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import numpy
import pytest
from scipy import stats

from suite.acceptance.check_table import CHECKS, MATRIX, Sense
from suite.acceptance.judge.expected_rates import (
    ExpectedRate,
    UpperLimit,
    from_peak,
    from_values,
    limited,
    outlier_words,
    rated,
)


def test_every_rate_is_judged_by_the_expectation_that_it_looks_worst_against():
    past = from_values(CHECKS[MATRIX], [100.0, 101.0, 99.0], "batteries")
    found = rated(CHECKS[MATRIX], "x", 90.0, [from_peak(100.0, "a data sheet"), past], part="rank 0")
    assert (found.verdict, found.ratio, found.part) == ("FAIL", 0.9, "rank 0")
    assert found.source == "median of 3 batteries, spread 1.0%"
    assert "0.900 of a data sheet" in found.evidence
    assert rated(CHECKS[MATRIX], "x", 71.0, [from_peak(100.0, "s")], part="").verdict == "PASS"
    assert rated(CHECKS[MATRIX], "x", 1.0, [from_peak(100.0, "s")], part="").verdict == "WARN"


def test_a_rate_that_nobody_expects_did_not_run_but_is_kept_for_later():
    found = rated(CHECKS[MATRIX], "x", 90.0, [], part="rank 0")
    assert (found.verdict, found.measured, found.compared_as) == ("NOT RUN", 90.0, "x")
    of_gpu = rated(CHECKS[MATRIX], "x", 90.0, [], part="rank 0", evidence="e", without="no floor")
    assert (of_gpu.verdict, of_gpu.measured, of_gpu.evidence, of_gpu.part) == ("WARN", 90.0, "no floor; e", "")


def test_few_values_of_a_virtual_machine_may_all_lie_at_a_ceiling():
    """Half of them do; the others are up to a fifth below it. Three values of the ceiling alone have no spread."""
    chance, trials, failed = random.Random(5), 4000, {True: 0, False: 0}
    for _ in range(trials):
        values = [100.0 if chance.random() < 0.5 else 100.0 - 20 * chance.random() for _ in range(4)]
        last = values.pop()
        for virtual in failed:
            expected = from_values(CHECKS[MATRIX], values, "", virtual=virtual)
            failed[virtual] += last < statistics.median(values) * expected.fail
    assert failed[True] == 0
    # 1 of 8 have three at the ceiling, and of the half that is below it, more than half is so by more than 7 %
    assert failed[False] / trials > 0.125 * 0.5 * 0.5
    nine, ten = (from_values(CHECKS[MATRIX], [100.0] * count, "b", virtual=True) for count in (9, 10))
    assert (nine.fail, nine.source) == (0.70, "median of 9 b, spread unknown")
    assert (ten.fail, ten.source) == (0.93, "median of 10 b, spread 0.0%")


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


def test_an_outlier_among_ten_nodes_is_a_warning_at_least():
    fleet = [100.0 + step for step in range(-5, 6)]  # MAD 3
    same = rated(CHECKS[MATRIX], "x", 97.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    flagged = rated(CHECKS[MATRIX], "x", 80.0, [from_peak(100.0, "s")], part="p", fleet=fleet)
    assert (same.verdict, flagged.verdict, flagged.part) == ("PASS", "WARN", "p")
    assert rated(CHECKS[MATRIX], "x", 70.0, [rate()], part="p", fleet=fleet).verdict == "FAIL"


def rate(value=100.0, warn=0.9, fail=0.8, source="s"):
    return ExpectedRate(value=value, source=source, warn=warn, fail=fail)


def check_of(sense=Sense.HIGHER_IS_BETTER, warn=0.9, fail=0.8):
    return msgspec.structs.replace(CHECKS[MATRIX], sense=sense, warn=warn, fail=fail)


def test_a_threshold_itself_is_still_good_on_either_side():
    higher, lower = check_of(), check_of(Sense.LOWER_IS_BETTER, warn=1.25, fail=1.5)
    for check, figures in ((higher, (0.9, 0.899, 0.8, 0.799)), (lower, (1.25, 1.26, 1.5, 1.51))):
        verdicts = [limited(check, "x", figure, part="p", source="s").verdict for figure in figures]
        assert verdicts == ["PASS", "WARN", "WARN", "FAIL"]
    found = limited(check_of(fail=None), "x", 0.1, part="p", source="s", evidence="e")
    assert (found.verdict, found.part, found.evidence, found.ratio) == ("WARN", "p", "e", 0.1)
    assert limited(higher, "x", 1.0, part="p", source="s").part == ""


@pytest.mark.parametrize("sense", [Sense.HIGHER_IS_BETTER, Sense.LOWER_IS_BETTER])
@pytest.mark.parametrize(("count", "spread"), [(3, 0.001), (3, 0.02), (3, 0.2), (4, 0.03), (12, 0.004), (12, 0.05)])
def test_thresholds_are_those_of_a_prediction_interval(sense, count, spread):
    sign = -1 if sense is Sense.HIGHER_IS_BETTER else 1
    check = check_of(sense, 1 + 0.03 * sign, 1 + 0.07 * sign)
    chance = random.Random(count)
    values = [chance.gauss(50, 50 * spread) for _ in range(count)]
    found = from_values(check, values, "batteries")
    relative = numpy.std(values, ddof=1) / numpy.median(values)
    deviation = relative * math.sqrt(1 + 1 / count)
    widest = 0.3 if sign < 0 else 1 / 0.7 - 1
    tail = max(3.0, stats.t.ppf(0.99, count - 1))
    fail = max(0.07, min(tail * deviation, max(widest, 3 * deviation)))
    assert found.value == pytest.approx(numpy.median(values))
    assert sign * (found.warn - 1) == pytest.approx(max(0.03, 2 * deviation), rel=1e-6)
    assert sign * (found.fail - 1) == pytest.approx(fail, rel=1e-6)
    assert found.source == f"median of {count} batteries, spread {relative:.1%}"


def test_two_values_have_no_spread_and_none_or_zeros_are_no_expectation():
    for sense, widest in ((Sense.HIGHER_IS_BETTER, 0.7), (Sense.LOWER_IS_BETTER, 1 / 0.7)):
        found = from_values(check_of(sense), [4.0, 6.0], "batteries")
        assert (found.value, found.warn, found.fail) == (5.0, 0.9, widest)
        assert found.source == "median of 2 batteries, spread unknown"
    assert from_values(check_of(), [], "b") is None
    assert from_values(check_of(), [0.0, 0.0, 0.0], "b") is None
    assert from_values(check_of(warn=None), [1.0], "b") is None
    assert from_values(check_of(fail=None), [1.0], "b") is None


def test_an_outlier_is_one_on_the_bad_side_beyond_3_5_among_ten():
    nodes = [float(value) for value in range(95, 105)]  # median 99.5, MAD 2.5
    edge = 3.5 * 2.5 / 0.6745
    higher, lower = check_of(), check_of(Sense.LOWER_IS_BETTER)
    for check, sign in ((higher, -1), (lower, 1)):
        assert (
            outlier_words(check, 99.5 + sign * (edge + 0.01), nodes) == f"modified z {sign * 3.5:+.1f} among 10 nodes"
        )
        assert outlier_words(check, 99.5 + sign * (edge - 0.01), nodes) == ""
        assert outlier_words(check, 99.5 - sign * 10 * edge, nodes) == ""
    around = [-0.6745, 0.6745] * 5  # median 0; a value of 3.5 is at the limit itself
    assert outlier_words(higher, -3.5, around) == outlier_words(lower, 3.5, around) == ""
    assert outlier_words(higher, 1.0, nodes[:9]) == ""
    assert outlier_words(higher, 1.0, [2.0] * 10) == ""


def test_the_worst_expectation_is_reported_and_the_others_are_told_of():
    found = rated(check_of(), "x", 85.0, [rate(source="far"), rate(value=98.0, source="near")], part="p", evidence="e")
    assert (found.verdict, found.source, found.ratio) == ("WARN", "far", 0.85)
    assert found.evidence == "e; 0.867 of near"
    assert (found.measured, found.expected, found.warn, found.fail, found.part) == (85.0, 100.0, 0.9, 0.8, "p")
    better = rated(check_of(), "x", 95.0, [rate(value=98.0, source="near"), rate(source="far")], part="p")
    assert (better.verdict, better.source, better.part) == ("PASS", "far", "")
    failing = rated(
        check_of(), "x", 75.0, [rate(fail=None, source="warns"), rate(value=99.0, source="fails")], part="p"
    )
    assert (failing.verdict, failing.source) == ("FAIL", "fails")
    late = rated(check_of(Sense.LOWER_IS_BETTER), "x", 95.0, [rate(value=98.0), rate(source="far")], part="p")
    assert late.ratio == pytest.approx(95 / 98)


def test_of_rates_that_pass_that_with_the_least_distance_to_its_threshold_is_reported():
    close, far = rate(source="close"), rate(value=200.0, warn=0.4, fail=0.3, source="far")
    for both in ([close, far], [far, close]):
        found = rated(check_of(), "x", 95.0, both, part="p")
        assert (found.verdict, found.source) == ("PASS", "close")


@pytest.mark.parametrize("value", [101.0, math.nan, math.inf])
def test_more_than_a_device_can_is_invalid_whatever_is_expected(value):
    most = UpperLimit(100.0, "a peak")
    for expected in ([], [rate()]):
        found = rated(check_of(), "x", value, expected, part="p", evidence="e", most=most)
        assert (found.verdict, found.part, found.source, found.expected) == (
            "INVALID",
            "measurement: faster than such a device can be",
            "a peak",
            100.0,
        )
        assert found.ratio == value / 100 or math.isnan(value)
    assert rated(check_of(), "x", 100.0, [rate()], part="p", most=most).verdict == "PASS"
