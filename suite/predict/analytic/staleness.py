"""Throughput and staleness of data-parallel workers that wait for each other at every iteration, seldom or never."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class IterationTimes(NamedTuple):
    """Seconds from the beginning at which each worker starts and finishes each iteration: [worker][iteration]."""

    starts: list[list[float]]
    finishes: list[list[float]]


class BoundedTraining(NamedTuple):
    """A training under a staleness bound, from given iteration times.

    seconds                  until the last worker has finished its last iteration
    iterations_per_second    iterations of all workers together over `seconds`
    largest_staleness        in iterations, over all starts of an iteration by a worker
    """

    seconds: float
    iterations_per_second: float
    largest_staleness: int


def iteration_times(iteration_seconds: Sequence[Sequence[float]], *, bound: int | None) -> IterationTimes:
    """Starts and finishes, in seconds, of workers whose iterations take iteration_seconds[worker][iteration].

    A worker that starts its iteration i has finished i of them, and is ahead by i less what the slowest worker has
    finished by then. It starts as soon as that is at most the bound S: when every worker has finished iteration
    i - S - 1, counted from 0. So, over all workers q, and leaving out what would be before iteration 0,
        start(p, i)  = max(finish(p, i - 1), max finish(q, i - S - 1))
        finish(p, i) = start(p, i) + seconds of p in i
    S = 0 is bulk-synchronous (BSP); None is asynchronous (ASP), and so is any S of at least iterations - 1.

    Source: Ho et al. 2013 (NIPS), stale synchronous parallel: a worker at clock c reads all updates up to c - S - 1.
    Differs from a bound on finished iterations: a blocked worker has finished S + 1 more than the slowest.
    Left out: the seconds of reading and sending, and updates that arrive before they are due.

    Raises:
        ValueError: no workers or no iterations, workers with different numbers of iterations, seconds that are not
            above 0 and finite, or a negative bound.
    """
    _refuse_impossible_seconds(iteration_seconds)
    if bound is not None and bound < 0:
        raise ValueError(f"bound must be at least 0, or None for unbounded, got {bound}")
    starts: list[list[float]] = [[] for _ in iteration_seconds]
    finishes: list[list[float]] = [[] for _ in iteration_seconds]
    for iteration in range(len(iteration_seconds[0])):
        gate: float = 0
        if bound is not None and iteration > bound:
            gate = max(own[iteration - bound - 1] for own in finishes)
        for begun, finished, seconds in zip(starts, finishes, iteration_seconds, strict=True):
            begun.append(max(finished[-1], gate) if finished else gate)
            finished.append(begun[-1] + seconds[iteration])
    return IterationTimes(starts, finishes)


def bounded_training(iteration_seconds: Sequence[Sequence[float]], *, bound: int | None) -> BoundedTraining:
    """Time, throughput and staleness of workers that start at most `bound` iterations ahead of the slowest.

    Staleness of a start is how far ahead the worker then is, as `iteration_times` defines it: the iterations of the
    slowest worker whose updates its weights lack. What finishes at the moment of a start counts as finished.
    No worker blocks after its last iteration, so under BSP the last barrier counts in `seconds` alone.

    With constant speeds every S short of None comes to run at the speed of BSP: a bound hides delays that come and go,
    not a slow machine.

    Raises:
        ValueError: as `iteration_times`.
    """
    starts, finishes = iteration_times(iteration_seconds, bound=bound)
    finished_by_all = [max(ends) for ends in zip(*finishes, strict=True)]
    staleness = [
        iteration - bisect_right(finished_by_all, start, hi=iteration)
        for begun in starts
        for iteration, start in enumerate(begun)
    ]
    return BoundedTraining(
        seconds=finished_by_all[-1],
        iterations_per_second=len(staleness) / finished_by_all[-1],
        largest_staleness=max(staleness),
    )


def steady_iterations_per_second(iteration_seconds: Sequence[Sequence[float]], *, bound: int | None) -> float:
    """Iterations of all workers in a second while none has finished its last: the sum of each one's own rate.

    Of worker p, whose I iterations end at finish(p, I - 1): I / finish(p, I - 1). It grows with the bound, from that of
    barriers to that of workers that never wait.

    Differs from `bounded_training`, which counts until the last worker has finished: with one slow worker that is its
    own time under any bound.

    Raises:
        ValueError: as `iteration_times`.
    """
    _, finishes = iteration_times(iteration_seconds, bound=bound)
    return sum(len(own) / own[-1] for own in finishes)


def _refuse_impossible_seconds(iteration_seconds: Sequence[Sequence[float]]) -> None:
    if not iteration_seconds or not iteration_seconds[0]:
        raise ValueError("iteration_seconds must have at least 1 worker with at least 1 iteration")
    iterations = len(iteration_seconds[0])
    for worker, seconds in enumerate(iteration_seconds):
        if len(seconds) != iterations:
            raise ValueError(f"worker {worker} must have {iterations} iterations as worker 0 has, got {len(seconds)}")
        for iteration, value in enumerate(seconds):
            if not 0 < value < math.inf:
                raise ValueError(
                    f"seconds of worker {worker} in iteration {iteration} must be above 0 and finite, got {value}"
                )
