"""The modified z of a value among others: the one definition and its limits, for `accept`, fleets and their report.

Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993, section 3.3.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

FACTOR = 0.6745  # the 0.75 quantile of the normal distribution: MAD to standard deviation
LIMIT = 3.5  # beyond it a value is a potential outlier
SHOWN_FROM = 3  # others, from which it is shown; it judges nothing
WARNS_FROM = 10  # others, from which it warns


def modified_z(value: float, *, median: float, deviation: float) -> float | None:
    """How many standard deviations a value is from the median, by the median absolute deviation; None where that is 0.

    z = 0.6745 (x - median) / MAD
    """
    return FACTOR * (value - median) / deviation if deviation else None


def modified_z_among(value: float, others: Sequence[float]) -> float | None:
    """The modified z of a value, given those that it is compared with; None where they do not differ."""
    median = statistics.median(others)
    return modified_z(value, median=median, deviation=statistics.median(abs(other - median) for other in others))
