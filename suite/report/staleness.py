"""How stale the weights of a launch's workers were, in sentences: on the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean

from suite.job.events import StoreWork

LISTED = 6  # values of a histogram


def staleness_lines(ranks: Iterable[StoreWork | None]) -> Iterator[str]:
    """Two lines of all workers, and one of how long they waited; none without a parameter store."""
    works = [work for work in ranks if work is not None]
    if not works:
        return
    gradients = sum(len(work.ahead) for work in works)
    yield f"staleness: {_histogram([n for work in works for n in work.ahead], 'steps ahead of the slowest worker')}"
    delays = _histogram([n for work in works for n in work.delays], "gradients of delay")
    yield f"updates: {works[0].updates} of {gradients} gradients; {delays}"
    waited = ", ".join(f"{sum(work.waited_seconds):.3g}" for work in works)
    slept = ", ".join(f"{sum(work.slept_seconds):.3g}" for work in works)
    yield f"seconds of each worker: waited {waited}; slept to be slow {slept}"


def _histogram(values: list[int], unit: str) -> str:
    """Such as: at most 3 steps ahead, mean 1.2 (0: 31, 1: 12, 2: 9, 3: 8)."""
    if not values:
        return f"no {unit}"
    counts = sorted(Counter(values).items())
    shown = ", ".join(f"{value}: {count}" for value, count in counts[:LISTED])
    more = sum(count for _, count in counts[LISTED:])
    rest = f", more: {more}" if more else ""
    return f"at most {max(values)} {unit}, mean {fmean(values):.2g} ({shown}{rest})"
