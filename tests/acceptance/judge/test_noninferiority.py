"""The decision on step times errs no more often than promised, whatever number of looks it takes."""

from __future__ import annotations

import csv
import math
import random
import statistics

import pytest
from scipy.stats import t as student

from suite.acceptance.judge.noninferiority import FALSE_ACCEPTANCE, FALSE_REJECTION, LOOKS, launches_missing, look
from suite.metrics.launch_statistics import t_quantile
from suite.paths import ROOT

MARGIN = 0.05
RUNS = 2000
RECORDED = ROOT / "tests/support/launches.csv"


def decided(ratios, looks=LOOKS):
    """The procedure's answer after at most all looks."""
    for n in looks:
        verdict = look(ratios[:n], margin=MARGIN, looks=looks).verdict
        if verdict != "INCONCLUSIVE":
            return verdict
    return "INCONCLUSIVE"


def shares(slowdown, variation, looks=LOOKS):
    """How often normal launches of a node with this slowdown are accepted and rejected."""
    chance = random.Random(7)
    verdicts = []
    for _ in range(RUNS):
        logs = [chance.gauss(math.log1p(slowdown), variation) for _ in range(max(looks))]
        verdicts.append(decided([math.exp(x) for x in logs], looks))
    return verdicts.count("PASS") / RUNS, verdicts.count("FAIL") / RUNS


@pytest.mark.parametrize("degrees", [1, 2, 4, 5, 9, 14, 30])
@pytest.mark.parametrize("probability", [0.5, 0.9, 1 - FALSE_ACCEPTANCE / 3, 1 - FALSE_REJECTION / 3])
def test_quantiles_are_those_of_scipy(degrees, probability):
    assert t_quantile(probability, degrees) == pytest.approx(student.ppf(probability, degrees), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("variation", [0.01, 0.05])
def test_a_node_exactly_at_the_margin_is_wrongly_judged_no_more_often_than_promised(variation):
    accepted, rejected = shares(MARGIN, variation)
    # three standard errors of the simulated shares
    assert accepted <= FALSE_ACCEPTANCE + 3 * math.sqrt(FALSE_ACCEPTANCE / RUNS)
    assert rejected <= FALSE_REJECTION + 3 * math.sqrt(FALSE_REJECTION / RUNS)


def test_a_good_node_is_accepted_and_a_slow_one_rejected():
    assert shares(0.0, 0.01)[0] > 0.999
    assert shares(0.15, 0.01)[1] > 0.999


def test_recorded_launches_of_a_busy_machine_are_rejected_in_at_most_1_of_100_resampled_batteries():
    """With replacement, from 52 launches whose variation is 10 %; expected is their median: the node is good."""
    lines = [line for line in RECORDED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    seconds = [float(row["step_seconds"]) for row in csv.DictReader(lines)]
    assert len(seconds) == 52
    middle, chance = statistics.median(seconds), random.Random(7)
    verdicts = [decided([chance.choice(seconds) / middle for _ in range(max(LOOKS))]) for _ in range(RUNS)]
    assert verdicts.count("FAIL") <= RUNS / 100
    # the rule is not merely silent: the same launches 30 % slower are rejected in most batteries
    slow = [decided([1.3 * chance.choice(seconds) / middle for _ in range(max(LOOKS))]) for _ in range(RUNS // 4)]
    assert slow.count("FAIL") > 0.9 * len(slow)


def test_the_least_detectable_slowdown_is_rejected_in_about_9_of_10_batteries():
    variation = 0.02
    chance = random.Random(3)
    typical = statistics.median(
        look([math.exp(chance.gauss(0, variation)) for _ in range(15)], margin=MARGIN).least_detectable
        for _ in range(500)
    )
    found = 0
    for _ in range(RUNS):
        ratios = [math.exp(chance.gauss(math.log1p(typical), variation)) for _ in range(15)]
        found += look(ratios, margin=MARGIN).verdict == "FAIL"
    # the threshold's spread is taken from the same launches: the normal approximation of a noncentral t
    assert 0.85 <= found / RUNS <= 0.95


def test_three_launches_have_a_bound_and_further_ones_are_asked_for_up_to_the_next_look():
    noisy = [0.8, 1.3, 0.9, 1.2, 1.05]
    assert [launches_missing(some, margin=MARGIN) for some in (noisy[:3], noisy, 3 * noisy)] == [2, 5, 0]
    assert launches_missing([1.0, 1.001, 0.999, 1.0, 1.0], margin=MARGIN) == 0
    assert launches_missing([1.0] * 6, margin=MARGIN) == 4
    assert launches_missing(noisy[:4], margin=MARGIN, looks=(4,)) == 0
    assert look([1.0] * 5, margin=0.0).verdict == "PASS"  # at the margin itself
    with pytest.raises(ValueError, match="3 launches"):
        look([1.0, 1.0], margin=MARGIN)


@pytest.mark.parametrize("looks", [LOOKS, (5,), (4, 8)])
@pytest.mark.parametrize("launches", [3, 5, 8])
def test_the_bounds_are_students_and_the_verdict_is_where_they_lie(looks, launches):
    chance = random.Random(launches)
    ratios = [math.exp(chance.gauss(0.02, 0.03)) for _ in range(launches)]
    logs, n = [math.log(ratio) for ratio in ratios], launches
    middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(n)
    accept, reject, power = (student.ppf(p, n - 1) for p in (1 - 0.05 / len(looks), 1 - 0.01 / len(looks), 0.9))
    found = look(ratios, margin=MARGIN, looks=looks)
    assert found.launches == n
    bounds = (found.ratio, found.low, found.high, found.spread)
    expected = (statistics.geometric_mean(ratios), middle - reject * error, middle + accept * error)
    assert bounds == pytest.approx(
        (expected[0], math.exp(expected[1]), math.exp(expected[2]), statistics.stdev(logs)), rel=1e-9
    )
    assert 1 + found.least_detectable == pytest.approx((1 + MARGIN) * math.exp((reject + power) * error), rel=1e-9)
    for margin in (found.high - 1, found.low - 1):  # to each side of a bound by a little
        inside, outside = (look(ratios, margin=margin + move, looks=looks).verdict for move in (1e-9, -1e-9))
        if n not in looks:
            assert (inside, outside) == ("INCONCLUSIVE", "INCONCLUSIVE")
        elif margin > found.ratio - 1:
            assert (inside, outside) == ("PASS", "INCONCLUSIVE")
        else:
            assert (inside, outside) == ("INCONCLUSIVE", "FAIL")
