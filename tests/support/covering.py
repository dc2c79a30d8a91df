"""A choice from a test's stacked parametrizations in which every value has its turn; the others are rare."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

MARK = "covering"
Case = Sequence[object]  # of each parametrization its value


def cover(cases: Sequence[Case], together: int) -> set[int]:
    """Numbers of cases that have all that `together` parametrizations are in any case.

    Each adds the most that is left; of several that do, the one whose values had the fewest turns.
    """
    parts = [{*itertools.combinations(enumerate(case), min(together, len(case)))} for case in cases]
    left = set().union(*parts)
    turns = Counter[tuple[int, object]]()
    chosen = set()
    while left:
        most = max(len(part & left) for part in parts)
        best = min(
            (number for number, part in enumerate(parts) if len(part & left) == most),
            key=lambda number: sum(turns[value] for value in enumerate(cases[number])),
        )
        chosen.add(best)
        left -= parts[best]
        turns.update(enumerate(cases[best]))
    return chosen


def values(item: Any) -> Case:
    """The item's values, one of each parametrization; the same objects stand for the same value."""
    marks = list(item.iter_markers("parametrize"))
    names = [mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0] for mark in marks]
    return [tuple(id(item.callspec.params[name.strip()]) for name in together) for together in names]


def make_others_rare(items: Iterable[pytest.Item]) -> None:
    """Mark what `pytest.mark.covering(together)` leaves out."""
    tests: dict[str, list[pytest.Item]] = {}
    together: dict[str, int] = {}
    for item in items:
        if mark := item.get_closest_marker(MARK):
            test = item.nodeid.partition("[")[0]
            tests.setdefault(test, []).append(item)
            (together[test],) = mark.args
    for test, cases in tests.items():
        usual = cover([values(case) for case in cases], together[test])
        for number in set(range(len(cases))) - usual:
            cases[number].add_marker("rare")
