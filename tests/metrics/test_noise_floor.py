"""The band comes from the standard error of launch medians, and that from identical launches alone."""

from __future__ import annotations

import math
import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.metrics import noise_floor as module
from suite.metrics.noise_floor import Floor, band, least_detectable, noise_floor, own_floor, standard_error
from suite.metrics.two_sample import critical_pairs
from tests.support.histories import normal_launches

groups = st.lists(st.floats(0.5, 2), min_size=10, max_size=25)


def test_nine_identical_launches_are_no_floor_and_ten_are():
    launches = normal_launches(1, 10)
    assert noise_floor([launches[:9], launches[:9]]) is None
    assert len(noise_floor([launches, launches[:9]]).deviations) == 10


@given(groups, st.sampled_from([1, 3, 7]))
def test_the_standard_error_is_that_of_every_possible_draw(values, launches):
    """With an odd number of draws the median is at most x_k where more than half of them are: binomial chances."""
    floor = noise_floor([values])
    x = numpy.asarray(floor.deviations)
    at_most = stats.binom.sf(launches // 2, launches, numpy.arange(1, len(x) + 1) / len(x))
    chances = numpy.diff(at_most, prepend=0.0)
    variance = (chances * (x - (chances * x).sum()) ** 2).sum()
    assert standard_error(floor, launches) == pytest.approx(variance**0.5, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("launches", [1, 7])
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


def test_one_launch_far_out_makes_the_spread_ten_times_as_large_and_the_band_twice():
    quiet = normal_launches(4, 30, variation=0.01)
    disturbed = [*quiet[:-1], 3.0]
    calm, hurt = noise_floor([quiet]), noise_floor([disturbed])
    assert band(noise_floor([normal_launches(1, 10, variation=1e-4)]), 7) == 0.01  # the least
    assert hurt.variation > 10 * calm.variation
    by_spread = 3 * math.sqrt(math.pi / 2 / 7)
    assert by_spread * hurt.variation > 0.25 > 0.03 > band(hurt, 7)


@given(groups, st.sampled_from([2.0**-8, 2.0, 1024.0]))
def test_unit_and_level_of_a_group_leave_the_floor(values, unit):
    scaled = noise_floor([[unit * value for value in values]])
    assert scaled.deviations == pytest.approx(noise_floor([values]).deviations, abs=1e-12)
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


def test_on_a_machine_without_noise_the_least_change_that_is_found_is_the_least_effect():
    floor = Floor(deviations=tuple((k - 9.5) * 1e-7 for k in range(20)), calibrated=True)
    assert least_detectable(floor, 7, 7, family=1, rerun=7) == pytest.approx(0.02, abs=1e-5)


def test_too_few_launches_or_a_floor_of_one_value_find_nothing():
    floor = Floor(deviations=(-0.01, 0.0, 0.01), calibrated=True)
    assert least_detectable(floor, 3, 3, family=1, rerun=7) is None
    assert least_detectable(floor, 7, 7, family=1, rerun=3) is None
    assert least_detectable(floor, 7, 7, family=10**6, rerun=7) is None
    assert least_detectable(Floor(deviations=(0.1, 0.1), calibrated=True), 7, 7, family=1, rerun=7) is None
    assert least_detectable(floor, 7, 7, family=1, rerun=7) is not None


@pytest.mark.parametrize(
    ("before", "after", "rerun", "spread", "family"),
    [(10, 7, 7, 0.01, 1), (5, 9, 6, 0.04, 1), (5, 5, 15, 0.02, 6)],  # in the last one the rank test decides
)
def test_the_least_change_is_that_of_a_simulation_one_comparison_at_a_time(before, after, rerun, spread, family):
    """The docstring's conditions with loops, other draws, and pairs counted by comparing each with each."""
    floor = noise_floor([normal_launches(5, 24, variation=spread)])
    chance = numpy.random.default_rng(11)
    known = len(floor.deviations)

    def needed(machine, sizes, count, width):
        x, y = (chance.choice(machine, size) for size in sizes)
        apart = sorted((a - b for a in x for b in y), reverse=True)
        drawn = (numpy.median(chance.choice(values, (200, len(values))), axis=1) for values in (y, x))
        medians = next(drawn) - next(drawn)
        effect = statistics.median(y) - statistics.median(x)
        return max(apart[count], math.log1p(width) - numpy.quantile(medians, 0.025), math.log(1.02) - effect)

    first, again = critical_pairs(before, after, family), critical_pairs(rerun, rerun, 1)
    moves = []
    for _ in range(400):
        machine = chance.choice(floor.deviations, known) * math.sqrt(known / (known - 1))
        one = needed(machine, (before, after), first, band(floor, min(before, after)))
        moves.append(max(one, needed(machine, (rerun, rerun), again, band(floor, rerun))))
    expected = math.expm1(numpy.quantile(moves, 0.9))
    # 400 draws: the 0.9 quantile lies between those of 0.87 and 0.93 (two standard errors, and those of 1000 draws)
    low, high = (math.expm1(numpy.quantile(moves, share)) for share in (0.86, 0.94))
    assert low <= least_detectable(floor, before, after, family=family, rerun=rerun) <= high
    assert low < expected < high


@pytest.mark.parametrize("known", [2, 3, 5])
def test_machines_are_drawn_with_the_spread_that_so_few_launches_let_expect(
    monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """The variance of drawn machines is the unbiased one: sum of squares / (n - 1)."""
    drawn = []
    needed = module._needed

    def noted(chance, machines, *rest):
        drawn.append(machines)
        return needed(chance, machines, *rest)

    monkeypatch.setattr(module, "_needed", noted)
    deviations = tuple(0.01 * (2 * place - known + 1) for place in range(known))
    least_detectable(Floor(deviations=deviations, calibrated=True), before=7, after=7, family=1, rerun=7)
    (machines, *_) = drawn
    expected = sum(each**2 for each in deviations) / (known - 1)
    assert numpy.mean(numpy.square(machines)) == pytest.approx(expected, rel=0.1)
