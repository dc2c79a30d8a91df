"""Large bf16 products one after another, every bit of each compared on the device: a load at the power limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from suite.execute.measure import clock
from suite.execute.measure.system_load import waited_seconds
from suite.job.events import Event, Phase

GROUP = 8  # products between two comparisons
WORD = torch.int64  # compares four bf16 elements at a time, bit by bit: NaN equals itself
IN_WORD = WORD.itemsize // torch.bfloat16.itemsize
CHUNK_ROWS = 256  # of a matrix that the host holds in fp64 at a time
BF16_ROUNDING, FP32_ROUNDING = 2.0**-8, 2.0**-24  # largest relative errors of rounding to nearest
MOST_WAITED = 0.9  # of a second's products, that the host's waiting for a processor may explain
FP8_CAPABILITY = (8, 9)  # compute capability from which GPUs multiply in FP8
FP8_GROUPS = 20  # timed: 0.14 s of an H100
DEVIATIONS = 10.0  # of a sum of random rounding errors; beyond it, less than one sum in 10**22


class Products(NamedTuple):
    """Verified products of one rank.

    Args:
        products: how many; `seconds` from the first to the last one, comparisons included.
        burst_flop_per_second: of the fastest `GROUP` of products; `flop_per_second` of the median second of the later
            half: a GPU reaches its power limit within seconds. `undelayed_flop_per_second` is the most that the latter
            would be if the host had never waited for a processor: meanwhile a GPU may have had nothing to do.
        fp8_flop_per_second: of the fastest `GROUP` of FP8 products; None where the device has none.
        wrong: 8-byte words that differ from the first such product, and elements of that one that the host refuses.
        first: describes the first of them.
    """

    products: int
    seconds: float
    burst_flop_per_second: float
    flop_per_second: float
    undelayed_flop_per_second: float
    fp8_flop_per_second: float | None
    wrong: int
    first: str


def multiplied(size: int, seconds: float, device: torch.device, seed: int, report: Callable[[Event], None]) -> Products:
    """Products A B and B A of two random matrices [size, size] in turn, for `seconds`, synchronised once a second.

    The host verifies the first of both kinds: see `refused_rows`. All later ones must have the same bits, because the
    same kernel adds in the same order. Words that are equal are counted, not those that differ: a device that computes
    nothing counts none. Groups of the two kinds follow each other, so that a product that is left out is seen.
    """
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    factors = [(a, b), (b, a)]
    load = _Load([matrix.to(device) for matrix in (a, b)], device)
    wrong, first = 0, ""
    for (left, right), product in zip(factors, load.references, strict=True):
        report(Phase("verify the first products", time.time()))
        refused = refused_rows(left, right, product.cpu(), generator)
        wrong += len(refused) * size // IN_WORD
        first = first or (f"first product on {device}: row {refused[0]} is not that of the host" if refused else "")
    fp8 = fp8_burst(a, b, device)
    rates: list[float] = []
    undelayed: list[float] = []
    products, groups, burst, flop = 0, 1, 0.0, 2.0 * size**3 * GROUP
    start = begun = time.perf_counter()
    while not products or start < begun + seconds:
        waited = waited_seconds()
        times = load.run(groups)
        waited = waited_seconds() - waited
        report(Phase(f"products from {products}", time.time()))
        bad, number, element = load.differences()
        words = f"product {products + number} on {device}: wrong from element {element}, {bad} words of 8 bytes in all"
        wrong, first, products = wrong + bad, first or (words if bad else ""), products + groups * GROUP
        busy = math.fsum(times)
        rates.append(flop * groups / busy)
        undelayed.append(flop * groups / max(busy - waited, (1 - MOST_WAITED) * busy))
        burst = max(burst, flop / min(times))
        now = time.perf_counter()
        next_seconds = min(1.0, begun + seconds - now)
        groups, start = max(1, round(groups * next_seconds / (now - start))), now
    later = len(rates) // 2
    sustained, most = median(rates[later:]), median(undelayed[later:])
    return Products(products, start - begun, burst, sustained, most, fp8, wrong, first)


def fp8_burst(a: Tensor, b: Tensor, device: torch.device) -> float | None:
    """Flop/s of the fastest group of FP8 products A B, with bf16 results; None where the device multiplies in no FP8.

    Scaled by tensor and added up fast, as training does. The pulses of `load.py` verify products of this format.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        return None
    left, right = a.to(device).to(torch.float8_e4m3fn), b.t().contiguous().to(device).to(torch.float8_e4m3fn).t()
    scale, product = torch.ones((), device=device), torch.empty_like(a, device=device)
    timer = _Timer(device)
    for _ in range(1 + FP8_GROUPS):
        with timer.lap():
            for _ in range(GROUP):
                torch._scaled_mm(left, right, scale, scale, out_dtype=product.dtype, use_fast_accum=True, out=product)
    return 2.0 * len(a) ** 3 * GROUP / min(timer.seconds()[1:])


class _Load:
    """Groups of products into the same outputs, and counts of the words of each that are right.

    Attributes:
        references: the first products of both kinds, which the later ones must equal.
    """

    def __init__(self, factors: list[Tensor], device: torch.device) -> None:
        left, right = factors
        self._factors, self._device = [(left, right), (right, left)], device
        self.references = [left @ right, right @ left]
        self._outputs = [torch.empty_like(left) for _ in range(GROUP)]
        self._kind = 0
        self._right = self._places = torch.zeros(0, dtype=WORD)

    def run(self, groups: int) -> list[float]:
        """Compute and compare so many groups; seconds of each group's products alone. It waits once, at the end."""
        nothing = torch.zeros(2, groups * GROUP, dtype=torch.int64)
        self._right, self._places = nothing.to(self._device)  # a copy: no kernel of the device clears it
        timer = _Timer(self._device)
        for group in range(groups):
            left, right = self._factors[self._kind]
            with timer.lap():
                for output in self._outputs:
                    torch.mm(left, right, out=output)
            expected = self.references[self._kind].view(WORD)
            for number, output in enumerate(self._outputs, group * GROUP):
                equal = output.view(WORD) == expected
                self._right[number].copy_(equal.sum())
                self._places[number].copy_(equal.view(torch.uint8).argmin())
            self._kind = 1 - self._kind
        return timer.seconds()

    def differences(self) -> tuple[int, int, int]:
        """Words of the last run that are wrong, the first product with some, and about its first wrong element."""
        right, places = self._right.tolist(), self._places.tolist()
        each = self.references[0].numel() // IN_WORD
        number = next((number for number, words in enumerate(right) if words != each), 0)
        return len(right) * each - sum(right), number, places[number] * IN_WORD


class _Timer:
    """Seconds of laps: by events on CUDA, which do not wait; by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: list[float] = []

    @contextmanager
    def lap(self) -> Iterator[None]:
        if self._device.type != "cuda":
            start = time.perf_counter()
            yield
            self._seconds.append(time.perf_counter() - start)
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> list[float]:
        """Seconds of all laps, once the device has ended them."""
        clock.now(self._device)
        return [*self._seconds, *(begin.elapsed_time(end) / 1000 for begin, end in self._events)]


def refused_rows(left: Tensor, right: Tensor, product: Tensor, generator: torch.Generator) -> list[int]:
    """Rows in which a bf16 product of the device cannot be left @ right, by sums that the host computes in fp64.

    With random signs x, C x must be A (B x), but for rounding: an element of C to bf16 by u = 2**-8 of it, and its sum
    in fp32 by v = 2**-24, of random sign, of each of its n partial sums (Higham and Mary, A new approach to
    probabilistic rounding error analysis, 2019).
        |C x - A (B x)|_i <= u sum_j |C_ij| + 10 v n**0.5 sum_j (|A| |B|)_ij

    Source: Freivalds, Probabilistic machines can use less running time, 1977.
    """
    size = len(left)
    signs = torch.randint(2, (size, 1), generator=generator).double() * 2 - 1
    vectors = torch.cat([signs, torch.ones_like(signs)], dim=1)

    def times(matrix: Tensor, columns: Tensor, *, absolute: bool = False) -> Tensor:
        chunks = (rows.double().abs() if absolute else rows.double() for rows in matrix.split(CHUNK_ROWS))
        return torch.cat([rows @ columns for rows in chunks])

    expected = times(left, times(right, vectors[:, :1]))
    magnitudes = times(left, times(right, vectors[:, 1:], absolute=True), absolute=True)
    rounding = BF16_ROUNDING * times(product, vectors[:, 1:], absolute=True)
    rounding += DEVIATIONS * FP32_ROUNDING * math.sqrt(size) * magnitudes
    error = (times(product, vectors[:, :1]) - expected).abs()
    refused: list[int] = (~(error <= rounding)).reshape(-1).nonzero().reshape(-1).tolist()  # also where it is NaN
    return refused
