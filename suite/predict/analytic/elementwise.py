"""Functions that formulas need besides operators, for a number and, element by element, for an array of numbers.

A formula that takes a layout's counts is written with operators and these functions alone. It is then exact for Python
integers, which do not overflow, and a sweep hands it NumPy arrays of float64: the same code, no second copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

Number = TypeVar("Number", int, float)
_PLAIN = frozenset((int, float, bool))


def larger(a: Number, b: Number) -> Number:
    """The larger of two numbers."""
    if a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return a if a >= b else b
    import numpy

    return cast(Number, numpy.maximum(a, b))


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two numbers."""
    if a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return a if a <= b else b
    import numpy

    return cast(Number, numpy.minimum(a, b))


def chosen(condition: bool, a: Number, b: Number) -> Number:
    """`a` where `condition` holds, otherwise `b`; both are computed, so neither may divide by zero."""
    if condition.__class__ is bool and a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return a if condition else b
    import numpy

    return cast(Number, numpy.where(condition, a, b))


def log2(a: float) -> float:
    """The logarithm of `a` to base 2."""
    if a.__class__ in _PLAIN:
        return math.log2(a)
    import numpy

    return cast(float, numpy.log2(a))


def ceil_division(a: int, b: int) -> int:
    """The least integer that is not below a / b."""
    return -(-a // b)


def by_row(count: Callable[..., Number], *columns: float) -> Number:
    """`count` of one number from each column, or an array of it for each row where columns are arrays.

    For what no arithmetic on arrays says; equal rows are counted once.
    """
    if all(isinstance(column, (int, float)) for column in columns):
        return count(*columns)
    import numpy

    arrays: list[Any] = list(numpy.broadcast_arrays(*columns))
    rows = list(zip(*(array.ravel().tolist() for array in arrays), strict=True))
    known = {row: count(*row) for row in set(rows)}
    return cast(Number, numpy.array([known[row] for row in rows], dtype=float).reshape(arrays[0].shape))
