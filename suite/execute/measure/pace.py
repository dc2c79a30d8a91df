"""Measures the pace of a rank's processors: laps of fixed work between the steps or tasks that are timed."""

from __future__ import annotations

import statistics
import time

import torch

from suite.execute.measure.stopwatch import Work
from suite.pace import Pace, middle

LAP_SECONDS = 0.006  # a lap ends by the clock, so that ranks which began together end together
LAPS_AT_A_STEP = 2  # before each timed step, and behind it
CALLS = 8  # of the host's piece: about as long as the others
PRODUCT_SIZE = 192  # of a square product in fp32: 0.4 MB, in the caches of a core
ELEMENTS = 3 * 2**14  # of the element-wise piece: above PyTorch's grain of 2^15, so that all threads take part


class Pacer:
    """Takes laps on one rank; on a processor alone, since a GPU's clocks are logged by its driver.

    A lap goes round the pieces until its time is over; the first round finds cold caches and does not count. Their
    tensors are made for the first lap: the peak of memory is counted before.
    """

    def __init__(self, device: torch.device) -> None:
        self._laps: list[Pace] = []
        self._on_processor = device.type == "cpu"
        self._made: tuple[Work, Work, Work] | None = None

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
        host, product, elementwise = (statistics.fmean(seconds) for seconds in zip(*rounds[1:], strict=True))
        self._laps.append(Pace(host=host, product=product, elementwise=elementwise))

    @property
    def pace(self) -> Pace | None:
        """The median over laps; None where there are none."""
        return middle(self._laps)


def _pieces() -> tuple[Work, Work, Work]:
    """Calls, product, element-wise; they draw no random numbers, allocate nothing later, and record no gradients."""
    tiny = torch.zeros(8)
    x_NN = torch.linspace(-1, 1, PRODUCT_SIZE * PRODUCT_SIZE).view(PRODUCT_SIZE, PRODUCT_SIZE)
    y_NN, z_E = torch.empty_like(x_NN), torch.linspace(-4, 4, ELEMENTS)
    out_E = torch.empty_like(z_E)

    def calls() -> None:
        for _ in range(CALLS):
            tiny.add_(1.0)

    return calls, lambda: torch.mm(x_NN, x_NN, out=y_NN), lambda: torch.exp(z_E, out=out_E)


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
