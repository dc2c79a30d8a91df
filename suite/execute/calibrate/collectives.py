"""Collectives timed: every rank of the group repeats them equally often, and the slowest rank decides how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from suite.execute.calibrate.operators import DTYPES, Inputs
from suite.execute.calibrate.stopwatch import FALLING, MOST_REPETITIONS, Stopwatch, after_warm_up, is_long
from suite.execute.measure.clock import Call
from suite.execute.parallel.mesh import slowest
from suite.execute.parallel.one_bit.all_reduce import all_gather
from suite.machine.timing_tables import Subject
from suite.machine.timings import Repetitions, median

BLOCK = 4  # samples after which the ranks decide together how to continue
MOST_WARM_UP_BLOCKS = 8

# torch 2.13 renamed it and warns of the old name; 2.11 has only the old one
_reduce_scatter: Callable[..., Any] = (
    dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
)


class TimedCollective(NamedTuple):
    """A collective to be timed, and what prepares its input before each call, untimed."""

    prepare: Call
    call: Call


def collective(subject: Subject, sizes: tuple[int, ...], inputs: Inputs, group: dist.ProcessGroup) -> TimedCollective:
    """The collective with `sizes[0]` bytes of payload: its input; for all_gather its output.

    all_reduce adds in place. Its input is restored before each call, because sums of sums would grow without bound.
    send: rank 0 sends to rank 1, which sends as much back: a call is two messages.
    """
    ranks, rank = group.size(), group.rank()
    dtype = DTYPES[subject.dtype]
    elements = max(ranks, sizes[0] // dtype.itemsize // ranks * ranks)
    whole = inputs.normal(elements, dtype=dtype).clone()
    part = torch.zeros(elements // ranks, dtype=dtype, device=inputs.device)
    received, summed = torch.empty_like(whole), torch.empty_like(whole)

    def ping_pong() -> None:
        if rank == 0:
            dist.send(whole, group_dst=1, group=group)
            dist.recv(received, group_src=1, group=group)
        else:
            dist.recv(received, group_src=0, group=group)
            dist.send(whole, group_dst=0, group=group)

    call = {
        "all_reduce": lambda: dist.all_reduce(summed, group=group),
        "all_gather": lambda: all_gather(received, part, group=group),
        "reduce_scatter": lambda: _reduce_scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, whole, group=group),
        "send": ping_pong,
    }[subject.operation]
    return TimedCollective((lambda: summed.copy_(whole)) if subject.operation == "all_reduce" else (lambda: None), call)


def collective_repetitions(
    timed: TimedCollective, watch: Stopwatch, group: dist.ProcessGroup, *, point_seconds: float, known: float | None
) -> Repetitions:
    """As `Stopwatch.repetitions`, in blocks of 4, after which all ranks decide alike from the slowest rank's times.

    Args:
        group: the same ranks, by gloo.
        known: seconds of a call in an earlier round, the same on all ranks; None in the first round.
    """

    def sample() -> float:
        timed.prepare()
        return watch.sample(timed.call)

    start, warm_up = time.perf_counter(), 0
    if known is not None:
        if is_long(known, point_seconds):
            return after_warm_up([sample()], 0)
        warm_up, samples = 1, [sample() for _ in range(1 + BLOCK)]
    else:
        samples, previous = [], float("inf")
        for block in range(MOST_WARM_UP_BLOCKS):
            samples += [sample() for _ in range(BLOCK)]
            (usual,) = slowest(group, median(samples[-BLOCK:]))
            warm_up = block * BLOCK
            if usual >= FALLING * previous:
                break
            previous = usual
    while len(samples) - warm_up < MOST_REPETITIONS:
        (spent,) = slowest(group, time.perf_counter() - start)
        if spent >= point_seconds:
            break
        samples += [sample() for _ in range(BLOCK)]
    return after_warm_up(samples, warm_up)
