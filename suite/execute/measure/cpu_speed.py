"""Measures the pace of a rank's processors: laps of fixed work between the steps or tasks that are timed."""

from __future__ import annotations

import itertools
import math
import statistics
import time

import torch
from torch import Tensor

from suite.execute.measure.clock import Work
from suite.machine import cpu_caches
from suite.machine.cpu_speed import SpeedSample, middle

LAP_SECONDS = 0.006  # a lap ends by the clock, so that ranks which began together end together
LAPS_IN_A_ROW = 4  # at most between two timed steps, and in a calibration
LAPS_AROUND = 2  # before the first timed step, and behind the last one
LAPS_SHARE = 0.01  # of the timed steps' seconds, that laps between them take
CALLS = 8  # of the host's piece: about as long as the others
PRODUCT_SIZE = 192  # of a square product in fp32: 0.4 MB, in the caches of a core
ELEMENTS = 3 * 2**14  # of the element-wise piece: above PyTorch's grain of 2^15, so that all threads take part
STREAMED = 2**18  # elements of fp32, of the memory's piece: 1 MiB read and written
MOST_STREAMED_THROUGH = 128 * 2**20  # bytes through which a rank's pieces go, one behind the other


class SpeedSampler:
    """Takes laps on one rank; on a processor alone, since a GPU's clocks are logged by its driver.

    A lap goes round the pieces until its time is over; the first round finds cold caches and does not count. Their
    tensors are made for the first lap: the peak of memory is counted before.
    """

    def __init__(self, device: torch.device) -> None:
        self._laps: list[SpeedSample] = []
        self._on_processor = device.type == "cpu"
        self._made: tuple[Work, ...] | None = None
        self._step_seconds = 0.0
        self._due = 0.0  # laps between steps that are owed

    @property
    def takes_laps(self) -> bool:
        """Whether the device is a processor."""
        return self._on_processor

    def expect(self, step_seconds: float) -> None:
        """Take laps between steps for `LAPS_SHARE` of so many seconds a step: the same on all ranks, so that none waits
        in a timed step for another one's laps. A run expects what its fastest step before the timed ones took."""
        self._step_seconds = step_seconds

    def behind_a_step(self) -> None:
        """The laps that are due behind one more timed step."""
        self._due = min(self._due + LAPS_SHARE * self._step_seconds / LAP_SECONDS, LAPS_IN_A_ROW)
        self.laps(int(self._due))
        self._due -= int(self._due)

    def laps(self, count: int) -> None:
        """Work for so many laps."""
        for _ in range(count):
            self.lap()

    def lap(self) -> None:
        """Work for a lap's time."""
        if not self._on_processor:
            return
        self._made = pieces = self._made or _pieces()
        end = time.perf_counter() + LAP_SECONDS
        rounds: list[tuple[float, ...]] = []
        while len(rounds) < 2 or time.perf_counter() < end:
            rounds.append(tuple(map(_seconds, pieces)))
        host, product, elementwise, memory = (statistics.fmean(seconds) for seconds in zip(*rounds[1:], strict=True))
        self._laps.append(SpeedSample(host=host, product=product, elementwise=elementwise, memory=memory))

    @property
    def pace(self) -> SpeedSample | None:
        """The median over laps; None where there are none."""
        return middle(self._laps)


def _pieces() -> tuple[Work, ...]:
    """Calls, product, element-wise, memory; they draw no random numbers, allocate nothing later, record no gradients.

    The memory's piece goes through twice what the caches hold, so that what it meets again is no longer in them; where
    they hold more than half of `MOST_STREAMED_THROUGH`, part of it is.
    """
    tiny = torch.zeros(8)
    x_NN = torch.linspace(-1, 1, PRODUCT_SIZE * PRODUCT_SIZE).view(PRODUCT_SIZE, PRODUCT_SIZE)
    y_NN, z_E = torch.empty_like(x_NN), torch.linspace(-4, 4, ELEMENTS)
    out_E = torch.empty_like(z_E)
    following = itertools.cycle(_parts())

    def calls() -> None:
        for _ in range(CALLS):
            tiny.add_(1.0)

    return (
        calls,
        lambda: torch.mm(x_NN, x_NN, out=y_NN),
        lambda: torch.exp(z_E, out=out_E),
        lambda: next(following).mul_(1.0),
    )


def _parts() -> tuple[Tensor, ...]:
    """Tensors of `STREAMED` elements, together twice what the threads' caches hold, or the most there may be."""
    size = min(2 * cpu_caches.share_bytes() * torch.get_num_threads(), MOST_STREAMED_THROUGH)
    return torch.ones(max(2, math.ceil(size / (STREAMED * torch.float32.itemsize))), STREAMED).unbind()


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
