"""Rows of a trace on which events nest or follow one another, as Perfetto needs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

ROW = 10_000_000  # added to a thread's number for each row beside it: Linux numbers threads up to 4,194,304
_MOST_MICROSECONDS = 1e18  # 30,000 years

Event = Mapping[str, Any]


def trace_rows(events: Sequence[Event]) -> list[Event]:
    """The events, those on rows of their own that begin within another of their thread and end after it.

    Perfetto drops such an event. PyTorch writes one for each message between pipeline stages that is in flight under
    Gloo: it begins within the call that sends or receives it, on the thread of the call.

    Args:
        events: of a trace in Chrome's format, times in microseconds. What has no times or numbers stays as it is.
    """
    threads: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for index, event in enumerate(events):
        start, length, thread = event.get("ts"), event.get("dur"), event.get("tid")
        if event.get("ph") == "X" and is_time(start) and is_time(length) and isinstance(thread, int):
            key = repr(event.get("pid")), thread
            threads[key].append((round(start * 1000), -round(length * 1000), index))
    found = list(events)
    for (_, thread), spans in threads.items():
        ends: list[list[int]] = [[]]  # of the events around, by row
        for start, negative, index in sorted(spans):
            row = _row(ends, start, start - negative)
            if row:
                found[index] = {**events[index], "tid": thread + row * ROW}
        for row in range(1, len(ends)):
            place = {"ph": "M", "pid": events[spans[0][2]].get("pid"), "tid": thread + row * ROW, "ts": 0}
            found.append(place | {"name": "thread_name", "args": {"name": f"thread {thread}, in flight"}})
            found.append(place | {"name": "thread_sort_index", "args": {"sort_index": thread + row * ROW}})
    return found


def is_time(value: object) -> TypeGuard[int | float]:
    """Whether an entry of a trace can be microseconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_MICROSECONDS


def _row(ends: list[list[int]], start: int, end: int) -> int:
    """The first row on which an event nests or follows, a new one where there is none; it is noted there."""
    for row, around in enumerate(ends):
        while around and around[-1] <= start:
            around.pop()
        if not around or end <= around[-1]:
            around.append(end)
            return row
    ends.append([end])
    return len(ends) - 1
