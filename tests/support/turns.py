"""Turns of tests that run side by side: one that is `alone` waits until no other runs, and they wait for it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Hold the lock that all workers of a test run share, together with others or alone.

    Whoever waits for the lock holds the door meanwhile. So those that share it cannot keep out one that wants it alone.
    """
    with open(directory / "door", "w") as door, open(directory / "lock", "w") as lock:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield  # closing the file gives the lock back
