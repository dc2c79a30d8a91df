"""A regression is what all conditions agree on, twice; each condition alone can stop it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.metrics.noise_floor import least_detectable, noise_floor
from suite.metrics.two_sample import TwoSampleDifference, rank_test_p
from suite.regression.verdicts import ChangeVerdict, Sets, _confirmed, judged
from tests.support.histories import normal_launches

FLOOR = noise_floor([normal_launches(9, 40)])
BEFORE = tuple(normal_launches(1, 7))
AGAIN = tuple(normal_launches(3, 7))


def moved(seed, factor, launches=7):
    return tuple(normal_launches(seed, launches, median=factor))


def slower(factor=1.08, *, rerun=1.08, **changes):
    """Sets of which the later one takes `factor` times as long, and in the re-run `rerun` times."""
    again = None if rerun is None else (AGAIN, moved(4, rerun))
    sets = Sets(before=BEFORE, after=moved(2, factor), floor=FLOOR, rerun=again)
    return msgspec.structs.replace(sets, **changes)


def verdict(sets, others=()):
    return judged([sets, *others])[0]


def test_a_change_that_the_rerun_confirms_is_a_regression_and_downwards_an_improvement():
    found = verdict(slower())
    assert (found.change, found.why) == (ChangeVerdict.REGRESSION, "confirmed in turn: 8.3 % slower")
    assert found.difference.ratio == pytest.approx(1.08, abs=0.02)
    assert 0.01 < found.band < 0.02 < found.least_detectable < 0.05
    assert verdict(slower(1 / 1.08, rerun=1 / 1.08)).change is ChangeVerdict.IMPROVED
    (strict,) = judged([slower()], limit=0.001)  # however little else would be seen
    assert strict.change is ChangeVerdict.REGRESSION


def test_a_change_that_no_rerun_confirms_is_no_regression():
    unconfirmed = verdict(slower(rerun=1.0))
    assert unconfirmed.change is ChangeVerdict.NOISE
    assert unconfirmed.why.startswith("not confirmed in turn")
    assert verdict(slower(rerun=1 / 1.08)).change is ChangeVerdict.INCONCLUSIVE
    before = verdict(slower(rerun=None))
    assert (before.change, before.to_confirm) == (ChangeVerdict.INCONCLUSIVE, True)
    never = verdict(slower(rerun=None, no_rerun="the old code is not here"))
    words = (ChangeVerdict.INCONCLUSIVE, "the old code is not here", False)
    assert (never.change, never.why, never.to_confirm) == words


def test_without_ten_identical_launches_nothing_is_judged():
    found = verdict(slower(floor=None))
    assert found.change is ChangeVerdict.UNCALIBRATED
    assert found.least_detectable is not None


def test_less_than_2_percent_is_noise_however_sure():
    quiet = noise_floor([normal_launches(9, 40, variation=1e-4)])
    before, after = (tuple(normal_launches(n, 7, variation=1e-4, median=m)) for n, m in ((1, 1.0), (2, 1.019)))
    sets = Sets(before=before, after=after, floor=quiet, rerun=(before, after))
    found = verdict(sets)
    assert (found.change, found.q < 0.05, found.band) == (ChangeVerdict.NOISE, True, 0.01)
    once = verdict(msgspec.structs.replace(sets, rerun=None))
    assert (once.change, once.to_confirm) == (ChangeVerdict.NOISE, False)
    more = tuple(value * 1.002 for value in after)
    assert verdict(msgspec.structs.replace(sets, after=more, rerun=(before, more))).change is ChangeVerdict.REGRESSION


def test_an_interval_that_reaches_into_the_band_is_inconclusive_and_one_within_it_noise():
    found = verdict(slower(1.025))
    assert found.q < 0.05
    assert found.change is ChangeVerdict.INCONCLUSIVE
    assert verdict(slower(1.002)).change is ChangeVerdict.NOISE  # the sets overlap
    # on a machine whose launches spread by 10 %, launches that happen to lie close prove nothing
    loud = noise_floor([normal_launches(9, 40, variation=0.1)])
    (found,) = judged([slower(floor=loud)], limit=1.0)
    assert found.change is ChangeVerdict.NOISE


@pytest.mark.parametrize(("variation", "decided"), [(0.01, True), (0.1, False)])
def test_noise_says_nothing_where_a_slow_down_by_the_limit_would_look_the_same(variation, decided):
    floor = noise_floor([normal_launches(9, 40, variation=variation)])
    found = verdict(Sets(before=BEFORE, after=AGAIN, floor=floor))
    assert (found.least_detectable <= 0.1) == decided
    assert found.change is (ChangeVerdict.NOISE if decided else ChangeVerdict.INCONCLUSIVE)
    if not decided:
        assert found.why.endswith(
            f"only one of {found.least_detectable:.0%} or more is found in 9 of 10 checks, asked for 10%"
        )
    (at_limit,) = judged([Sets(before=BEFORE, after=AGAIN, floor=floor)], limit=found.least_detectable)
    assert at_limit.change is ChangeVerdict.NOISE


def unchanged(count, launches=7):
    """Members of a family in which nothing changed."""
    half = [tuple(normal_launches(100 + n, launches)) for n in range(2 * count)]
    found = [Sets(before=a, after=b, floor=FLOOR) for a, b in zip(half[::2], half[1::2], strict=True)]
    return [one for one in found if rank_test_p(one.before, one.after) > 0.4]


def test_one_true_change_among_forty_is_found_at_7_launches():
    others = unchanged(120)[:39]
    assert len(others) == 39
    found = judged([slower(), *others])
    assert [one.change for one in found] == [ChangeVerdict.REGRESSION] + 39 * [ChangeVerdict.NOISE]
    assert found[0].q == pytest.approx(40 * 2 / 3432)
    assert {one.family for one in found} == {40}
    assert judged([]) == []


def test_one_true_change_among_seven_is_not_found_at_5_launches_and_the_verdict_says_why():
    sets = msgspec.structs.replace(slower(), before=BEFORE[:5], after=moved(2, 1.3, 5))
    assert verdict(sets).change is ChangeVerdict.REGRESSION
    found = verdict(sets, unchanged(40, launches=5)[:6])
    assert found.change is ChangeVerdict.INCONCLUSIVE
    assert found.why == "5 and 5 launches show one change among 6 quantities at most, here are 7"
    assert found.least_detectable is None


values = st.floats(0.5, 2.0)
sets_of_7 = st.lists(values, min_size=7, max_size=7).map(tuple)
few = settings(max_examples=15)


@few
@given(sets_of_7)
def test_identical_sets_are_never_a_regression(launches):
    found = verdict(Sets(before=launches, after=launches, floor=FLOOR, rerun=(launches, launches)))
    assert found.change is ChangeVerdict.NOISE


SWAPPED = {ChangeVerdict.REGRESSION: ChangeVerdict.IMPROVED, ChangeVerdict.IMPROVED: ChangeVerdict.REGRESSION}


@few
@given(st.integers(0, 99), st.floats(0.9, 1.12))
def test_swapping_baseline_and_now_swaps_regression_and_improved(seed, factor):
    first, again = ((tuple(normal_launches(seed + n, 7)), moved(seed + n + 200, factor)) for n in (0, 100))
    there = Sets(before=first[0], after=first[1], floor=FLOOR, rerun=again)
    back = Sets(before=first[1], after=first[0], floor=FLOOR, rerun=(again[1], again[0]))
    forth, other = verdict(there).change, verdict(back).change
    assert other is SWAPPED.get(forth, forth)


@few
@given(st.integers(0, 99), st.sampled_from([2.0**-6, 8.0]), st.randoms())
def test_order_and_unit_of_time_change_no_verdict(seed, unit, chance):
    sets = msgspec.structs.replace(slower(), after=moved(seed, 1.04), rerun=(AGAIN, moved(seed + 1, 1.05)))
    other = Sets(
        before=tuple(unit * value for value in chance.sample(sets.before, 7)),
        after=tuple(unit * value for value in chance.sample(sets.after, 7)),
        floor=FLOOR,
        rerun=tuple(tuple(unit * value for value in chance.sample(one, 7)) for one in sets.rerun),
    )
    assert verdict(other) == verdict(sets)


def test_more_launches_show_smaller_changes_and_a_larger_family_needs_larger_ones():
    of_launches = [least_detectable(FLOOR, n, n, family=1, rerun=n) for n in (5, 7, 9, 13)]
    assert of_launches == sorted(of_launches, reverse=True)
    assert of_launches[0] > 1.5 * of_launches[-1]
    of_families = [least_detectable(FLOOR, 7, 7, family=family, rerun=7) for family in (1, 40, 85)]
    assert of_families == sorted(of_families)
    assert least_detectable(FLOOR, 7, 7, family=86, rerun=7) is None


def test_what_is_printed_as_detectable_is_found_in_nine_of_ten_comparisons():
    """Fresh normal launches, not the floor's own; 100 comparisons: three standard errors of 0.9 are 0.09."""
    least = least_detectable(FLOOR, 7, 7, family=1, rerun=7)
    found = 0
    for seed in range(0, 400, 4):
        sets = [tuple(normal_launches(1000 + seed + n, 7, median=1 + least * (n % 2))) for n in range(4)]
        one = verdict(Sets(before=sets[0], after=sets[1], floor=FLOOR, rerun=(sets[2], sets[3])))
        found += one.change is ChangeVerdict.REGRESSION
    assert found / 100 >= 0.81


def difference_of(ratio, interval, p):
    return TwoSampleDifference(ratio=ratio, interval=interval, p=p)


BAND = 0.05


@pytest.mark.parametrize(
    ("ratio", "interval", "p", "change"),
    [
        (1.08, (1.06, 1.10), 0.049, ChangeVerdict.REGRESSION),
        (1.08, (1.06, 1.10), 0.05, ChangeVerdict.NOISE),
        (1.08, (1.05, 1.10), 0.01, ChangeVerdict.INCONCLUSIVE),  # reaches into the band
        (1.08, None, 0.01, ChangeVerdict.INCONCLUSIVE),
        (1.019, (1.06, 1.10), 0.01, ChangeVerdict.NOISE),
        (1.02, (1.06, 1.10), 0.01, ChangeVerdict.REGRESSION),
        (1.03, (1.01, 1.05), 0.01, ChangeVerdict.NOISE),  # within the band, the edge too
        (0.97, (1 / 1.05, 1.02), 0.01, ChangeVerdict.NOISE),
        (0.97, (1 / 1.051, 1.02), 0.01, ChangeVerdict.INCONCLUSIVE),
        (0.90, (0.88, 0.92), 0.01, ChangeVerdict.INCONCLUSIVE),  # the other way
    ],
)
def test_a_slowdown_is_confirmed_by_a_rerun_that_meets_every_condition(ratio, interval, p, change):
    slower = difference_of(1.08, (1.06, 1.10), 0.001)
    found, why, more = _confirmed(slower, difference_of(ratio, interval, p), BAND)
    assert (found, more) == (change, False)
    assert f"{100 * abs(ratio - 1):.1f} % {'slower' if ratio > 1 else 'faster'}" in why
    if change is ChangeVerdict.REGRESSION:
        faster = difference_of(1 / 1.08, (1 / 1.10, 1 / 1.06), 0.001)
        mirrored = difference_of(1 / ratio, (1 / interval[1], 1 / interval[0]), p)
        assert _confirmed(faster, mirrored, BAND)[0] is ChangeVerdict.IMPROVED
        assert _confirmed(faster, difference_of(ratio, interval, p), BAND)[0] is ChangeVerdict.INCONCLUSIVE


def test_a_speed_up_that_reaches_the_edge_of_the_band_is_not_beyond_it():
    band = 0.25  # whose reciprocals are exact
    faster = difference_of(0.7, (0.6, 0.75), 0.001)
    for high, change in ((0.8, ChangeVerdict.INCONCLUSIVE), (0.799, ChangeVerdict.IMPROVED)):
        assert _confirmed(faster, difference_of(0.7, (0.6, high), 0.01), band)[0] is change


def test_a_rerun_counts_with_as_many_launches_as_its_smaller_side_has():
    sets = Sets(before=BEFORE, after=AGAIN, floor=FLOOR)
    plenty = judged([sets])[0].least_detectable
    few = judged([msgspec.structs.replace(sets, rerun=(BEFORE, AGAIN[:4]))])[0].least_detectable
    also_few = judged([msgspec.structs.replace(sets, rerun=(BEFORE[:4], AGAIN))])[0].least_detectable
    assert few == also_few == least_detectable(FLOOR, 7, 7, family=1, rerun=4)
    assert plenty == least_detectable(FLOOR, 7, 7, family=1, rerun=7)
    assert few > plenty


def test_too_few_launches_say_how_many_quantities_they_could_tell_apart():
    def spaced(count, *, step=0.01):
        return tuple(1 + step * n for n in range(count))

    def shuffled(count):
        return spaced(count)[::2] + spaced(count)[1::2]

    def why(count, family):
        return judged([Sets(before=spaced(count), after=shuffled(count), floor=FLOOR)] * family, limit=9.0)[0].why

    # least p of 5 and 5: 2 / 252, of 4 and 4: 2 / 70; of 3 and 3 it is never below 0.05
    assert why(2, 1) == "2 and 2 launches never differ by the rank test"
    assert why(3, 1) == "3 and 3 launches never differ by the rank test"
    assert why(4, 2) == "4 and 4 launches show one change among 1 quantities at most, here are 2"
    assert "no difference" in why(5, 6)
    assert why(5, 7) == "5 and 5 launches show one change among 6 quantities at most, here are 7"
    # least p of 3 and 7: 2 / 120; the q of one change among three is 0.05, which is not below it
    apart = Sets(before=spaced(3), after=tuple(2 + n / 100 for n in range(7)), floor=FLOOR)
    mixed = Sets(before=(1.0, 1.03, 1.06), after=(1.01, 1.02, 1.025, 1.035, 1.04, 1.045, 1.07), floor=FLOOR)
    first = judged([apart, mixed, mixed])[0]
    assert first.q == 0.05
    assert first.why == "3 and 7 launches show one change among 2 quantities at most, here are 3"


def test_where_a_rerun_of_so_few_launches_can_confirm_nothing_noise_is_inconclusive():
    """30 and 3 launches can differ, and 3 and 3 of a re-run never do."""
    sets = Sets(before=tuple(normal_launches(5, 30)), after=tuple(normal_launches(6, 3)), floor=FLOOR)
    (found,) = judged([sets])
    assert (found.change, found.least_detectable, found.to_confirm) == (ChangeVerdict.INCONCLUSIVE, None, False)
    assert found.why.endswith("; no slow-down at all is found in 9 of 10 checks, asked for 10%")
