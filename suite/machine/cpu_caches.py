"""The processor's caches that this process may use, as the system reports them; no torch is imported here."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from suite.machine.devices import usable_threads

UNKNOWN_SHARE = 4 * 2**20  # of the caches, where the system reports none: two to four times a usual second level
PROCESSORS = Path("/sys/devices/system/cpu")


class Cache(NamedTuple):
    """One cache: its level, its bytes, and the numbers of the usable hardware threads that share it."""

    level: int
    size: int
    threads: frozenset[int]


def later_caches(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> frozenset[Cache]:
    """Caches of the second and later levels; empty where the system reports none.

    Args:
        usable: numbers of hardware threads; None: those that this process may use.
    """
    usable = usable_threads() if usable is None else usable
    caches = set()
    for thread in usable:
        for directory in (processors / f"cpu{thread}" / "cache").glob("index*"):
            with contextlib.suppress(OSError, ValueError):
                level, size, sharing = (
                    (directory / name).read_text(encoding="ascii").strip()
                    for name in ("level", "size", "shared_cpu_map")
                )
                mask = int(sharing.replace(",", ""), 16)
                threads = frozenset(number for number in usable if mask >> number & 1) or frozenset({thread})
                if int(level) > 1:
                    caches.add(Cache(int(level), int(size.removesuffix("K")) * 1024, threads))
    return frozenset(caches)


def share_bytes(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> int:
    """Bytes of the second and later caches for one hardware thread: each cache divided by the threads that share it.

    The thread is the first usable one. The levels are added, because a cache may hold what the previous level evicted
    (as AMD's third level does). `UNKNOWN_SHARE` where the system reports no caches.
    """
    usable = usable_threads() if usable is None else usable
    caches = later_caches(processors, usable)
    shares = (cache.size // len(cache.threads) for cache in caches if min(usable) in cache.threads)
    return sum(shares) or UNKNOWN_SHARE


def all_bytes(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> int:
    """Bytes of all second and later caches together; 0 where the system reports none."""
    return sum(cache.size for cache in later_caches(processors, usable))
