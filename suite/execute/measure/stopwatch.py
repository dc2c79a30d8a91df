"""Seconds of one call, repeated: warm-up found, not guessed; medians and quantiles; devices synchronised."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from suite.measured_seconds import Timing, median, quantile

Work = Callable[[], object]
WINDOW = 3  # samples of a running median
FALLING = 0.98  # a running median below this share of the one before still falls
LEAST_REPETITIONS = 3
MOST_WARM_UP = 40
MOST_REPETITIONS = 200
FLUSHED_CACHES = 2  # bytes overwritten before a sample, in sizes of the L2 cache
COLD_BYTES = 4 * 2**20  # overwritten by each thread before a cold sample on a CPU


class Stopwatch:
    """Times calls on one device: by the processor's clock, on CUDA by events with the L2 cache overwritten before."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._own = FLUSHED_CACHES * _cache_bytes(device)
        self._cache = torch.zeros(self._own, dtype=torch.int8, device=device)

    def overwrite(self) -> None:
        """Overwrite the cache: on CUDA the device has begun to, when this returns."""
        self._cache.zero_()

    def sample(self, work: Work, *, overwrites: int = 1) -> float:
        """Seconds of one call.

        On CUDA the overwriting keeps the device busy while the host hands over the call, so that the events have the
        device's time between them and not the host's. A call that the host needs longer for than for one overwriting
        needs several.
        """
        if not self._cuda:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(overwrites):
            self.overwrite()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end)) / 1000

    def cold_sample(self, work: Work) -> float:
        """Seconds of one call whose operands the caches do not hold, as those of most calls in a step.

        Between two calls of an operator, a layer apart, a step's other operators read and write 7 MB (mt-nlg-mini) to
        61 MB (codegeex-mini), so that weights, saved activations and the code itself are gone from a core's own caches.
        On a CPU each thread overwrites 4 MiB of its own before. Predicted from calls that repeat in warm caches, steps
        of 15 setups came out 26 % off in the median, with 1 MiB overwritten 22 %, with 4 MiB 7 % (2 cores of an AMD
        EPYC, L2 of 512 KiB, 2026-11-23). On CUDA the L2 cache is overwritten before every sample.
        """
        if not self._cuda:
            size = COLD_BYTES * torch.get_num_threads()
            if self._cache.numel() < size:
                self._cache = torch.zeros(size, dtype=torch.int8)
            self._cache[:size].add_(1)
        return self.sample(work)

    def host_sample(self, work: Work) -> float:
        """Seconds until the host has handed over one call, the device idle before.

        On a CPU the cache of its core is overwritten before, as operators do between the host's calls in a step: what
        the interpreter needs is no longer there. (A view took 2.8 us so and 1.4 us in a loop, a weight read 29 and 21,
        AMD EPYC, L2 of 512 KiB, 2026-11-21.)
        """
        if self._cuda:
            torch.cuda.synchronize(self._device)
        else:
            self._cache[: self._own].add_(1)
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def timing(
        self, work: Work, *, point_seconds: float, again: bool = False, sample: Callable[[Work], float] | None = None
    ) -> Timing:
        """Repeat `work` until it is warm, at least three times more, and for `point_seconds`, warm-up included.

        Args:
            again: it was warm in an earlier round: one call warms it again, and one repetition is the least.
        """
        take = sample or self.sample
        samples: list[float] = []
        start = time.perf_counter()
        if again:
            samples = [take(work), take(work)]
            warm_up = 1
        else:
            while not is_warm(samples) and len(samples) < MOST_WARM_UP:
                samples.append(take(work))
            warm_up = len(samples) - WINDOW
        while len(samples) - warm_up < MOST_REPETITIONS and time.perf_counter() - start < point_seconds:
            samples.append(take(work))
        return summary(samples, warm_up)


def _cache_bytes(device: torch.device) -> int:
    """Bytes of the L2 cache of a GPU, or of a processor's core where the system tells them, else 1 MiB."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="ascii").strip()
        return int(text.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 2**20


def is_warm(samples: list[float]) -> bool:
    """Whether the running median of 3 samples has stopped falling: the last one is within 2 % of the one before it.

    The samples of the last window then count as repetitions: the first steady ones.
    """
    if len(samples) < WINDOW + 1:
        return False
    return median(samples[-WINDOW:]) >= FALLING * median(samples[-WINDOW - 1 : -1])


def summary(samples: list[float], warm_up: int) -> Timing:
    """Median and quantiles of the samples behind the warm-up, to 4 digits; a clock that stood still says 1 ns."""
    steady = [max(sample, 1e-9) for sample in samples[warm_up:]]
    middle, low, high = (float(f"{quantile(steady, share):.4g}") for share in (0.5, 0.2, 0.8))
    return Timing(middle, low, high, len(steady), warm_up)
