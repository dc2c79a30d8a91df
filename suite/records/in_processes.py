"""Work on many files shared out over processes, also where none can be had."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(work: Callable[[Item], Result], items: Sequence[Item], *, processes: int) -> Iterator[Result]:
    """Results of `work` on each item, in their order: of new processes, or of this one.

    This one does what is left where processes are killed, forbidden, or cannot start (a program that comes from no
    file); so `work` may be done twice on an item.

    Args:
        processes: as many at most; below 2 none is started.
    """
    done = 0
    if processes > 1:
        pool = ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
        try:
            for each in pool.map(work, items):
                yield each
                done += 1
        except (BrokenProcessPool, OSError):
            pass
        finally:
            pool.shutdown(cancel_futures=True)
    yield from map(work, items[done:])
