"""Two sets of launches: scipy's tests and intervals, whatever the order, in any unit, from either side."""

from __future__ import annotations

import math
from itertools import combinations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from suite.metrics.two_sample import (
    adjusted,
    critical_pairs,
    difference,
    largest_family,
    least_p,
    rank_orders,
    rank_test_p,
)

times = st.lists(st.floats(0.01, 100), min_size=2, max_size=9)
few = settings(max_examples=15)  # each takes two bootstraps


@few
@given(times, times, st.randoms(), st.sampled_from([2.0**-10, 0.5, 4.0, 2.0**20]))
def test_order_of_launches_and_unit_of_time_do_not_matter(before, after, chance, unit):
    other = [[unit * value for value in chance.sample(values, len(values))] for values in (before, after)]
    assert difference(*other) == difference(before, after)


@few
@given(times, times)
def test_swapped_sets_give_the_inverse_and_intervals_lie_between_the_extremes(before, after):
    one, other = difference(before, after), difference(after, before)
    assert one.p == pytest.approx(other.p, rel=1e-12)
    assert one.ratio == pytest.approx(1 / other.ratio, rel=1e-12)
    low, high = other.interval
    assert one.interval == pytest.approx((1 / high, 1 / low), rel=1e-12)
    assert min(before) / max(after) <= low * (1 + 1e-12)
    assert low <= high
    assert high <= max(before) / min(after) * (1 + 1e-12)


@pytest.mark.parametrize("sizes", [(7, 7), (5, 7), (6, 8)])
def test_the_interval_is_that_of_every_possible_resample(sizes):
    """The bootstrap's own distribution, counted: medians of all n^n draws have the chances of order statistics."""
    chance = numpy.random.default_rng(2)
    before, after = chance.normal(1, 0.02, sizes[0]), chance.normal(1.03, 0.02, sizes[1])
    low, high = difference(list(before), list(after)).interval
    ratios, weights = [], []
    for x, own in medians(before):
        for y, other in medians(after):
            ratios.append(y / x)
            weights.append(own * other)
    order = numpy.argsort(ratios)
    cumulated = numpy.cumsum(numpy.asarray(weights)[order])
    assert cumulated[-1] == pytest.approx(1)
    sampling = 3 * math.sqrt(0.025 * 0.975 / 9999)  # of the share of 9999 resamples below an end
    for end, share in ((low, 0.025), (high, 0.975)):
        place = numpy.searchsorted(numpy.asarray(ratios)[order], end * (1 - 1e-9))
        below = cumulated[place - 1] if place else 0.0
        at_or_below = cumulated[numpy.searchsorted(numpy.asarray(ratios)[order], end * (1 + 1e-9)) - 1]
        assert below - sampling <= share <= at_or_below + sampling


def medians(values):
    """Every median of a resample, with its chance."""
    n, ordered = len(values), sorted(values)

    def below(k):  # the chance that a draw's place is at most k
        return (k + 1) / n

    def chance(lower, upper):
        """Chance that the two middle draws of n (even) are at places `lower` and `upper`, or the middle one at both."""
        if n % 2:
            half = (n + 1) // 2
            at = stats.binom.sf(half - 1, n, below(lower)) - stats.binom.sf(half - 1, n, below(lower - 1))
            return at if lower == upper else 0.0
        half = n // 2
        if lower == upper:
            total = 0.0
            for i in range(half):  # i draws below, j above
                for j in range(half):
                    total += stats.multinomial.pmf([i, n - i - j, j], n, [lower / n, 1 / n, (n - 1 - lower) / n])
            return total
        # exactly half at or below `lower` with one there, half at or above `upper` with one there
        left = below(lower) ** half - below(lower - 1) ** half
        right = (1 - upper / n) ** half - (1 - (upper + 1) / n) ** half
        return math.comb(n, half) * left * right

    return [((ordered[i] + ordered[j]) / 2, chance(i, j)) for i in range(n) for j in range(i, n) if chance(i, j) > 0]


def test_p_is_scipys_exact_one_and_of_ties_the_normal_one():
    before, after = [1.0, 1.2, 1.4, 1.6, 1.8], [1.3, 1.5, 1.7, 1.9, 2.1]
    assert rank_test_p(before, after) == stats.mannwhitneyu(before, after, method="exact").pvalue
    tied = [1.0, 1.0, 1.4, 1.6, 1.8]
    assert rank_test_p(before, tied) == stats.mannwhitneyu(before, tied, method="asymptotic").pvalue


def test_the_smallest_p_is_that_of_sets_apart():
    for n, m in ((3, 3), (5, 7), (10, 7)):
        apart = stats.mannwhitneyu(range(n), range(100, 100 + m), method="exact").pvalue
        assert least_p(n, m) == pytest.approx(apart, rel=1e-12)


def test_one_true_change_among_forty_is_seen_at_7_launches_and_at_5_among_6():
    """Among forty p of which 39 are large, q of the smallest is 40 p: 40 * 2 / C(14, 7) = 0.0233."""
    assert adjusted([2 / 3432] + 39 * [0.5])[0] == pytest.approx(40 * 2 / 3432)
    assert adjusted([2 / 252] + 39 * [0.5])[0] > 0.05
    for launches, most in ((7, 85), (5, 6), (4, 1)):
        smallest = least_p(launches, launches)
        assert largest_family(launches, launches) == most
        assert adjusted([smallest] + (most - 1) * [1.0])[0] < 0.05 <= adjusted([smallest] + most * [1.0])[0]
    assert largest_family(3, 3) == 0


@pytest.mark.parametrize(("sizes", "family"), [((5, 5), 6), ((7, 7), 1), ((7, 7), 40), ((4, 6), 1)])
def test_the_critical_pairs_are_where_scipys_p_crosses(sizes, family):
    """Every order of two sets, sorted by the number of pairs in the wrong order."""
    most = critical_pairs(*sizes, family)
    n, m = sizes
    seen = {}
    for places in combinations(range(n + m), n):
        after = [place for place in range(n + m) if place not in places]
        wrong = sum(x > y for x in places for y in after)
        if wrong not in seen and wrong in (most, most + 1):
            seen[wrong] = family * stats.mannwhitneyu(places, after, method="exact").pvalue
    assert seen[most] < 0.05 <= seen[most + 1]


def test_where_sets_never_differ_or_p_is_exactly_the_level_no_pair_is_critical():
    assert least_p(1, 39) == 0.05
    assert [critical_pairs(*case) for case in ((3, 3, 1), (5, 5, 7), (1, 39), (1, 40))] == [-1, -1, -1, 0]


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=50))
def test_q_is_benjamini_and_hochbergs(p):
    ordered = sorted(range(len(p)), key=p.__getitem__)
    expected, least = [0.0] * len(p), 1.0
    for rank, place in reversed(list(enumerate(ordered, start=1))):
        least = min(least, p[place] * len(p) / rank)
        expected[place] = least
    assert adjusted(p) == pytest.approx(expected)


def test_a_single_launch_has_no_interval_and_no_small_p_and_sets_without_a_ratio_are_refused():
    one = difference([1.0], [2.0])
    assert (one.ratio, one.interval, one.p) == (2.0, None, 1.0)
    for sets in (([], [1.0]), ([1.0], []), ([0.0], [1.0]), ([1.0], [-1.0])):
        with pytest.raises(ValueError, match="above 0"):
            difference(*sets)


@pytest.mark.rare
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says():
    """Medians of 7 normal launches; within three standard errors of 1000 pairs."""
    chance = numpy.random.default_rng(5)
    held = 0
    for _ in range(1000):
        low, high = difference(list(chance.normal(1, 0.01, 7)), list(chance.normal(1, 0.01, 7))).interval
        held += low <= 1 <= high
    assert abs(held / 1000 - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (4, 3), (5, 5)])
def test_rank_orders_are_those_of_all_orders_counted_one_by_one(n, m):
    counts = [0] * (n * m + 1)
    for places in combinations(range(n + m), n):
        others = [place for place in range(n + m) if place not in places]
        counts[sum(one > other for one in places for other in others)] += 1
    assert rank_orders(n, m) == counts
