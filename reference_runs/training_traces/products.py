"""Matrix multiplications of a trace by their shapes: an operator says them, its kernels take the time."""

from __future__ import annotations

import statistics
from array import array
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import msgspec

_FACTORS: Mapping[str, tuple[int, int]] = {  # operator -> places of its factors among its inputs
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
}
_DTYPES = {
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("fp16", 2),
    "float": ("fp32", 4),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
}


class Product(NamedTuple):
    """Shape of `batch` products of an m x k by a k x n matrix, and the format of the left one."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    element_bytes: int

    @property
    def flop(self) -> float:
        """Flop: 2 m n k, for each of the batch."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> float:
        """Bytes of both factors and the result, each once."""
        return float(self.batch * self.element_bytes * (self.m * self.k + self.k * self.n + self.m * self.n))


class TimedProduct(NamedTuple):
    """A product, how often a trace has it, and the median seconds of its kernels, or of its operator on a CPU."""

    product: Product
    calls: int
    seconds: float


def product_of(name: str, said_dims: msgspec.Raw, said_types: msgspec.Raw) -> Product | None:
    """The product that an operator computes; None: it computes none, or its shapes or format are not known.

    Args:
        said_dims, said_types: of its inputs, as JSON.
    """
    places = _FACTORS.get(name)
    if places is None or not said_dims or not said_types:
        return None
    dims, types = msgspec.json.decode(said_dims), msgspec.json.decode(said_types)
    try:
        left, right = (dims[place] for place in places)
        known = _DTYPES.get(types[places[0]])
        *batch, m, k = map(int, left)
        n = int(right[-1])
    except (IndexError, ValueError, TypeError):
        return None
    count = batch[0] if batch else 1
    return None if known is None or min(count, m, n, k) < 1 else Product(count, m, n, k, *known)


class ProductTimes:
    """Gathers products by the number that a trace gives an operator and all that it launches."""

    def __init__(self) -> None:
        self._numbers: dict[Product, array[int]] = {}
        self._of_operators = _NumberedTimes()
        self._of_kernels: dict[int, _NumberedTimes] = defaultdict(_NumberedTimes)

    def take_operator(self, number: int, product: Product, nanoseconds: int) -> None:
        """Keep the product of an operator, and its time on the host."""
        self._numbers.setdefault(product, array("q")).append(number)
        self._of_operators.add(number, nanoseconds)

    def take_kernel(self, device: int, number: int, nanoseconds: int) -> None:
        """Keep the time of a kernel that the operator of this number launched."""
        self._of_kernels[device].add(number, nanoseconds)

    def timed(self, device: int | None) -> list[TimedProduct]:
        """The products that a device computed; None: the host, by its operators."""
        times = self._of_operators if device is None else self._of_kernels[device]
        calls = dict.fromkeys(chain.from_iterable(self._numbers.values()), 0)
        for number, nanoseconds in zip(times.numbers, times.nanoseconds, strict=True):
            if number in calls:
                calls[number] += nanoseconds
        found = []
        for product, numbers in self._numbers.items():
            if each := [calls[number] for number in numbers if calls[number]]:
                found.append(TimedProduct(product, len(each), statistics.median(each) / 1e9))
        return found


class _NumberedTimes:
    """Times by the number of an operator, in columns: a trace has millions."""

    def __init__(self) -> None:
        self.numbers, self.nanoseconds = array("q"), array("q")

    def add(self, number: int, nanoseconds: int) -> None:
        """Append one time."""
        self.numbers.append(number)
        self.nanoseconds.append(nanoseconds)
