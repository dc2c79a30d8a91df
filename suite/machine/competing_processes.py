"""Other processes that compute on this machine, and the processor time that they use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

WATCHED_SECONDS = 2.0
LEAST_CORES = 0.05  # of one core: a process that uses less is not named


def competitors(seconds: float = WATCHED_SECONDS) -> tuple[list[Competitor], float | None]:
    """Processes that used 5 % of a core or more while this one slept, busiest first; the share of all processors used.

    The share is of the cores of the whole system, and None where /proc does not report it.
    """
    before, busy_before = _processes(), _busy()
    time.sleep(seconds)
    after, busy_after = _processes(), _busy()
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    busiest = []
    for pid, (name, ticks) in after.items():
        cores = (ticks - before.get(pid, (name, 0))[1]) / ticks_per_second / seconds
        if pid != os.getpid() and cores >= LEAST_CORES:
            busiest.append(Competitor(pid=pid, name=name, cores=cores))
    share = None
    if busy_before is not None and busy_after is not None and busy_after[1] > busy_before[1]:
        share = (busy_after[0] - busy_before[0]) / (busy_after[1] - busy_before[1])
    return sorted(busiest, key=lambda process: -process.cores), share


def _processes() -> dict[int, tuple[str, int]]:
    """Name and processor time in ticks, by process number, of every visible process."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            fields = tail.split()
            processes[int(path.parent.name)] = (head.partition("(")[2], int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):
            continue
    return processes


def _busy() -> tuple[int, int] | None:
    """Used ticks of all processors, and all ticks."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (*ticks, *[0] * 8)[:8]
    return user + nice + system + irq + softirq + steal, sum(ticks)


class Competitor(msgspec.Struct, frozen=True, kw_only=True):
    """Another process, and the number of processor cores that it used."""

    pid: int
    name: str
    cores: float
