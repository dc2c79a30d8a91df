"""Collectives timed: every rank of the group repeats them equally often, and the slowest one counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from suite.execute.calibrate.matmul import DTYPES, Inputs
from suite.execute.calibrate.stopwatch import FALLING, MOST_REPETITIONS, Stopwatch, is_long, repetitions_behind
from suite.execute.measure.clock import Work
from suite.execute.parallel.mesh import slowest
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions, median

BLOCK = 4  # samples between which the ranks agree on how to go on
MOST_WARM_UP_BLOCKS = 8

# torch 2.13 renamed both and warns of the old names; 2.11 has only the old ones
_all_gather: Callable[..., Any] = (
    dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
)
_reduce_scatter: Callable[..., Any] = (
    dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
)


class TimedCollective(NamedTuple):
    """A collective to be timed, and what makes its input anew before each call, untimed."""

    prepare: Work
    work: Work


def collective(subject: Subject, sizes: tuple[int, ...], inputs: Inputs, group: dist.ProcessGroup) -> TimedCollective:
    """The collective with `sizes[0]` bytes of payload: its input; for all_gather its output.

    all_reduce adds in place: its input is made anew, because sums of sums would grow without bound.
    send: rank 0 sends to rank 1, which sends as much back: a call is two messages.
    """
    ranks, rank = group.size(), group.rank()
    dtype = DTYPES[subject.dtype]
    elements = max(ranks, sizes[0] // dtype.itemsize // ranks * ranks)
    whole = inputs.normal(elements, dtype=dtype).clone()
    part = torch.zeros(elements // ranks, dtype=dtype, device=inputs.device)
    received = torch.empty_like(whole)

    def ping_pong() -> None:
        if rank == 0:
            dist.send(whole, group_dst=1, group=group)
            dist.recv(received, group_src=1, group=group)
        else:
            dist.recv(received, group_src=0, group=group)
            dist.send(whole, group_dst=0, group=group)

    summed = torch.empty_like(whole)
    work = {
        "all_reduce": lambda: dist.all_reduce(summed, group=group),
        "all_gather": lambda: _all_gather(received, part, group=group),
        "reduce_scatter": lambda: _reduce_scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, whole, group=group),
        "send": ping_pong,
    }[subject.operation]
    return TimedCollective((lambda: summed.copy_(whole)) if subject.operation == "all_reduce" else (lambda: None), work)


def collective_repetitions(
    timed: TimedCollective, watch: Stopwatch, agree: dist.ProcessGroup, *, point_seconds: float, known: float | None
) -> Repetitions:
    """As `Stopwatch.repetitions`, in blocks of 4, after which all of `agree` decide alike from the slowest's times.

    Args:
        known: seconds that a call took in an earlier round, the same on all ranks.
    """

    def sample() -> float:
        timed.prepare()
        return watch.sample(timed.work)

    samples: list[float] = []
    start = time.perf_counter()
    before, warm_up = float("inf"), 0
    if known is not None and is_long(known, point_seconds):
        return repetitions_behind([sample()], 0)
    if known is not None:
        warm_up = 1
        samples = [sample() for _ in range(1 + BLOCK)]
    for block in range(MOST_WARM_UP_BLOCKS if known is None else 0):
        samples += [sample() for _ in range(BLOCK)]
        (now,) = slowest(agree, median(samples[-BLOCK:]))
        warm_up = block * BLOCK
        if now >= FALLING * before:
            break
        before = now
    while len(samples) - warm_up < MOST_REPETITIONS:
        (spent,) = slowest(agree, time.perf_counter() - start)
        if spent >= point_seconds:
            break
        samples += [sample() for _ in range(BLOCK)]
    return repetitions_behind(samples, warm_up)
