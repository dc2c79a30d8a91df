"""The processor's caches that this process may use, as the system tells them; no torch is imported here."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

UNKNOWN_SHARE = 4 * 2**20  # of the caches, where the system does not tell: two to four times a usual second level
PROCESSORS = Path("/sys/devices/system/cpu")


class Cache(NamedTuple):
    """One cache: of which level, its bytes, and the numbers of the usable hardware threads that have it."""

    level: int
    size: int
    threads: frozenset[int]


def usable_threads() -> frozenset[int]:
    """Numbers of the hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def later_caches(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> frozenset[Cache]:
    """Caches of the second and later levels; empty where the system does not tell.

    Args:
        usable: numbers of hardware threads; None: those that this process may use.
    """
    usable = usable_threads() if usable is None else usable
    found = set()
    for thread in usable:
        for place in (processors / f"cpu{thread}" / "cache").glob("index*"):
            with contextlib.suppress(OSError, ValueError):
                level, size, sharing = (
                    (place / name).read_text(encoding="ascii").strip() for name in ("level", "size", "shared_cpu_map")
                )
                mask = int(sharing.replace(",", ""), 16)
                threads = frozenset(number for number in usable if mask >> number & 1) or frozenset({thread})
                if int(level) > 1:
                    found.add(Cache(int(level), int(size.removesuffix("K")) * 1024, threads))
    return frozenset(found)


def share_bytes(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> int:
    """Of the second and later caches, the share of the first of the usable hardware threads among those that have them.

    The sum over the levels, because a cache may hold what the one before it has put out (AMD's third level does).
    `UNKNOWN_SHARE` where the system does not tell.
    """
    usable = usable_threads() if usable is None else usable
    caches = later_caches(processors, usable)
    return sum(one.size // len(one.threads) for one in caches if min(usable) in one.threads) or UNKNOWN_SHARE


def all_bytes(processors: Path = PROCESSORS, usable: frozenset[int] | None = None) -> int:
    """Of all second and later caches together; 0 where the system does not tell."""
    return sum(one.size for one in later_caches(processors, usable))
