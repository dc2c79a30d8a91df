"""Events of a thread that overlap are moved to rows beside it, and nothing else is changed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from suite.job.trace_rows import ROW, trace_rows


def slice_of(start: float, length: float, *, thread: Any = 7, name: str = "x") -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


def rows_of(events: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    """Start and end in nanoseconds of the slices of each thread."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads.setdefault(event["tid"], []).append((start, start + round(event["dur"] * 1000)))
    return list(threads.values())


def test_a_message_that_outlasts_its_call_has_a_row_of_its_own() -> None:
    call, message = slice_of(10.0, 5.0, name="c10d::send"), slice_of(10.5, 100.0, name="gloo:send")
    other, inside = slice_of(20.0, 5.0), slice_of(21.0, 1.0)
    found = trace_rows([call, message, other, inside])
    assert found[:4] == [call, {**message, "tid": 7 + ROW}, other, inside]
    names = {event["tid"]: event["args"]["name"] for event in found[4:] if event["name"] == "thread_name"}
    assert names == {7 + ROW: "thread 7, in flight"}


def test_events_that_nest_follow_or_have_no_numbers_stay() -> None:
    events = [
        slice_of(0.0, 10.0),
        slice_of(0.0, 10.0),
        slice_of(2.0, 8.0),
        slice_of(10.0, 0.0),
        slice_of(10.0, 1.0),
        slice_of(5.0, 99.0, thread="stream 7"),
        {"ph": "i", "name": "mark", "pid": 1, "tid": 7, "ts": 3.0},
        {"ph": "X", "name": "untimed", "pid": [1], "tid": 7},
    ]
    assert trace_rows(events) == events


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=20))
def test_on_every_row_slices_nest_or_follow_one_another(spans: list[tuple[int, int]]) -> None:
    found = trace_rows([slice_of(start / 1000, length / 1000) for start, length in spans])
    for row in rows_of([dict(event) for event in found]):
        for first_start, first_end in row:
            for start, end in row:
                assert not first_start < start < first_end < end
