"""Measures the speed of a rank's CPU: samples of reference kernels between the timed steps or tasks."""

from __future__ import annotations

import itertools
import math
import statistics
import time

import torch
from torch import Tensor

from suite.execute.measure.clock import Call
from suite.machine import cpu_caches
from suite.machine.cpu_speed import SpeedSample, middle

SAMPLE_SECONDS = 0.006  # a sample ends by the clock, so that ranks that start together end together
MOST_SAMPLES_IN_A_ROW = 4  # at most between two timed steps, and in a calibration
SAMPLES_AROUND = 2  # before the first timed step, and after the last one
SAMPLES_SHARE = 0.01  # of the timed steps' seconds, for samples between them
CALLS = 8  # of the host kernel: about as long as the other kernels
PRODUCT_SIZE = 192  # of a square product in fp32: 0.4 MB, in the caches of a core
ELEMENTS = 3 * 2**14  # of the element-wise kernel: above PyTorch's grain of 2^15, so that all threads take part
STREAMED = 2**18  # elements in fp32 of one call of the memory kernel: 1 MiB read and written
MOST_STREAMED_THROUGH = 128 * 2**20  # bytes that successive calls of a rank's memory kernel go through


class SpeedSampler:
    """Takes CPU speed samples on one rank. It does nothing on a GPU, whose driver logs the clocks.

    A sample repeats the reference kernels until its time is over. The first repetition finds cold caches and does not
    count. The tensors are allocated at the first sample, after the peak of memory was counted.
    """

    def __init__(self, device: torch.device) -> None:
        self._samples: list[SpeedSample] = []
        self.takes_samples = device.type == "cpu"
        self._kernels: tuple[Call, ...] | None = None
        self._step_seconds = 0.0
        self._due = 0.0  # samples to take between steps

    def expect(self, step_seconds: float) -> None:
        """Plan samples between steps for `SAMPLES_SHARE` of the time, given the seconds of a step.

        The number must be the same on all ranks, so that no rank waits for another one's samples in a timed step.
        """
        self._step_seconds = step_seconds

    def after_step(self) -> None:
        """Take the samples that are due after one more timed step."""
        self._due = min(self._due + SAMPLES_SHARE * self._step_seconds / SAMPLE_SECONDS, MOST_SAMPLES_IN_A_ROW)
        self.take_samples(int(self._due))
        self._due -= int(self._due)

    def take_samples(self, count: int) -> None:
        for _ in range(count):
            self.take_sample()

    def take_sample(self) -> None:
        """Run the reference kernels for the time of a sample."""
        if not self.takes_samples:
            return
        self._kernels = kernels = self._kernels or reference_kernels()
        end = time.perf_counter() + SAMPLE_SECONDS
        rounds: list[tuple[float, ...]] = []
        while len(rounds) < 2 or time.perf_counter() < end:
            rounds.append(tuple(map(seconds_of, kernels)))
        host, product, elementwise, memory = (statistics.fmean(seconds) for seconds in zip(*rounds[1:], strict=True))
        self._samples.append(SpeedSample(host=host, product=product, elementwise=elementwise, memory=memory))

    @property
    def median(self) -> SpeedSample | None:
        return middle(self._samples)


def reference_kernels() -> tuple[Call, ...]:
    """Host calls, product, element-wise, memory. None draws random numbers, allocates memory or records gradients."""
    tiny = torch.zeros(8)
    x_NN = torch.linspace(-1, 1, PRODUCT_SIZE * PRODUCT_SIZE).view(PRODUCT_SIZE, PRODUCT_SIZE)
    y_NN, z_E = torch.empty_like(x_NN), torch.linspace(-4, 4, ELEMENTS)
    out_E = torch.empty_like(z_E)
    next_part = itertools.cycle(_parts())

    def calls() -> None:
        for _ in range(CALLS):
            tiny.add_(1.0)

    return (
        calls,
        lambda: torch.mm(x_NN, x_NN, out=y_NN),
        lambda: torch.exp(z_E, out=out_E),
        lambda: next(next_part).mul_(1.0),
    )


def _parts() -> tuple[Tensor, ...]:
    """Buffers of successive calls of the memory kernel: twice the threads' caches, so that each finds cold ones."""
    size = min(2 * cpu_caches.share_bytes() * torch.get_num_threads(), MOST_STREAMED_THROUGH)
    return torch.ones(max(2, math.ceil(size / (STREAMED * torch.float32.itemsize))), STREAMED).unbind()


def seconds_of(work: Call) -> float:
    """Seconds of one call, by the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
