"""Launches of one setup over time: segments of equal fingerprint, change points inside them, the best stretch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from suite.metrics.change_points import change_points
from suite.records.summary import LaunchSummary
from suite.regression.comparability import seconds, setup_of

MOST_SEARCHED = 1000  # launches, the newest: the search takes 0.02 s for so many, and four times that for twice as many


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One launch in a history: `seconds` of its median step, and the software that it ran."""

    id: str
    started: float
    node: str
    seconds: float
    suite: str
    software: str


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Launches between two change points: indices `first` to `last`, both inside, of the segment's points."""

    first: int
    last: int
    median: float
    suites: tuple[str, ...]

    @property
    def launches(self) -> int:
        """Number of launches."""
        return self.last - self.first + 1


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one setup (run, hardware, policy, steps, seed) that ended well, oldest first.

    Args:
        setup: its fingerprint; `example`: one of its launches, for its names.
        stretches: in order, without gaps; each boundary is a change point.
        best: index of the stretch with the lowest median; all have 5 launches or more, or there is one.
        searched: of the newest points; older ones belong to the first stretch, unsearched.
    """

    setup: str
    example: LaunchSummary
    points: tuple[HistoryPoint, ...]
    stretches: tuple[Stretch, ...]
    best: int
    searched: int

    @property
    def change_points(self) -> list[int]:
        """Indices of the launches with which a stretch begins, but for the first."""
        return [stretch.first for stretch in self.stretches[1:]]

    @property
    def best_points(self) -> tuple[HistoryPoint, ...]:
        """The launches of the best stretch."""
        stretch = self.stretches[self.best]
        return self.points[stretch.first : stretch.last + 1]


def segments(launches: Iterable[LaunchSummary]) -> list[Segment]:
    """Segments of all setups, in the order of their first launch."""
    histories = by_setup(launches)
    return segments_of(histories, [change_points(values) for values in searched_times(histories)])


def by_setup(launches: Iterable[LaunchSummary]) -> dict[str, list[LaunchSummary]]:
    """Launches that ended well by the fingerprint of their setup, oldest first; setups by their first launch."""
    setups: dict[str, list[LaunchSummary]] = {}
    for launch in sorted(launches, key=lambda launch: (launch.started, launch.id)):
        if seconds(launch) is not None:
            setups.setdefault(setup_of(launch), []).append(launch)
    return setups


def searched_times(setups: Mapping[str, Sequence[LaunchSummary]]) -> list[list[float]]:
    """Seconds of a step of each setup's launches, of those alone in which change points are searched."""
    newest = (launches[-MOST_SEARCHED:] for launches in setups.values())
    return [[value for launch in some if (value := seconds(launch)) is not None] for some in newest]


def segments_of(setups: Mapping[str, list[LaunchSummary]], changes: Iterable[list[int]]) -> list[Segment]:
    """Segments of launches by setup, given the change points in the `searched_times` of each."""
    return [
        _segment(setup, launches, indices) for (setup, launches), indices in zip(setups.items(), changes, strict=True)
    ]


def _segment(setup: str, launches: list[LaunchSummary], changes: list[int]) -> Segment:
    points = tuple(
        HistoryPoint(
            id=launch.id,
            started=launch.started,
            node=launch.node,
            seconds=value,
            suite=launch.suite,
            software=launch.hashes.get("software", ""),
        )
        for launch in launches
        if (value := seconds(launch)) is not None
    )
    skipped = max(0, len(points) - MOST_SEARCHED)
    edges = [0, *(skipped + index for index in changes), len(points)]
    stretches = tuple(
        Stretch(
            first=first,
            last=end - 1,
            median=statistics.median(point.seconds for point in points[first:end]),
            suites=tuple(dict.fromkeys(point.suite for point in points[first:end])),
        )
        for first, end in pairwise(edges)
    )
    best = min(range(len(stretches)), key=lambda index: stretches[index].median)
    return Segment(
        setup=setup, example=launches[-1], points=points, stretches=stretches, best=best, searched=len(points) - skipped
    )
