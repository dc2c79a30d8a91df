"""Each node is held to all others of its kind, and statistics without one node are those of a list that lacks it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.acceptance.check_table import CHECKS
from suite.fleet.siblings import SiblingFigure, Siblings, least_failing


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


def failing(own: dict[str, float], others: Sequence[dict[str, float]]) -> list[str]:
    siblings = Siblings({f"n{number}": values for number, values in enumerate(others)} | {"own": own})
    return [failed.figure for failed in siblings.failures("own", own)]


def test_siblings_that_agree_by_chance_in_one_figure_are_not_held_to_it() -> None:
    """Three copies within 0.3 % of each other, while all else of these nodes spreads by a tenth."""
    siblings = [{"3 copy": 1.000, "5 link": 1.0}, {"3 copy": 0.997, "5 link": 0.9}, {"3 copy": 1.001, "5 link": 1.1}]
    alone = [{"3 copy": own["3 copy"]} for own in siblings]
    own = {"3 copy": 0.83}
    assert failing(own, alone) == ["3 copy"]
    spread = [own | {"6 busbw": 2 * own["5 link"]} for own in siblings]
    assert failing(own, spread) == []
    assert failing({"3 copy": 0.5}, spread) == ["3 copy"]


def test_a_bad_sibling_does_not_hide_a_node_that_is_bad_in_something_else() -> None:
    """One node's link and messages at a tenth; another's copies at 0.8, of siblings that differ by 1 %."""
    good = [
        {"3 copy": rate, "3 triad": rate, "5 link": rate, "6 busbw": rate} for rate in (1.0, 0.99, 1.01, 1.02, 0.98)
    ]
    with_bad = [*good, {"3 copy": 1.0, "3 triad": 1.0, "5 link": 0.1, "6 busbw": 0.1}]
    assert failing(good[0] | {"3 copy": 0.8}, with_bad) == ["3 copy"]


@pytest.mark.parametrize(("spread", "count"), [(0.001, 3), (0.03, 3), (0.03, 8), (0.2, 4), (0.05, 30)])
def test_the_limit_is_that_of_a_prediction_interval_for_all_that_is_compared(spread: float, count: int) -> None:
    chance = random.Random(count)
    values = [1.0 + spread * chance.gauss(0, 1) for _ in range(count)]
    (limit,) = Siblings({str(node): {"3 copy": value} for node, value in enumerate(values)}).limits().values()
    deviation = numpy.std(values, ddof=1) / numpy.median(values) * math.sqrt(1 + 1 / count)
    rare = max(3.0, stats.t.ppf(1 - 0.01 / count, count - 1)) * deviation
    assert (limit.median, limit.siblings) == (pytest.approx(numpy.median(values)), count)
    assert limit.share == pytest.approx(max(0.07, min(rare, max(0.3, 3 * deviation))))


def test_a_figure_that_spreads_less_than_usual_is_moderated_by_the_usual_one_as_by_three_siblings() -> None:
    """s0 = 0.1, the lower of both in the middle of 0.001, 0.1, 0.1 and 0.1: s^2 = (2 s0^2 + 3 s^2) / 5."""
    steady, usual = [1.0, 1.001, 0.999, 1.0], [1.0, 1.1, 0.9, 1.0]
    nodes = {str(n): {"3 copy": steady[n]} | {f"5 link {k}": usual[n] for k in range(3)} for n in range(4)}
    share = Siblings(nodes).limits()["3 copy"].share
    own, others = (float(numpy.std(values, ddof=1)) for values in (steady, usual))
    spread = math.sqrt((2 * others**2 + 3 * own**2) / 5)
    assert share == pytest.approx(least_failing(CHECKS[3], 4, spread=spread, comparisons=4 * 4))


def test_two_siblings_have_no_limit() -> None:
    assert Siblings({str(node): {"3 copy": 1.0 + node} for node in range(2)}).limits() == {}
