"""The band comes from the standard error of launch medians, and that from identical launches alone."""

from __future__ import annotations

import math
import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.metrics.noise_floor import Floor, band, noise_floor, own_floor, standard_error
from tests.support.histories import normal_launches

groups = st.lists(st.floats(0.5, 2), min_size=10, max_size=25)


def test_nine_identical_launches_are_no_floor_and_ten_are():
    launches = normal_launches(1, 10)
    assert noise_floor([launches[:9], launches[:9]]) is None
    assert len(noise_floor([launches, launches[:9]]).deviations) == 10


@given(groups, st.sampled_from([1, 3, 7]))
def test_the_standard_error_is_that_of_every_possible_draw(values, launches):
    """Of an odd number of draws the median is at most x_k where more than half of them are: binomial chances."""
    floor = noise_floor([values])
    x = numpy.asarray(floor.deviations)
    at_most = stats.binom.sf(launches // 2, launches, numpy.arange(1, len(x) + 1) / len(x))
    chances = numpy.diff(at_most, prepend=0.0)
    variance = (chances * (x - (chances * x).sum()) ** 2).sum()
    assert standard_error(floor, launches) == pytest.approx(variance**0.5, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("launches", [1, 5, 7])
def test_the_standard_error_is_the_spread_of_medians_that_are_drawn(launches):
    floor = noise_floor([normal_launches(3, 12, variation=0.03)])
    drawn = numpy.random.default_rng(1).choice(floor.deviations, (40_000, launches))
    spread = numpy.median(drawn, axis=1).std()
    assert standard_error(floor, launches) == pytest.approx(spread, rel=0.02)  # 3 / sqrt(2 * 40,000) and tails


def test_at_a_spread_of_1_percent_and_7_launches_the_band_is_below_what_7_launches_show():
    quantiles = [statistics.NormalDist(0, 0.01).inv_cdf((k + 0.5) / 4000) for k in range(4000)]
    floor = Floor(deviations=tuple(quantiles), calibrated=True)
    assert standard_error(floor, 7) == pytest.approx(0.00459, abs=1e-5)
    assert band(floor, 7) == pytest.approx(0.0138, abs=1e-4)
    assert standard_error(floor, 1) == pytest.approx(0.01, rel=1e-3)
    assert 3 * standard_error(floor, 1) > 0.024 > band(floor, 7)


def test_a_quiet_machine_has_a_band_of_1_percent():
    assert band(noise_floor([normal_launches(1, 10, variation=1e-4)]), 7) == 0.01


def test_one_launch_far_out_makes_the_spread_ten_times_as_large_and_the_band_twice():
    quiet = normal_launches(4, 30, variation=0.01)
    disturbed = [*quiet[:-1], 3.0]
    calm, hurt = noise_floor([quiet]), noise_floor([disturbed])
    assert hurt.variation > 10 * calm.variation
    by_spread = 3 * math.sqrt(math.pi / 2 / 7)
    assert by_spread * hurt.variation > 0.25 > 0.03 > band(hurt, 7)


@given(groups, st.sampled_from([2.0**-8, 2.0, 1024.0]))
def test_another_unit_or_level_leaves_the_floor(values, unit):
    scaled = noise_floor([[unit * value for value in values]])
    assert scaled.deviations == pytest.approx(noise_floor([values]).deviations, abs=1e-12)


def test_levels_of_groups_do_not_widen_the_floor():
    low, high = normal_launches(1, 12), normal_launches(2, 12, median=5.0)
    assert noise_floor([low, high]).variation < 0.02


def test_without_a_floor_the_sets_themselves_tell_their_spread_and_are_no_calibration():
    floor = own_floor([1.0, 1.1, 1.2], [2.0, 2.2])
    assert not floor.calibrated
    assert len(floor.deviations) == 5
    assert own_floor([1.0], [2.0]) is None


def test_deviations_are_widened_for_the_median_that_they_gave():
    values = [math.exp(place) for place in range(-5, 6)]
    assert noise_floor([values]).deviations[-1] == pytest.approx(5 * math.sqrt(11 / 10))
