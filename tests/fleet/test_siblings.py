"""Statistics of a figure without one node are those of a list that lacks it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.fleet.siblings import SiblingFigure


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12), st.data())
def test_statistics_without_one_value_are_those_of_a_list_that_lacks_it(
    values: list[float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    others = values[:place] + values[place + 1 :]
    figure = SiblingFigure(values)
    for without, left in ((values[place], others), (None, values)):
        median = statistics.median(left)
        assert figure.count(without) == len(left)
        assert figure.median(without) == pytest.approx(median, rel=1e-12)
        distances = statistics.median(abs(value - median) for value in left)
        assert figure.median_deviation(without) == pytest.approx(distances, rel=1e-9, abs=1e-12)
        assert figure.variation(without) == pytest.approx(statistics.stdev(left) / median, rel=1e-6, abs=1e-6)
