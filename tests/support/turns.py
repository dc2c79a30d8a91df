"""Turns of tests that run side by side: one that is `alone` waits until no other runs, and they wait for it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(directory: Path, *, alone: bool, place: str = "") -> Iterator[None]:
    """Hold the lock that all workers of a test run share, together with others or alone.

    Whoever waits for the lock holds the door meanwhile. So those that share it cannot keep out one that wants it alone.

    Args:
        place: name of a further lock, which one test holds at a time.
    """
    with contextlib.ExitStack() as stack:
        if place:
            stack.enter_context(held(directory / place))
        with held(directory / "door"):
            stack.enter_context(held(directory / "lock", shared=not alone))
        yield


@contextlib.contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock; it is given back even where a child that was forked has the file open."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
