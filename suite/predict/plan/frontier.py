"""Time against the number of accelerators, and against cost: the numbers of which no other is better in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from suite.predict.plan.question import Question
from suite.predict.plan.search import Found, search

FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
MOST_OF_A_NUMBER = 100_000  # layouts, beyond which the search of one number is guided: there are eight
Each = TypeVar("Each")


class OfNumber(NamedTuple):
    """The fastest layout of a number of accelerators."""

    ranks: int
    found: Found


def by_number(question: Question) -> list[OfNumber]:
    """The fastest fitting layout of each number of accelerators around the question's, in rising order.

    Numbers of whole nodes from a node on, and divisors of a node below; those where no layout fits are left out.
    """
    found = []
    for ranks in _around(question.ranks, question.machine.accelerators_per_node):
        result = search(question._replace(ranks=ranks), top=1, most=MOST_OF_A_NUMBER)
        if result.best:
            found.append(OfNumber(ranks, result.best[0]))
    return found


def _around(ranks: int, node: int) -> list[int]:
    sizes = {round(ranks * factor) for factor in FACTORS if ranks * factor >= 1}
    whole = {size - size % node if size >= node else size for size in sizes}
    return sorted(size for size in whole if size >= node or node % size == 0)


def frontier(points: Iterable[Each], *measures: Callable[[Each], float]) -> list[Each]:
    """The points of which no other is at least as good in every measure, where less is better, and better in one."""
    all_points: Sequence[Each] = list(points)
    values = [tuple(measure(point) for measure in measures) for point in all_points]
    return [
        point
        for point, own in zip(all_points, values, strict=True)
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) and other != own for other in values)
    ]
