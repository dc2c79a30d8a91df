"""Launches of one setup over time: segments of equal fingerprint, change points inside them, the best stretch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec

from suite.brief import Launch
from suite.setups import seconds, setup_of

LEAST_STRETCH = 5  # launches: fewer never differ by the rank test at 0.01
MOST_SEARCHED = 1000  # launches, the newest: the search takes 0.02 s for so many, and four times that for twice as many
FALSE_CHANGES = 0.01  # the share of histories of identical launches that show a change point
PERMUTATIONS = 2000
_AT_ONCE = 50  # orders: those of 1000 launches are 0.4 MB
_SEED = 1


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One launch in a history: `seconds` of its median step, and the software that it ran."""

    id: str
    started: float
    node: str
    seconds: float
    suite: str
    software: str


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Launches between two change points: places `first` to `last`, both inside, of the segment's points."""

    first: int
    last: int
    median: float
    suites: tuple[str, ...]

    @property
    def launches(self) -> int:
        """How many."""
        return self.last - self.first + 1


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one setup (run, hardware, policy, steps, seed) that ended well, oldest first.

    Args:
        setup: its fingerprint; `example` a launch that tells what it is of.
        stretches: in order, without gaps; each boundary is a change point.
        best: place of the stretch with the lowest median among those of 5 launches or more; of all where none has 5.
        searched: of the newest points; older ones belong to the first stretch, unsearched.
    """

    setup: str
    example: Launch
    points: tuple[Point, ...]
    stretches: tuple[Stretch, ...]
    best: int
    searched: int

    @property
    def change_points(self) -> list[int]:
        """Places of the launches with which a stretch begins, but for the first."""
        return [stretch.first for stretch in self.stretches[1:]]

    @property
    def best_points(self) -> tuple[Point, ...]:
        """The launches of the best stretch."""
        stretch = self.stretches[self.best]
        return self.points[stretch.first : stretch.last + 1]


def segments(launches: Iterable[Launch]) -> list[Segment]:
    """Of every setup, in the order of their first launch."""
    found = by_setup(launches)
    return segments_of(found, [change_points(values) for values in searched_times(found)])


def by_setup(launches: Iterable[Launch]) -> dict[str, list[Launch]]:
    """Launches that ended well by the fingerprint of their setup, oldest first; setups by their first launch."""
    setups: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda one: (one.started, one.id)):
        if seconds(launch) is not None:
            setups.setdefault(setup_of(launch), []).append(launch)
    return setups


def searched_times(setups: Mapping[str, Sequence[Launch]]) -> list[list[float]]:
    """Seconds of a step of each setup's launches, of those alone in which change points are searched."""
    return [[seconds(one) or 0.0 for one in own[-MOST_SEARCHED:]] for own in setups.values()]


def segments_of(setups: Mapping[str, list[Launch]], changes: Iterable[list[int]]) -> list[Segment]:
    """Of launches by setup, and the change points in the `searched_times` of each."""
    return [_segment(setup, own, found) for (setup, own), found in zip(setups.items(), changes, strict=True)]


def _segment(setup: str, launches: list[Launch], found: list[int]) -> Segment:
    points = tuple(
        Point(
            id=one.id,
            started=one.started,
            node=one.node,
            seconds=seconds(one) or 0.0,
            suite=one.suite,
            software=one.hashes.get("software", ""),
        )
        for one in launches
    )
    skipped = max(0, len(points) - MOST_SEARCHED)
    edges = [0, *(skipped + place for place in found), len(points)]
    stretches = tuple(
        Stretch(
            first=first,
            last=end - 1,
            median=statistics.median(point.seconds for point in points[first:end]),
            suites=tuple(dict.fromkeys(point.suite for point in points[first:end])),
        )
        for first, end in pairwise(edges)
    )
    long = [place for place, one in enumerate(stretches) if one.launches >= LEAST_STRETCH] or range(len(stretches))
    best = min(long, key=lambda place: stretches[place].median)
    return Segment(
        setup=setup,
        example=launches[-1],
        points=points,
        stretches=stretches,
        best=best,
        searched=len(points) - skipped,
    )


def change_points(values: Sequence[float]) -> list[int]:
    """Places where a history's level changes: each is the first launch of a new level; stretches have 5 or more.

    The ranks of the values are split where that lowers the sum of squares about the stretches' means by more than the
    penalty a split: ranks, because launches have long tails, and one that lies far out is no new level. What was split
    is searched again stretch by stretch, with ranks of its own: those of all launches say little of two levels that lie
    close where a third lies far.

    Source: Killick, Fearnhead and Eckley 2012, Optimal detection of changepoints with a linear computational cost, as
    in ruptures (KernelCPD with a linear kernel); of ranks Lung-Yut-Fong, Levy-Leduc and Cappe 2015.
    """
    edges = [0, *_splits(values), len(values)]
    if len(edges) == 2:
        return []
    inner = [first + place for first, end in pairwise(edges) for place in change_points(values[first:end])]
    return sorted([*edges[1:-1], *inner])


def _splits(values: Sequence[float]) -> list[int]:
    if len(values) < 2 * LEAST_STRETCH or len({*values}) == 1:
        return []
    import numpy
    import ruptures
    from scipy import stats

    ranks = stats.rankdata(values)
    scaled = ((ranks - ranks.mean()) / ranks.std()).reshape(-1, 1)
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_STRETCH).fit(numpy.ascontiguousarray(scaled))
    return [int(place) for place in search.predict(pen=penalty(len(values)))[:-1]]


@cache
def penalty(launches: int) -> float:
    """What a split must gain, so that 1 % of the histories of so many identical launches show a change point.

    Identical launches come in any order with the same chance, whatever they are distributed as. So it is the 0.99
    quantile, over 2000 orders of the ranks 1 ... n with mean 0 and variance 1, of the largest gain of one split:

        max over k of  S(k)^2 (1 / k + 1 / (n - k)),    S(k) the sum of the first k, 5 <= k <= n - 5

    11 for 50 launches, 13 for 1000. More than one split at a time adds nothing measurable to the 1 %.
    """
    import numpy

    chance = numpy.random.default_rng(_SEED)
    ranks = numpy.arange(1, launches + 1) - (launches + 1) / 2
    ranks /= ranks.std()
    places = numpy.arange(LEAST_STRETCH, launches - LEAST_STRETCH + 1)
    weights = 1 / places + 1 / (launches - places)
    rows = numpy.tile(ranks, (_AT_ONCE, 1))
    gains = []
    for _ in range(PERMUTATIONS // _AT_ONCE):
        sums = numpy.cumsum(chance.permuted(rows, axis=1), axis=1)[:, places - 1]
        gains.append((sums * sums * weights).max(axis=1))
    return float(numpy.quantile(numpy.concatenate(gains), 1 - FALSE_CHANGES))
