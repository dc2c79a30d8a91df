"""A baseline says how far its launches spread, and which slow-down a check next to it will find."""

from __future__ import annotations

import math
import statistics

import pytest

from suite.metrics.noise_floor import least_detectable, noise_floor
from suite.records.summary import Values
from suite.regression.accepted_spread import accepted_spread, spread_lines
from tests.support.histories import launch_of, normal_launches

# tokens/s of ten launches of one code on a shared machine, as somebody accepted them
ACCEPTED = (231, 410, 655, 980, 1240, 1630, 2210, 2890, 3410, 3779)


def launches_of(seconds, tokens=1000.0):
    keys = {("step_seconds", None, None, None): 0, ("tokens_per_second", None, None, None): 1}
    return [launch_of(n, 1.0, measured=Values(keys, (value, tokens / value))) for n, value in enumerate(seconds)]


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch):
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 100)


def test_a_quiet_baseline_says_what_the_usual_check_will_find():
    launches = launches_of(normal_launches(3, 10))
    found = accepted_spread(launches, launches, limit=0.1)
    values = [launch.measured.of("step_seconds") for launch in launches]
    floor = noise_floor([values])
    assert found.median_seconds == statistics.median(values)
    assert found.least_detectable == least_detectable(floor, 10, 7, family=1, rerun=7)
    deviations = [math.log(value / statistics.median(values)) for value in values]
    assert found.spread == pytest.approx(math.sqrt(statistics.fmean(d * d for d in deviations) * 10 / 9))
    assert (found.is_useless, found.calibrated, found.enough_launches) == (False, True, 7)
    first, second = spread_lines(found)
    assert first.startswith(f"steps from {min(values):.4g} to {max(values):.4g} s (")
    assert f"spread {found.spread:.1%} (root mean square of the launches' deviations from their median)" in first
    words = f"a check of 7 launches will find a step slower by {found.least_detectable:.0%} or more in 9 of 10 cases"
    assert second == words


def test_a_baseline_of_launches_that_spread_sixteenfold_is_called_useless():
    launches = launches_of([1000 / rate for rate in ACCEPTED])
    found = accepted_spread(launches, launches, limit=0.1)
    lines = spread_lines(found)
    assert "(231 to 3,779 tokens/s); spread" in lines[0]
    assert found.spread > 0.5
    assert found.is_useless
    assert lines[-1] == (
        "warning: with this baseline a check of 7 launches shows no slow-down by 10%, and not even 60 do: accept "
        "launches of a quieter machine, or more of them (--launches 20 --accept)"
    )


def test_where_more_launches_would_do_the_warning_names_them():
    launches = launches_of(normal_launches(3, 30, variation=0.03))
    found = accepted_spread(launches, launches, limit=0.08)
    assert found.enough_launches in (10, 15, 20)
    assert spread_lines(found)[-1].endswith(f"{found.enough_launches} launches do: --launches {found.enough_launches}")


def test_fewer_than_ten_launches_are_a_guess_unless_the_machine_is_known():
    launches = launches_of(normal_launches(3, 7))
    alone = accepted_spread(launches, launches, limit=0.1)
    assert not alone.calibrated
    words = spread_lines(alone)
    assert words[1].endswith("in 9 of 10 cases, if the noise is that of these launches")
    assert words[2] == "until 10 identical launches of an unmodified checkout are recorded, checks decide no times"
    earlier = launches_of(normal_launches(4, 10))
    assert accepted_spread(launches, [*launches, *earlier], limit=0.1).calibrated


def test_launches_without_times_or_alone_have_no_spread():
    one = launches_of([1.0])
    found = accepted_spread(one, one, limit=0.1)
    assert (found.spread, found.least_detectable, found.is_useless) == (None, None, True)
    assert "spread unknown, of one launch" in spread_lines(found)[0]
    still = [launch_of(1, None)]
    (line,) = spread_lines(accepted_spread(still, still, limit=0.1))
    assert line == "no launch has a time: checks next to this baseline compare counts alone"
