"""Times one call again and again: warms it up, synchronises the device, and cools the caches before each sample."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from suite.execute.measure.clock import Call
from suite.machine import cpu_caches
from suite.machine.timings import Repetitions, median

WINDOW = 3  # samples of a median
FALLING = 0.98  # a median below this share of the previous one still falls
LEAST_REPETITIONS = 3
BRIEF_WARM_UP, BRIEF_REPETITIONS = 3, 2  # warm-up calls, and fewest repetitions, where there is little time
MOST_WARM_UP = 40
MOST_REPETITIONS = 200
FLUSHED_CACHES = 2  # bytes overwritten before a sample on CUDA, in sizes of the L2 cache
# A call is not warm if the kernel made so many pages for it that they took 2 % of its time: the heap of glibc still
# grows (results/recorded/LOG.md, Calibration: the first calls of cross-entropy's backward pass took long)
PAGE_SECONDS = 6e-6  # 39 ms for 6,391 pages, with one rank; 12 us a page with two
MOST_PAGED = 8  # calls that page faults may exclude
# Bytes that a thread overwrites at most, before an operator and before a host call. LOG.md, Step time, has what other
# sizes give
OPERATORS_BYTES = 8 * 2**20
HOST_BYTES = 16 * 2**20
MOST_OVERWRITTEN = 64 * 2**20  # bytes, by a rank


class WarmOperandCall:
    """A call of an operator, one operand of which the previous operator has just written.

    Args:
        written: that operand, a contiguous tensor.
    """

    def __init__(self, call: Call, written: Tensor) -> None:
        self._call = call
        self._written = written.data  # whose changes autograd does not count: the values stay

    def __call__(self) -> object:
        return self._call()

    def rewrite(self) -> None:
        """Write the operand's own values to it, with as many threads as an operator would use."""
        self._written.mul_(1.0)


class _CommonOperators:
    """The operators that a step calls most often, on tiny tensors: casts, sums, products, views, copies."""

    def __init__(self) -> None:
        self._x = torch.randn(2, 8, 4, 8).bfloat16()
        self._weight = torch.randn(64, 64).bfloat16()

    def __call__(self) -> None:
        x = self._x.float().bfloat16() + self._x
        rows = x.transpose(1, 2).contiguous().view(8, 64)
        (torch.mm(rows, self._weight) * 0.5).sum(dim=0)


class Stopwatch:
    """Times calls on one device: with the host's clock on a CPU, with events on CUDA.

    Args:
        reads: whether as much other memory is read after the cache is overwritten: else up to all of it is written back
            during the call, which costs a call that only reads most.
    """

    def __init__(self, device: torch.device, *, reads: bool = False) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        properties = torch.cuda.get_device_properties(device) if self._cuda else None
        size = cpu_caches.share_bytes() if properties is None else FLUSHED_CACHES * properties.L2_cache_size
        self._elements = size // torch.float32.itemsize  # on a CPU: of each thread
        self._cache = torch.zeros(self._elements, device=device)
        self._read = torch.zeros_like(self._cache) if reads else None
        self._common_operators = _CommonOperators()
        self._pages = 0  # that the kernel made for this process during the last sample

    def overwrite(self) -> None:
        """Overwrite the cache. On CUDA the device may not have finished when this returns."""
        self._cache.zero_()
        if self._read is not None:
            self._read.sum()

    def sample(self, call: Call, *, overwrites: int = 1) -> float:
        """Seconds of one call.

        On CUDA the device overwrites its cache while the host launches the call, so the events show the device's time.
        A call that takes the host longer than one overwriting needs several: see `overwrites_for`. Then a
        `WarmOperandCall`'s operand is written again.
        """
        if not self._cuda:
            return self._host_seconds(call)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(overwrites):
            self.overwrite()
        if isinstance(call, WarmOperandCall):
            call.rewrite()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end)) / 1000

    def overwrites_for(self, call: Call) -> int:
        """How often the cache must be overwritten before a sample, so that the device is busy while the host launches.

        It uses the host's shortest time of three. It is 1 on a CPU, where the call is not made.
        """
        if not self._cuda:
            return 1
        host = min(self.host_sample(call) for _ in range(WINDOW))
        return max(1, math.ceil(host / min(self.sample(self.overwrite) for _ in range(WINDOW))))

    def cold_sample(self, call: Call, *, overwrites: int = 1) -> float:
        """Seconds of one call of an operator, with caches as cold as in a step.

        On a CPU each thread overwrites `OPERATORS_BYTES` of the caches first, about what a step's other operators read
        and write between two calls. Then come what a step finds in the caches: some common operators, and the operand
        of a `WarmOperandCall`. On CUDA the L2 cache is overwritten, `overwrites` times, and such an operand is in it as
        far as it fits: a miniature's small tensors are, a large model's are not.
        """
        if not self._cuda:
            self._overwrite_by_each_thread(OPERATORS_BYTES)
            self._common_operators()
            if isinstance(call, WarmOperandCall):
                call.rewrite()
        return self.sample(call, overwrites=overwrites)

    def host_sample(self, call: Call) -> float:
        """Seconds until the host has launched one call on an idle device.

        On a CPU each thread overwrites `HOST_BYTES` of the caches first: between two views or modules a step runs 10 to
        13 us of Python.
        """
        if self._cuda:
            torch.cuda.synchronize(self._device)
        else:
            self._overwrite_by_each_thread(HOST_BYTES)
        return self._host_seconds(call)

    def _host_seconds(self, call: Call) -> float:
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        self._pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
        return seconds

    def _overwrite_by_each_thread(self, most: int) -> None:
        each = min(self._elements, most // torch.float32.itemsize)
        size = min(each * torch.get_num_threads(), MOST_OVERWRITTEN // torch.float32.itemsize)
        if self._cache.numel() < size:
            self._cache = torch.zeros(size)
        self._cache[:size].add_(1.0)

    def repetitions(
        self, call: Call, *, point_seconds: float, briefly: bool = False, sample: Callable[[Call], float] | None = None
    ) -> Repetitions:
        """Repeat `call` until it is warm, at least three times, and for `point_seconds`, warm-up included.

        The samples that show that it is warm count: 3 (see `is_warm`), or 2 of a call that alone takes `point_seconds`
        if the second takes at least 98 % of the first. Up to the last call of the warm-up with page faults nothing
        counts, within the first eight calls.

        Args:
            briefly: where there is little time: 3 warm-up calls and at least 2 repetitions; one of each for a call that
                takes all of `point_seconds`.
        """
        take = sample or self.sample
        samples: list[float] = []
        least = LEAST_REPETITIONS
        start = time.perf_counter()
        if briefly:
            samples = [take(call)]
            long = is_long(samples[0], point_seconds)
            samples += [take(call) for _ in range(0 if long else BRIEF_WARM_UP - 1)]
            warm_up, least = len(samples), 1 if long else BRIEF_REPETITIONS
            samples.append(take(call))
            while self._waited_for_pages(samples[-1]) and len(samples) < MOST_PAGED:
                warm_up = len(samples)
                samples.append(take(call))
        else:
            window = cold = 0
            while not window and len(samples) < MOST_WARM_UP:
                samples.append(take(call))
                if self._waited_for_pages(samples[-1]) and cold < MOST_PAGED:
                    cold = len(samples)
                window = _steady_count(samples[cold:], point_seconds)
            warm_up = len(samples) - (window or WINDOW)
        while (counted := len(samples) - warm_up) < MOST_REPETITIONS and (
            counted < least or time.perf_counter() - start < point_seconds
        ):
            samples.append(take(call))
        return after_warm_up(samples, warm_up)

    def _waited_for_pages(self, seconds: float) -> bool:
        """Whether page faults made the last sample, of so many seconds, longer."""
        return not self._cuda and self._pages * PAGE_SECONDS > (1 - FALLING) * seconds


def _steady_count(samples: list[float], point_seconds: float) -> int:
    """How many of the last samples are warm: none, 3, or 2 of long calls."""
    if len(samples) > 1 and is_long(min(samples[-2:]), point_seconds) and samples[-1] >= FALLING * samples[-2]:
        return 2
    return WINDOW if is_warm(samples) else 0


def is_long(seconds: float, point_seconds: float) -> bool:
    """Whether one call takes all the time that a point has."""
    return 0 < point_seconds <= seconds


def is_warm(samples: list[float]) -> bool:
    """Whether the median of the last 3 samples is at least 98 % of that of the 3 samples before.

    The windows do not overlap: medians of windows that share two samples agree by chance.
    """
    if len(samples) < 2 * WINDOW:
        return False
    return median(samples[-WINDOW:]) >= FALLING * median(samples[-2 * WINDOW : -WINDOW])


def after_warm_up(samples: list[float], warm_up: int) -> Repetitions:
    """The samples after the warm-up, to 4 digits, at least 1 ns: the clock may not have moved."""
    return Repetitions(tuple(float(f"{max(sample, 1e-9):.4g}") for sample in samples[warm_up:]), warm_up)
