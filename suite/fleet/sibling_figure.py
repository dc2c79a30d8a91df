"""One figure of several nodes, and its statistics without one of them."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence


class SiblingFigure:
    """A figure of several nodes, and its statistics without one of them: each node is compared with all others.

    Args:
        values: one of each node.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)
        self._mean = statistics.fmean(values)
        self._squares = math.fsum((value - self._mean) * (value - self._mean) for value in values)
        self._deviations: dict[float, list[float]] = {}

    def count(self, without: float | None) -> int:
        """The number of values, but for the one that is left out."""
        return len(self._ordered) - (without is not None)

    def median(self, without: float | None) -> float:
        """The median of the values, but for the one that is left out, if any."""
        return _median(self._ordered, without)

    def median_deviation(self, without: float | None) -> float:
        """The median distance from the median; both of the values but for the one that is left out."""
        median = self.median(without)
        if median not in self._deviations:  # there are three medians at most, whatever is left out
            self._deviations[median] = sorted(abs(value - median) for value in self._ordered)
        return _median(self._deviations[median], None if without is None else abs(without - median))

    def variation(self, without: float | None) -> float:
        """The standard deviation (n - 1) as a share of the median, of the values but for the one that is left out."""
        squares, count = self._squares, len(self._ordered)
        if without is not None:
            squares -= (without - self._mean) * (without - self._mean) * count / (count - 1)
            count -= 1
        return math.sqrt(max(0.0, squares) / (count - 1)) / self.median(without)


def _median(ordered: Sequence[float], without: float | None) -> float:
    """The median of sorted values, of which one may be left out."""
    gone = len(ordered) if without is None else bisect_left(ordered, without)
    count = len(ordered) - (without is not None)
    lower, upper = ((count - 1) // 2, count // 2)
    return (ordered[lower + (lower >= gone)] + ordered[upper + (upper >= gone)]) / 2
