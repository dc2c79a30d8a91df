"""Shares of this machine's processors that ranks, other processes and other guests of the host take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

WATCHED_SECONDS = 2.0
LEAST_CORES = 0.05  # of one core: a process that uses less is not named


class Competitor(msgspec.Struct, frozen=True, kw_only=True):
    """Another process, and the number of processor cores that it used."""

    pid: int
    name: str
    cores: float


def competitors(seconds: float = WATCHED_SECONDS) -> tuple[list[Competitor], float]:
    """Processes that used 5 % of a core or more while this one slept, busiest first; the share of all processors used.

    The share is of the cores of the whole system, and counts what other guests of the host took.
    """
    import psutil

    before = _process_seconds()
    share = psutil.cpu_percent(seconds) / 100  # sleeps
    busiest = []
    for process, (name, end) in _process_seconds().items():
        _, begin = before.get(process, ("", 0.0))
        if process.pid != os.getpid() and (cores := (end - begin) / seconds) >= LEAST_CORES:
            busiest.append(Competitor(pid=process.pid, name=name, cores=cores))
    return sorted(busiest, key=lambda process: -process.cores), share


class _Process(NamedTuple):
    """A process by its number and when it started; its name may change, as those of the kernel's workers do."""

    pid: int
    started: float


def _process_seconds() -> dict[_Process, tuple[str, float]]:
    """Name and processor time of every visible process."""
    import psutil

    processes = psutil.process_iter(["pid", "create_time", "name", "cpu_times"])
    return {
        _Process(process.info["pid"], process.info["create_time"]): (
            process.info["name"],
            sum(process.info["cpu_times"][:2]),  # user and system
        )
        for process in processes
        if process.info["cpu_times"] is not None  # of another user, where the system hides it
    }


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time while a rank worked, in seconds.

    Args:
        own: of this rank's process.
        busy, steal, whole: of all processors: in use, taken by other guests of the host, and the total.
    """

    own: float
    busy: float
    steal: float
    whole: float


def others_shares(of_ranks: Sequence[Shared | None]) -> tuple[float, float] | tuple[None, None]:
    """Shares of the processors that other processes, and other guests of the host, used in rank 0's time.

    None where the system does not report them.
    """
    reported = [shared for shared in of_ranks if shared is not None]
    if len(reported) < len(of_ranks) or not reported or not reported[0].whole:
        return None, None
    first = reported[0]
    ranks_seconds = sum(shared.own for shared in reported)
    return max(0.0, first.busy - ranks_seconds) / first.whole, first.steal / first.whole
