"""The modified z of a value among others."""

from __future__ import annotations

import pytest
from scipy import stats

from suite.metrics.modified_z import FACTOR, LIMIT, SHOWN_FROM, WARNS_FROM, modified_z, modified_z_among


def test_the_modified_z_is_the_distance_from_the_median_over_the_mad_in_standard_deviations() -> None:
    others = [float(value) for value in range(95, 105)]
    deviation = stats.median_abs_deviation(others, scale="normal")
    assert modified_z_among(80.0, others) == pytest.approx((80.0 - 99.5) / deviation, rel=1e-4)
    assert modified_z(80.0, median=99.5, deviation=2.5) == modified_z_among(80.0, others)
    assert modified_z_among(1.0, [2.0, 2.0, 2.0]) is None
    assert stats.norm.ppf(0.75) == pytest.approx(FACTOR, abs=5e-5)
    assert (LIMIT, SHOWN_FROM, WARNS_FROM) == (3.5, 3, 10)  # the limit is Iglewicz and Hoaglin's, section 3.3
