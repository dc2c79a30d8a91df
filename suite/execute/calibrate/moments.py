"""Compares ranks at moments of a calibration: kernels by turns, one rank at a time; copies and triads by all at once.

What disturbs a rank lasts from milliseconds to minutes: other guests of the host, the other thread of its core.
So ranks take short turns, of each turn the fastest call counts, and turns are spread over the calibration.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from suite.execute.measure.clock import Call
from suite.execute.measure.cpu_speed import reference_kernels, seconds_of
from suite.job.calibration_job import CalibrationJob, RankMoments, Task
from suite.machine.cpu_speed import SpeedSample
from suite.machine.devices import usable_threads
from suite.machine.host_state import highest_hertz, one_of_each_core_first
from suite.machine.timings import median, quantile

TURN_SECONDS = 0.006  # of a processor, for one rank: one that is interrupted makes as many calls as another
TURNS_SECONDS = 0.5  # of the turns of all ranks, at each moment
LEAST_TURNS = 1  # of each rank, at each moment
LEAST_ROUNDS = 3  # of the kernels in a turn; the first finds cold caches and does not count
MOVES_SECONDS = 0.3  # of copies and triads, at each moment
PRODUCT_FLOP = 2.0 * 256**3  # of the 16-bit product: about as long as the other kernels
FASTEST = 0.1  # quantile over turns: of a rank that is disturbed nine tenths of the time it is the undisturbed speed


class RankComparison:
    """Measurements of this rank at the moments so far.

    Args:
        group: of all ranks, by gloo.
        work: the call of a task with such sizes, and its inputs; made anew at each moment, so that no memory stays
            occupied.

    Attributes:
        seconds: of all moments.
    """

    def __init__(
        self, job: CalibrationJob, group: dist.ProcessGroup, work: Callable[[Task, tuple[int, ...]], Call]
    ) -> None:
        self._job, self._group, self._work = job, group, work
        self._kernels: tuple[Call, ...] = ()
        self._turns: list[tuple[float, ...]] = []
        self._moves: dict[str, list[float]] = {"copy": [], "triad": []}
        self._tasks = {task.subject.operation: task for task in job.tasks if _moves(task, job.ranks)}
        self._product = _product_of(job)
        self._processor: int | None = None
        self.seconds = 0.0

    def measure(self) -> None:
        """One moment. All ranks call it together."""
        start = time.perf_counter()
        torch.set_num_threads(self._job.threads)
        self._kernels = self._kernels or reference_kernels()
        products = [] if self._product is None else [self._work(*self._product)]
        with on_own_processor(dist.get_rank(self._group), self._job.threads) as self._processor:
            self._turns += turns([*self._kernels, *products], self._group, TURNS_SECONDS)
        for operation, task in self._tasks.items():
            self._moves[operation].append(self._rate(task))
        self.seconds += time.perf_counter() - start

    def _rate(self, task: Task) -> float:
        """byte/s of the largest copy or triad, while all ranks make it; the first call does not count."""
        call, moved = self._work(task, task.sizes[-1]), task.sizes[-1][0]
        call()
        dist.barrier(group=self._group)
        end = time.perf_counter() + MOVES_SECONDS / len(self._tasks)
        seconds = [seconds_of(call)]
        while time.perf_counter() < end:
            seconds.append(seconds_of(call))
        return moved / median(seconds)

    @property
    def of_rank(self) -> RankMoments | None:
        """None without moments."""
        if not self._turns:
            return None
        fastest, middle = (
            [quantile(calls, share) for calls in zip(*self._turns, strict=True)] for share in (FASTEST, 0.5)
        )
        rates = {operation: tuple(rates) for operation, rates in self._moves.items()}
        return RankMoments(
            turns=len(self._turns),
            processor=self._processor,
            highest_hertz=None if self._processor is None else highest_hertz(self._processor),
            fastest=_sample(fastest),
            middle=_sample(middle),
            product=None if self._product is None else fastest[-1],
            **rates,
        )


def _sample(seconds: Sequence[float]) -> SpeedSample:
    """Sample of the reference kernels, which come first."""
    return SpeedSample(**dict(zip(SpeedSample.__struct_fields__, seconds, strict=False)))


def _product_of(job: CalibrationJob) -> tuple[Task, tuple[int, ...]] | None:
    """The 16-bit product of all ranks that is nearest to `PRODUCT_FLOP`; None without any."""
    products = [
        (task, sizes)
        for task in job.tasks
        if (task.subject.operation, task.subject.dtype, task.subject.ranks) == ("product", "bf16", job.ranks)
        for sizes in task.sizes
    ]
    return min(products, key=lambda product: abs(math.log(2 * math.prod(product[1]) / PRODUCT_FLOP)), default=None)


def _moves(task: Task, ranks: int) -> bool:
    """Whether all ranks time copies or triads in the task, with the largest last."""
    return task.subject.ranks == ranks and task.subject.operation in ("copy", "triad") and len(task.sizes) > 1


def turns(kernels: Sequence[Call], group: dist.ProcessGroup, seconds: float) -> list[tuple[float, ...]]:
    """Seconds of each kernel's fastest call in each turn of this rank. Ranks compute one after another.

    A message passes the turn from rank to rank; the first rank decides by its clock when the turns end.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    dist.barrier(group=group)
    end, token = time.perf_counter() + seconds, torch.ones(1)
    taken: list[tuple[float, ...]] = []
    while True:
        if rank == 0:
            token.fill_(len(taken) < LEAST_TURNS or time.perf_counter() < end)
        else:
            dist.recv(token, group_src=rank - 1, group=group)
        if goes_on := bool(token):
            taken.append(turn(kernels))
        if ranks > 1:
            dist.send(token, group_dst=(rank + 1) % ranks, group=group)
            if rank == 0:
                dist.recv(token, group_src=ranks - 1, group=group)
        if not goes_on:
            return taken


def turn(kernels: Sequence[Call]) -> tuple[float, ...]:
    """The seconds of each kernel's fastest call in one turn."""
    end = time.thread_time() + TURN_SECONDS
    rounds: list[tuple[float, ...]] = []
    while len(rounds) < LEAST_ROUNDS or time.thread_time() < end:
        rounds.append(tuple(map(seconds_of, kernels)))
    return tuple(map(min, zip(*rounds[1:], strict=True)))


@contextmanager
def on_own_processor(rank: int, threads: int) -> Iterator[int | None]:
    """Keep a rank with one thread on a processor of its own. The system may run a rank where that ran which woke it.

    Several threads stay where the system puts them: None. Ranks have cores of their own as long as there are some.
    """
    before = usable_threads()
    if threads > 1 or not hasattr(os, "sched_setaffinity"):  # not on macOS
        yield None
        return
    own = one_of_each_core_first(before)[rank % len(before)]
    os.sched_setaffinity(0, {own})
    try:
        yield own
    finally:
        os.sched_setaffinity(0, before)
