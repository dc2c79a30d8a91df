"""Matrix multiplications of a trace by their shapes: an operator says them, its kernels take the time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    """A product, how often a trace has it, and the median seconds of its kernels."""

    product: Product
    calls: int
    seconds: float


def product_of(name: str, dims: Any, types: Any) -> Product | None:
    """The product that an operator computes; None: it computes none, or its shapes or format are not known."""
    places = _FACTORS.get(name)
    if places is None or not isinstance(dims, list) or not isinstance(types, list):
        return None
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
        self._products: dict[int, Product] = {}
        self._kernels: dict[tuple[int, int], int] = defaultdict(int)

    def take_operator(self, number: int, product: Product) -> None:
        """Keep the product of an operator."""
        self._products[number] = product

    def take_kernel(self, device: int, number: int, nanoseconds: int) -> None:
        """Add the time of a kernel that the operator of this number launched."""
        self._kernels[device, number] += nanoseconds

    def timed(self, device: int) -> Iterator[TimedProduct]:
        """The products that a device computed."""
        times = defaultdict[Product, list[int]](list)
        for (where, number), nanoseconds in self._kernels.items():
            if where == device and nanoseconds > 0 and (product := self._products.get(number)):
                times[product].append(nanoseconds)
        for product, each in times.items():
            yield TimedProduct(product, len(each), statistics.median(each) / 1e9)
