from __future__ import annotations

from typing import Any

import numpy
from hypothesis import given
from hypothesis import strategies as st

from suite.predict.analytic.elementwise import by_row, ceil_division, chosen, larger, smaller

NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS, NUMBERS)
def test_numbers_come_back_as_they_are(a: float, b: float) -> None:
    assert larger(a, b) is (a if a >= b else b)
    assert smaller(a, b) is (a if a <= b else b)
    assert chosen(a < b, a, b) is (a if a < b else b)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=9))
def test_arrays_give_what_each_number_gives(pairs: list[tuple[float, float]]) -> None:
    a, b = (numpy.array(column) for column in zip(*pairs, strict=True))
    assert list(larger(a, b)) == [larger(x, y) for x, y in pairs]
    assert list(smaller(a, b)) == [smaller(x, y) for x, y in pairs]
    assert list(chosen(a < b, a, 2.0)) == [chosen(x < y, x, 2.0) for x, y in pairs]


@given(st.integers(0, 10**30), st.integers(1, 10**15))
def test_ceil_division_is_the_least_integer_not_below_the_quotient(a: int, b: int) -> None:
    quotient = ceil_division(a, b)
    assert quotient * b >= a > (quotient - 1) * b


def test_rows_of_columns_are_counted_one_by_one_and_equal_ones_once() -> None:
    counted = []

    def product(a: float, b: float) -> int:
        counted.append((a, b))
        return int(a * b)

    assert by_row(product, 2, 3) == 6
    found: Any = by_row(product, numpy.array([[1.0, 2.0], [1.0, 4.0]]), 5)
    assert found.tolist() == [[5.0, 10.0], [5.0, 20.0]]
    assert sorted(counted[1:]) == [(1.0, 5), (2.0, 5), (4.0, 5)]
