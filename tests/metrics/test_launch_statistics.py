"""Statistics of launches: tests that can find something, intervals that hold what they say, nothing of single steps."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from suite.__main__ import main
from suite.job.events import Status
from suite.metrics import launch_statistics as module
from suite.metrics.comparison import Row, Verdict
from suite.metrics.figures import Quantity
from suite.metrics.launch_statistics import (
    ALPHA,
    CONFIDENCE,
    POWER,
    detection_test,
    least_detectable_change,
    median_interval,
    moderated_deviation,
    summaries,
    t_quantile,
    variation,
)
from suite.metrics.two_sample import critical_pairs
from suite.paths import ROOT
from suite.reproduce.reproduce import LaunchResult
from tests.support.launches import launch_result

SETS = 4000
# Standard errors of a share of 0.9: 0.0047 of 4000 sets, 0.0043 of the threshold's 0.7 %. From 16 launches on the
# threshold is up to 1 % too small: 0.007. Four standard errors and that.
SHARE_BOUND = 4 * math.hypot(0.0047, 0.0043) + 0.007


def row(quantity: Quantity, right: float | None, **key: Any) -> Row:
    """A row as `compare` makes it of something that is not predicted."""
    given = dict.fromkeys(("axis", "operation", "rank", "stage", "term", "convention", "why"), None) | key
    return Row(
        quantity=quantity.value,
        unit=quantity.unit,
        left=None,
        right=right,
        difference=None,
        tolerance=None,
        verdict=Verdict.SHOWN,
        **given,
    )


def test_the_rule_beyond_15_launches_is_1_percent_too_small_at_15() -> None:
    """The rank test is simulated up to 15 launches; from 16 on the t test's stands for it."""
    of_t = module._threshold_of_t(15, random.Random(module._SEED)) * math.sqrt(math.pi / 3)
    assert 1.003 < module.least_detectable_change(15, 1.0) / of_t < 1.015
    again = module._threshold_of_t(16, random.Random(module._SEED)) * math.sqrt(math.pi / 3)
    assert module.least_detectable_change(16, 1.0) == again


def test_critical_pairs_and_quantiles_of_t_are_those_of_the_published_tables() -> None:
    pairs = {5: 0, 6: 2, 7: 4, 8: 7, 9: 11, 10: 16, 15: 51, 20: 105}  # of the Mann-Whitney test
    assert {n: critical_pairs(n, n, level=ALPHA) for n in pairs} == pairs
    quantiles = {2: 9.925, 4: 4.604, 6: 3.707, 8: 3.355, 12: 3.055, 30: 2.750}
    assert {n: t_quantile(1 - ALPHA / 2, n) for n in quantiles} == pytest.approx(quantiles, abs=0.0005)


@pytest.mark.parametrize("n", [2, 4, 5, 7, 15, 16, 30])
def test_the_least_detectable_change_is_found_in_nine_of_ten_simulated_pairs_of_sets(n: int) -> None:
    chance = np.random.default_rng(n)
    change = least_detectable_change(n, 0.01)
    before = chance.normal(1.0, 0.01, (SETS, n))
    after = chance.normal(1.0 + change, 0.01, (SETS, n))
    if "Mann-Whitney test, two-sided" in detection_test(n):
        p = stats.mannwhitneyu(before, after, axis=1, method="exact").pvalue
    else:
        p = stats.ttest_ind(before, after, axis=1).pvalue
    assert np.mean(p < ALPHA) == pytest.approx(POWER, abs=SHARE_BOUND)


def test_with_fewer_than_5_launches_a_rank_test_finds_nothing_and_the_words_say_so() -> None:
    for n in (2, 3, 4):
        apart = stats.mannwhitneyu(range(n), range(n, 2 * n), method="exact").pvalue
        assert apart > ALPHA
        assert detection_test(n).startswith("t test, ")
        assert detection_test(n).endswith(f"with {n} launches a Mann-Whitney test has no p below {apart:.2g}")
    assert detection_test(5).startswith("Mann-Whitney test, ")


def test_more_launches_show_smaller_changes_and_twice_the_spread_doubles_them() -> None:
    changes = [least_detectable_change(n, 0.01) for n in (2, 3, 4, 5, 6, 7, 15, 16, 30, 31)]
    assert changes == sorted(changes, reverse=True)
    assert least_detectable_change(6, 0.02) == pytest.approx(2 * least_detectable_change(6, 0.01))


def test_the_page_tells_what_so_many_launches_detect_at_a_variation_of_one_percent() -> None:
    text = (ROOT / "docs" / "regressions.md").read_text(encoding="utf-8")
    section = text.partition("## Several launches of one run")[2].partition("\n## ")[0]
    detected = {5: "3.5 %", 7: "2.6 %", 10: "2.0 %", 4: "3.8 %", 3: "5.5 %", 2: "15 %"}
    changes = {n: 100 * least_detectable_change(n, 0.01) for n in detected}
    assert {n: f"{change:.{0 if n == 2 else 1}f} %" for n, change in changes.items()} == detected
    assert [words for words in detected.values() if words not in section] == []


def test_a_thousand_launches_take_no_longer_than_a_few() -> None:
    assert least_detectable_change(1000, 0.01) == pytest.approx(0.01 * 3.858 * math.sqrt(2 / 1000 * math.pi / 3), 0.01)


@pytest.mark.parametrize("n", [2, 5, 6, 9, 12])
def test_the_interval_of_the_median_holds_it_in_as_many_of_all_cases_as_it_says(n: int) -> None:
    interval, confidence, why = median_interval([float(place) for place in range(1, n + 1)])
    below = [sum(case) for case in itertools.product((0, 1), repeat=n)]

    def held(k: int) -> float:
        """Share of all ways to lie below or above the median in which the k-th from either end enclose it."""
        return sum(k <= b <= n - k for b in below) / 2**n

    if interval is None:
        assert n < 6
        assert held(1) < CONFIDENCE
        assert why == f"no 95% interval of the median: minimum and maximum hold it with {held(1):.1%}"
    else:
        k = int(interval[0])
        assert interval[1] == n + 1 - k
        assert confidence == pytest.approx(held(k))
        assert held(k) >= CONFIDENCE > held(k + 1)


def test_the_variation_is_standard_deviation_over_mean_and_none_of_a_mean_of_0() -> None:
    assert variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert variation([0.0, 0.0]) is None


def test_every_clocked_quantity_of_the_whole_job_is_summarised_and_no_other() -> None:
    launches = [
        [
            row(Quantity.MODEL_FLOP, 7),
            row(Quantity.PEAK_BYTES, 1000 + n),
            row(Quantity.FIRST_LOSS, 8.0 + n),
            row(Quantity.STEP_SECONDS, 1.0 + n / 10),
            row(Quantity.STEP_SECONDS, 0.5 + n / 10, term="forward"),
            row(Quantity.STEP_SECONDS, 3.0, rank=1),
            row(Quantity.TRAINING_SECONDS, None),
            row(Quantity.TOKENS_PER_SECOND, 100 / (1 + n / 10)),
            row(Quantity.BUBBLE_FRACTION, 0.0),
        ]
        for n in range(3)
    ]
    found = summaries(launches)
    assert [(s.quantity, s.term, s.unit, s.launches) for s in found] == [
        ("step_seconds", None, "s", 3),
        ("step_seconds", "forward", "s", 3),
        ("tokens_per_second", None, "token/s", 3),
        ("bubble_fraction", None, "1", 3),
    ]
    step = found[0]
    assert (step.median, step.minimum, step.maximum) == (1.1, 1.0, 1.2)
    assert step.variation == pytest.approx(0.1 / 1.1)
    assert step.least_detectable_change == pytest.approx(least_detectable_change(3, 0.1 / 1.1))
    assert (found[3].variation, found[3].least_detectable_change) == (None, None)
    assert summaries(launches[:1]) == summaries([]) == []


def result(seconds: float | None) -> LaunchResult:
    """A launch with a step of `seconds`, or one that crashed."""
    well = seconds is not None
    return launch_result(
        status=Status.OK if well else Status.CRASHED,
        verdict=Verdict.PASS if well else Verdict.FAIL,
        message="" if well else "rank 1 killed by SIGKILL",
        record=f"record of {seconds}",
        rows=[row(Quantity.STEP_SECONDS, seconds if well else 99.0)],
        losses=[8.0, 7.0],
    )


@pytest.fixture
def reproduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs `reproduce` with launches that are made up, and returns exit code and output."""

    def run(seconds: list[float | None], *options: str) -> tuple[int, str]:
        left = list(seconds)
        monkeypatch.setattr("suite.commands.reproduce.corpus_for", lambda *_: None)
        monkeypatch.setattr("suite.commands.reproduce.reproduce", lambda *_, **__: result(left.pop(0)))
        arguments = ["reproduce", "bloom-mini", "--device", "cpu", "--results", str(tmp_path)]
        code = main([*arguments, "--launches", str(len(seconds)), *options])
        return code, capsys.readouterr().out

    return run


def test_launches_end_with_one_object_and_one_launch_without(reproduced: Any) -> None:
    code, out = reproduced([1.0, 1.01, 0.99, 1.02, 1.0], "--json")
    *launches, last = [json.loads(line) for line in out.splitlines()]
    assert (code, len(launches), last.keys()) == (0, 5, {"run", "launches", "summary"})
    assert (last["run"], last["launches"]) == ("bloom-mini", 5)
    (step,) = last["summary"]
    assert (step["quantity"], step["unit"], step["launches"], step["median"]) == ("step_seconds", "s", 5, 1.0)
    assert (step["minimum"], step["maximum"], step["interval"]) == (0.99, 1.02, None)
    assert step["least_detectable_change"] == pytest.approx(least_detectable_change(5, step["variation"]))
    assert step["why"].startswith("Mann-Whitney test, two-sided, alpha 0.01, power 0.9")
    _, out = reproduced([1.0], "--json")
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["ok"]


def test_a_launch_that_failed_is_named_and_left_out_of_the_summary(reproduced: Any) -> None:
    code, out = reproduced([1.0, None, 1.2])
    assert code == 4
    assert "bloom-mini: 2 of 3 launches ended well; the others are left out" in out
    assert "left out: launch 2, crashed: rank 1 killed by SIGKILL; record record of None\n" in out
    (summary,) = (line.split() for line in out.splitlines() if line.startswith("step_seconds") and "12.9%" in line)
    assert summary[1:6] == ["2", "1.1", "1", "1.2", "12.9%"]
    assert "t test, two-sided, alpha 0.01" in out


def test_one_launch_that_ended_well_is_not_summarised(reproduced: Any) -> None:
    code, out = reproduced([1.0, None])
    assert code == 4
    assert "bloom-mini: 1 of 2 launches ended well; nothing to summarise" in out
    assert "detectable" not in out
    _, out = reproduced([1.0, None], "--json")
    assert json.loads(out.splitlines()[-1]) == {"run": "bloom-mini", "launches": 2, "summary": []}
    assert "launches ended well" not in reproduced([1.0])[1]


def test_a_moderated_variance_is_the_mean_of_both_weighted_by_their_degrees() -> None:
    for values, prior_variance, degrees in (
        ([1.0, 1.1, 1.4], 0.02, 4),
        ([2.0, 3.0], 0.5, 1),
        ([5.0, 4.0, 7.0, 6.0], 0.1, 0),
        ([3.0], 0.04, 7),
        ([], 0.09, 2),
    ):
        variances = [prior_variance] * degrees
        if len(values) > 1:
            variances += [statistics.variance(map(math.log, values))] * (len(values) - 1)
        deviation = moderated_deviation(values, prior_variance=prior_variance, degrees=degrees)
        assert deviation == pytest.approx(math.sqrt(statistics.fmean(variances)), rel=1e-12)
    for values in ([], [2.0]):
        with pytest.raises(ValueError, match="two values, or a prior"):
            moderated_deviation(values, prior_variance=0.1, degrees=0)
