"""Seconds of one call, repeated: warm-up found, not guessed; devices synchronised."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from suite.execute.measure.clock import Work
from suite.machine import cpu_caches
from suite.machine.timings import Repetitions, median

WINDOW = 3  # samples of a median, of which the last two are compared
FALLING = 0.98  # a median below this share of the one before still falls
LEAST_REPETITIONS = 3
BRIEF_WARM_UP, BRIEF_REPETITIONS = 3, 2  # calls that warm up, and that count at least, where there is little time
MOST_WARM_UP = 40
MOST_REPETITIONS = 200
FLUSHED_CACHES = 2  # bytes overwritten before a sample, in sizes of the L2 cache
# A call for which the kernel made so many pages that they took 2 % of it is not warm: memory that a call frees serves
# the next one, but not at once. An aligned tensor does not fit into the block of one of the same size, so that glibc's
# heap grows until free blocks lie beside each other. Cross-entropy's backward pass (520 x 12,584, two ranks) took 75 to
# 149 ms in its first calls and 5 to 8 ms behind them (2 cores of an AMD EPYC, glibc 2.36, 2026-11-24)
PAGE_SECONDS = 6e-6  # 39 ms for 6,391 pages, with one rank; 12 us a page with two
MOST_PAGED = 8  # calls that are taken for cold because of pages
# Bytes of its share of the caches that a thread overwrites at most before an operator, and before a call of the host's:
# see `Stopwatch.cold_sample` and `host_sample`
OPERATORS_BYTES = 8 * 2**20
HOST_BYTES = 16 * 2**20
MOST_OVERWRITTEN = 64 * 2**20  # bytes, by a rank


class Following:
    """A call of an operator that follows another one, which has just written an operand of it.

    Args:
        written: that operand; its elements lie without gaps.
    """

    def __init__(self, call: Work, written: Tensor) -> None:
        self._call = call
        self._written = written.data  # whose changes autograd does not count: the values stay

    def __call__(self) -> object:
        return self._call()

    def rewrite(self) -> None:
        """Write the operand with the values that it has, by as many threads as an operator would."""
        self._written.mul_(1.0)


class _Common:
    """What a step calls again and again, on next to no data: casts, sums, products, views, copies."""

    def __init__(self) -> None:
        self._x = torch.randn(2, 8, 4, 8).bfloat16()
        self._weight = torch.randn(64, 64).bfloat16()

    def __call__(self) -> None:
        x = self._x.float().bfloat16() + self._x
        rows = x.transpose(1, 2).contiguous().view(8, 64)
        (torch.mm(rows, self._weight) * 0.5).sum(dim=0)


class Stopwatch:
    """Times calls on one device: by the processor's clock, on CUDA by events with the L2 cache overwritten before."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        properties = torch.cuda.get_device_properties(device) if self._cuda else None
        size = cpu_caches.share_bytes() if properties is None else FLUSHED_CACHES * properties.L2_cache_size
        self._elements = size // torch.float32.itemsize  # on a CPU: of each thread
        self._cache = torch.zeros(self._elements, device=device)
        self._common: Work = _Common()
        self._pages = 0  # that the kernel made for this process during the last sample

    def overwrite(self) -> None:
        """Overwrite the cache: on CUDA the device has begun to, when this returns."""
        self._cache.zero_()

    def sample(self, work: Work, *, overwrites: int = 1) -> float:
        """Seconds of one call.

        On CUDA the overwriting keeps the device busy while the host hands over the call, so that the events have the
        device's time between them and not the host's. A call that the host needs longer for than for one overwriting
        needs several: see `overwrites_for`.
        """
        if not self._cuda:
            pages = _pages_made()
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
            self._pages = _pages_made() - pages
            return seconds
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(overwrites):
            self.overwrite()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end)) / 1000

    def overwrites_for(self, work: Work) -> int:
        """How often the cache is overwritten before a sample of `work`, so that the device is busy for as long as the
        host needs to hand it over: its least time of three, the first of which makes what a first call makes.

        1 on a CPU, where the call is not made.
        """
        if not self._cuda:
            return 1
        host = min(self.host_sample(work) for _ in range(WINDOW))
        return max(1, math.ceil(host / min(self.sample(self.overwrite) for _ in range(WINDOW))))

    def cold_sample(self, work: Work, *, overwrites: int = 1) -> float:
        """Seconds of one call of an operator as cold as in a step.

        Between two calls of an operator, a layer apart, a step's other operators read and write 7 MB (mt-nlg-mini) to
        61 MB (codegeex-mini): on a CPU each thread overwrites `OPERATORS_BYTES` of the caches before. What the step
        calls all the time is in them all the same, and so is what the operator before has just written: some common
        operators are called on next to no data, and a `Following` call's operand is written again. Without these two,
        how much is overwritten decides: on a Xeon with 2 MiB of second-level cache the operators of bloom-mini and
        mt-nlg-mini, at their own sizes, came out -11, +3 and +14 % and -10, +16 and +37 % off their part of a step,
        behind 2, 4 and 8 MiB a thread; with them -10, -11 and -8 % and -9, -8 and -6 %, behind 8, 16 and 32
        (2026-11-24). On CUDA the L2 cache is overwritten, `overwrites` times.
        """
        if not self._cuda:
            self._overwrite_by_each_thread(OPERATORS_BYTES)
            self._common()
            if isinstance(work, Following):
                work.rewrite()
        return self.sample(work, overwrites=overwrites)

    def host_sample(self, work: Work) -> float:
        """Seconds until the host has handed over one call, the device idle before.

        On a CPU each thread overwrites its share of the caches before, `HOST_BYTES` at most, and nothing is called
        between: in traces of eager steps a view or a module's call goes with 10 to 13 us of Python (bloom-mini and
        mt-nlg-mini, 1 and 2 ranks, as above). Behind 16 MiB a thread a module's call takes 9 us, the first view 13,
        the second 1; behind 32 MiB the first two took 135.
        """
        if self._cuda:
            torch.cuda.synchronize(self._device)
        else:
            self._overwrite_by_each_thread(HOST_BYTES)
        pages = _pages_made()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        self._pages = _pages_made() - pages
        return seconds

    def _overwrite_by_each_thread(self, most: int) -> None:
        each = min(self._elements, most // torch.float32.itemsize)
        size = min(each * torch.get_num_threads(), MOST_OVERWRITTEN // torch.float32.itemsize)
        if self._cache.numel() < size:
            self._cache = torch.zeros(size)
        self._cache[:size].add_(1.0)

    def repetitions(
        self, work: Work, *, point_seconds: float, briefly: bool = False, sample: Callable[[Work], float] | None = None
    ) -> Repetitions:
        """Repeat `work` until it is warm, at least three times, and for `point_seconds`, warm-up included.

        The samples that show that it is warm count: 3, or 2 of a call that alone takes `point_seconds`, which is warm
        when it takes no less than 98 % of the one before. Calls for which the kernel made memory before the warm-up
        was over do not count, nor any before them: eight at most.

        Args:
            briefly: where there is little time: three calls warm it, and two repetitions are the least; of a call that
                takes all of `point_seconds` one and one. The first call of a product of a shape takes 1 to 10 ms, in
                later rounds too, because oneDNN keeps 1,024; behind three calls, products took 1.3 times what they took
                behind a whole warm-up (2 cores of a Xeon, 2026-11-24).
        """
        take = sample or self.sample
        samples: list[float] = []
        least = LEAST_REPETITIONS
        start = time.perf_counter()
        if briefly:
            samples = [take(work)]
            long = is_long(samples[0], point_seconds)
            samples += [take(work) for _ in range(0 if long else BRIEF_WARM_UP - 1)]
            warm_up, least = len(samples), 1 if long else BRIEF_REPETITIONS
            samples.append(take(work))
            while self._waited_for_pages(samples[-1]) and len(samples) < MOST_PAGED:
                warm_up = len(samples)
                samples.append(take(work))
        else:
            window = cold = 0
            while not window and len(samples) < MOST_WARM_UP:
                samples.append(take(work))
                if self._waited_for_pages(samples[-1]) and cold < MOST_PAGED:
                    cold = len(samples)
                window = _steady_count(samples[cold:], point_seconds)
            warm_up = len(samples) - (window or WINDOW)
        while (counted := len(samples) - warm_up) < MOST_REPETITIONS and (
            counted < least or time.perf_counter() - start < point_seconds
        ):
            samples.append(take(work))
        return repetitions_behind(samples, warm_up)

    def _waited_for_pages(self, seconds: float) -> bool:
        """Whether the last sample, of so many seconds, was longer for pages that the kernel made."""
        return not self._cuda and self._pages * PAGE_SECONDS > (1 - FALLING) * seconds


def _pages_made() -> int:
    """Pages of memory that the kernel has made for this process, without reading any."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _steady_count(samples: list[float], point_seconds: float) -> int:
    """How many of the last samples are warm: none, 3 whose median no longer falls, or 2 of long calls."""
    if len(samples) > 1 and is_long(min(samples[-2:]), point_seconds) and samples[-1] >= FALLING * samples[-2]:
        return 2
    return WINDOW if is_warm(samples) else 0


def is_long(seconds: float, point_seconds: float) -> bool:
    """Whether one call takes all the time that a point has."""
    return 0 < point_seconds <= seconds


def is_warm(samples: list[float]) -> bool:
    """Whether the median of the last 3 samples is no less than 98 % of that of the 3 before them.

    The last 3 then count as repetitions: the first steady ones. (Of windows that overlap in two samples the medians
    agree by chance: calls that fell from 53 to 34 us in eight were taken for warm behind three of them.)
    """
    if len(samples) < 2 * WINDOW:
        return False
    return median(samples[-WINDOW:]) >= FALLING * median(samples[-2 * WINDOW : -WINDOW])


def repetitions_behind(samples: list[float], warm_up: int) -> Repetitions:
    """What is behind the warm-up, to 4 digits; a clock that stood still says 1 ns."""
    return Repetitions(tuple(float(f"{max(sample, 1e-9):.4g}") for sample in samples[warm_up:]), warm_up)
