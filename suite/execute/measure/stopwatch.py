"""Seconds of one call, repeated: warm-up found, not guessed; devices synchronised."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable

import torch

from suite import processor_caches
from suite.timings import Repetitions, median

Work = Callable[[], object]
WINDOW = 3  # samples of a running median
FALLING = 0.98  # a running median below this share of the one before still falls
LEAST_REPETITIONS = 3  # in the first round
MOST_WARM_UP = 40
MOST_REPETITIONS = 200
FLUSHED_CACHES = 2  # bytes overwritten before a sample, in sizes of the L2 cache
# A call for which the kernel made so many pages that they took 2 % of it is not warm: memory that a call frees serves
# the next one, but not at once. An aligned tensor does not fit into the block of one of the same size, so that glibc's
# heap grows until free blocks lie beside each other. Cross-entropy's backward pass (520 x 12,584, two ranks) took 75 to
# 149 ms in its first calls and 5 to 8 ms behind them (2 cores of an AMD EPYC, glibc 2.36, 2026-11-24)
PAGE_SECONDS = 6e-6  # 39 ms for 6,391 pages, with one rank; 12 us a page with two
MOST_PAGED = 8  # calls that are taken for cold because of pages
OPERATORS_SHARE = 0.5  # of a thread's share of the caches, before operators: see `Stopwatch.cold_sample`
MOST_OVERWRITTEN = 64 * 2**20  # bytes, by a rank: more than passes between two calls of an operator in a miniature


class Stopwatch:
    """Times calls on one device: by the processor's clock, on CUDA by events with the L2 cache overwritten before."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        properties = torch.cuda.get_device_properties(device) if self._cuda else None
        size = processor_caches.share_bytes() if properties is None else FLUSHED_CACHES * properties.L2_cache_size
        self._elements = size // torch.float32.itemsize  # on a CPU: of each thread
        self._cache = torch.zeros(self._elements, device=device)
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
        61 MB (codegeex-mini); some of what it reads was written just before. On a CPU each thread overwrites half of
        its share of the caches before. 28 steps predicted from calibrations in a row with 4, 8 and 16 MiB a thread
        came out 12, 9 and 13 % off in the median, at their pace 14, 8 and 6 %; later ones with 16 MiB 15 to 25 %,
        nearly all too long (2 cores of an AMD EPYC, L3 of 32 MiB for both, 2026-11-23). On CUDA the L2 cache is
        overwritten, `overwrites` times.
        """
        if not self._cuda:
            self._overwrite_by_each_thread(OPERATORS_SHARE)
        return self.sample(work, overwrites=overwrites)

    def host_sample(self, work: Work) -> float:
        """Seconds until the host has handed over one call, the device idle before.

        On a CPU each thread overwrites its share of the caches before: in traces of eager steps the host takes 19 to
        26 us from one operator to the next in the mean (glm-mini, mt-nlg-mini, bloom-mini, 1 rank). A module's call
        takes 2 us behind 1 or 8 MiB and 7 to 11 behind 32 MiB, a view 3 and 8 to 10, a start of autograd's engine 44
        and 104 to 122 (as above).
        """
        if self._cuda:
            torch.cuda.synchronize(self._device)
        else:
            self._overwrite_by_each_thread(1.0)
        pages = _pages_made()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        self._pages = _pages_made() - pages
        return seconds

    def _overwrite_by_each_thread(self, share: float) -> None:
        size = min(int(share * self._elements) * torch.get_num_threads(), MOST_OVERWRITTEN // torch.float32.itemsize)
        if self._cache.numel() < size:
            self._cache = torch.zeros(size)
        self._cache[:size].add_(1.0)

    def repetitions(
        self,
        work: Work,
        *,
        point_seconds: float,
        known: float | None = None,
        sample: Callable[[Work], float] | None = None,
    ) -> Repetitions:
        """Repeat `work` until it is warm, at least three times, and for `point_seconds`, warm-up included.

        The samples that show that it is warm count: 3, or 2 of a call that alone takes `point_seconds`, which is warm
        when it takes no less than 98 % of the one before. Calls for which the kernel made memory before the warm-up
        was over do not count, nor any before them: eight at most.

        Args:
            known: seconds that a call took in an earlier round: one call warms it again, and one repetition is the
                least. In the first call of a later round long products took 1 to 3 % more than in the next, long
                attention -4 to +6 %, other long operators 1 to 2 %, short products 17 %, other short operators 40 %
                (2026-11-23).
        """
        take = sample or self.sample
        samples: list[float] = []
        start = time.perf_counter()
        if known is not None:
            samples, warm_up = [self.sample(work), take(work)], 1
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
        least = LEAST_REPETITIONS if known is None else 1
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
    """Whether the running median of 3 samples has stopped falling: the last one is within 2 % of the one before it.

    The samples of the last window then count as repetitions: the first steady ones.
    """
    if len(samples) < WINDOW + 1:
        return False
    return median(samples[-WINDOW:]) >= FALLING * median(samples[-WINDOW - 1 : -1])


def repetitions_behind(samples: list[float], warm_up: int) -> Repetitions:
    """What is behind the warm-up, to 4 digits; a clock that stood still says 1 ns."""
    return Repetitions(tuple(float(f"{max(sample, 1e-9):.4g}") for sample in samples[warm_up:]), warm_up)
