"""GEMMs of several formats and all-reduces at once, in pulses that all ranks begin together; every result verified.

Pulses load a node's power supplies and its voltage regulators as training does: all devices at once, loaded and idle
in turns. The formats use different arithmetic units.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.measure import clock
from suite.execute.probe.exchanges import MODULUS
from suite.job.events import Event, Phase
from suite.job.probe_job import FormatLoad, Loaded, ProbeJob

GROUP = 8  # products beside each all-reduce
LARGEST = 2  # of the whole numbers in both factors: sums of up to 4,096 products are exact with 15 bits
PULSES = 2  # of each format, at least: the first one finds how much fits


class Format(NamedTuple):
    """A format of factors, and that of their product.

    Args:
        capability: compute capability from which GPUs multiply in it; None: not a GPU's.
        on_cpu: whether a CPU multiplies in it here.
    """

    name: str
    factors: torch.dtype
    product: torch.dtype
    capability: tuple[int, int] | None
    on_cpu: bool = False


FORMATS = (
    Format("bf16", torch.bfloat16, torch.bfloat16, (8, 0), on_cpu=True),
    Format("fp32", torch.float32, torch.float32, None, on_cpu=True),
    Format("fp8", torch.float8_e4m3fn, torch.bfloat16, (8, 9)),
    Format("tf32", torch.float32, torch.float32, (8, 0)),
    Format("fp64", torch.float64, torch.float64, (6, 0)),
)


def formats_of(device: torch.device) -> tuple[list[Format], dict[str, str]]:
    """Formats in which the device multiplies, and why not in the others, by name."""
    if device.type != "cuda":
        missing = {one.name: "not on a CPU: its load is a short one" for one in FORMATS if not one.on_cpu}
        return [one for one in FORMATS if one.on_cpu], missing
    capability = torch.cuda.get_device_capability(device)
    of_gpus = [one for one in FORMATS if one.capability is not None]
    missing = {
        one.name: f"compute capability {capability[0]}.{capability[1]}, {one.capability[0]}.{one.capability[1]} needed"
        for one in of_gpus
        if one.capability is not None and capability < one.capability
    }
    return [one for one in of_gpus if one.name not in missing], missing


def loaded(job: ProbeJob, device: torch.device, control: dist.ProcessGroup, report: Callable[[Event], None]) -> Loaded:
    """Products of every format in turn, a pulse each, while all ranks sum; for `load_seconds`, and 2 pulses of each.

    A pulse begins for all ranks together and fills half of `pulse_seconds`; then they are idle. Rank 0 decides how many
    products the next pulse of a format has.

    Args:
        control: a gloo group, for decisions.
    """
    formats, missing = formats_of(device)
    whole = _whole_numbers(job.load_size, job.seed)
    loads = [_FormatProducts(one, *whole, device) for one in formats]
    sums = _Sums(job.load_bytes // 4, device) if dist.get_world_size() > 1 else None
    rounds = [1] * len(loads)
    first, pulses, begun = "", 0, time.perf_counter()
    for pulse in itertools.count():
        number = pulse % len(loads)
        report(Phase(f"load pulse {pulse}, {loads[number].format.name}", time.time()))
        dist.barrier(group=control)
        start = time.perf_counter()
        wrong = _pulse(loads[number], sums, rounds[number], device)
        now = time.perf_counter()
        pulses += 1
        where = f"pulse {pulse} on {device}"
        first = first or (f"{where}: {', '.join(f'{count} {what}' for what, count in wrong.items())}" if wrong else "")
        loads[number].timed(rounds[number], now - start, counts=pulse >= len(loads))
        rounds[number], goes_on = _decided(
            max(1, round(rounds[number] * job.pulse_seconds / 2 / (now - start))),
            goes_on=pulse + 1 < PULSES * len(loads) or now < begun + job.load_seconds,
            control=control,
        )
        if not goes_on:
            break
        time.sleep(max(0.0, start + job.pulse_seconds - time.perf_counter()))
    return Loaded(
        size=job.load_size,
        formats=[one.result() for one in loads],
        missing=missing,
        sums=0 if sums is None else sums.number,
        wrong_sums=0 if sums is None else sums.wrong,
        sum_bytes=0 if sums is None else job.load_bytes,
        pulses=pulses,
        pulse_seconds=job.pulse_seconds,
        seconds=time.perf_counter() - begun,
        first=first,
        time=time.time(),
    )


def _whole_numbers(size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two factors, [size, size], of small whole numbers, and their product by the host: fp32 holds all sums exactly.

    In every format the factors are exact, and so are their sums, in any order. A product in bf16 is rounded once.
    """
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randint(-LARGEST, LARGEST + 1, (size, size), generator=generator).float() for _ in range(2))
    return left, right, left @ right


def _decided(rounds: int, *, goes_on: bool, control: dist.ProcessGroup) -> tuple[int, bool]:
    """Rank 0's decision."""
    word = torch.tensor([rounds, goes_on], dtype=torch.int64)
    dist.broadcast(word, src=0, group=control)
    return int(word[0]), bool(word[1])


def _pulse(products: _FormatProducts, sums: _Sums | None, rounds: int, device: torch.device) -> dict[str, int]:
    """So many groups of products, each beside an all-reduce; how many results were wrong, by kind, where some were."""
    for _ in range(rounds):
        if sums is not None:
            sums.begin()
        products.run()
        if sums is not None:
            sums.end()
    clock.now(device)
    wrong = {f"elements of {products.format.name} products are wrong": products.newly_wrong()}
    if sums is not None:
        wrong["elements of sums are wrong"] = sums.newly_wrong()
    return {what: count for what, count in wrong.items() if count}


class _Right:
    """Counts elements that are right, on the device: one that computes nothing counts none."""

    def __init__(self, device: torch.device) -> None:
        self._right = torch.zeros((), dtype=torch.int64, device=device)
        self._checked = 0
        self.wrong = 0

    def count(self, actual: Tensor, expected: Tensor) -> None:
        self._right += (actual == expected).sum()
        self._checked += expected.numel()

    def newly_wrong(self) -> int:
        """Elements that were wrong since the last call; it waits for the device."""
        right = int(self._right)
        new, self.wrong = self._checked - right - self.wrong, self._checked - right
        return new


class _FormatProducts:
    """Products of one format."""

    def __init__(self, one: Format, left: Tensor, right: Tensor, expected: Tensor, device: torch.device) -> None:
        self.format = one
        self._left, self._right = left.to(device=device, dtype=one.factors), right.to(device=device, dtype=one.factors)
        self._expected = expected.to(one.product).to(device)
        self._counted = _Right(device)
        self._products, self._timed_products, self._seconds = 0, 0, 0.0
        if one.factors.itemsize == 1:  # cuBLAS takes the second factor of 8 bits by columns
            self._right = self._right.t().contiguous().t()
            self._scale = torch.ones((), device=device)

    def run(self) -> None:
        """A group of products, every element compared."""
        with _tf32() if self.format.name == "tf32" else nullcontext():
            for _ in range(GROUP):
                self._counted.count(self._product(), self._expected)
        self._products += GROUP

    def _product(self) -> Tensor:
        if self.format.factors.itemsize > 1:
            return self._left @ self._right
        out: Tensor = torch._scaled_mm(
            self._left, self._right, scale_a=self._scale, scale_b=self._scale, out_dtype=self.format.product
        )
        return out

    def newly_wrong(self) -> int:
        return self._counted.newly_wrong()

    def timed(self, rounds: int, seconds: float, *, counts: bool) -> None:
        """Take the seconds of a pulse; the first one of a format starts libraries, and does not count."""
        if counts:
            self._timed_products += rounds * GROUP
            self._seconds += seconds

    def result(self) -> FormatLoad:
        flop = 2.0 * len(self._left) ** 3 * self._timed_products
        return FormatLoad(
            format=self.format.name,
            products=self._products,
            wrong=self._counted.wrong,
            flop_per_second=flop / self._seconds if self._seconds else None,
        )


class _Sums:
    """All-reduces of known whole numbers, on a stream of their own."""

    def __init__(self, elements: int, device: torch.device) -> None:
        ranks = dist.get_world_size()
        base = torch.arange(elements, device=device) % MODULUS
        self._own = (base + dist.get_rank()).to(torch.float32)
        self._expected = (base * ranks + ranks * (ranks - 1) // 2).to(torch.float32)
        self._buffer = torch.empty_like(self._own)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._counted = _Right(device)
        self._work: dist.Work | None = None
        self.number = 0
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @property
    def wrong(self) -> int:
        return self._counted.wrong

    def _beside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def begin(self) -> None:
        """Begin a sum, which goes on beside what follows."""
        with self._beside():
            self._buffer.copy_(self._own)
            self._work = dist.all_reduce(self._buffer, async_op=True)

    def end(self) -> None:
        """Compare the sum once it is there; on a GPU its stream waits, not the host."""
        assert self._work is not None
        with self._beside():
            self._work.wait()
            self._counted.count(self._buffer, self._expected)
        self.number += 1

    def newly_wrong(self) -> int:
        return self._counted.newly_wrong()


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """Within it, products of fp32 are computed in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
