"""Slow-downs planted into recorded launches of identical code are found as promised; nothing is found elsewhere."""

from __future__ import annotations

import json

import msgspec
import pytest

from benchmarks.planted_changes import SAMPLES, Counted, Samples, as_promised, experiment, main
from tests.support.histories import normal_launches


def small(medians, *, launches=7, calibration=14, comparisons=20):
    """The experiment in small: counts by multiple."""
    counts = experiment(
        medians, comparisons=comparisons, launches=launches, calibration=calibration, seed=3, calibrations=4
    )
    return {one.multiple: one for one in counts}


def test_in_recorded_launches_nothing_false_is_found_and_every_change_of_twice_the_least_is():
    medians = msgspec.json.decode(SAMPLES.read_bytes(), type=Samples).medians
    counts = small(medians)
    assert counts[0].regressions == 0
    assert counts[2].regressions == counts[4].regressions == 20
    assert small(medians) == counts


@pytest.mark.rare
def test_recorded_launches_show_the_promised_power_and_no_false_regression(capsys):
    """`nox -s planted` with 100 comparisons of each multiple; three standard errors of 90 are 9."""
    assert main(["--comparisons", "100", "--json"]) in (0, 1)
    counts = {one["multiple"]: one for one in json.loads(capsys.readouterr().out)["counts"]}
    assert counts[0]["regressions"] <= 1
    assert counts[1]["regressions"] >= 81
    assert counts[2]["regressions"] == counts[4]["regressions"] == 100


def test_too_few_launches_to_deal_are_refused():
    with pytest.raises(ValueError, match="14 \\+ 4 x 7 launches are needed, got 41"):
        small(normal_launches(1, 41))


def counted(multiple, regressions):
    return Counted(
        multiple=multiple, slow_down=0.1, comparisons=100, by_test=0, by_rule=0, regressions=regressions, improved=0
    )


@pytest.mark.parametrize(
    ("false", "found", "promised"), [(1, 90, True), (2, 90, False), (0, 89, False), (0, 100, True)]
)
def test_the_promise_is_one_false_regression_in_100_and_90_found(false, found, promised):
    assert as_promised([counted(0, false), counted(1, found)]) is promised


@pytest.mark.parametrize("text", ["", "{}", '{"launches": []}'])
def test_samples_that_do_not_do_are_one_line(text, tmp_path, capsys):
    path = tmp_path / "samples.json"
    path.write_text(text)
    assert main(["--samples", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: ")
