"""A call that blocks holds nobody up, and calls that do not share one thread."""

from __future__ import annotations

import threading
import time

import pytest

from suite.machine.bounded_calls import BlockedError, BoundedCalls


def test_an_answer_and_an_error_are_the_callers() -> None:
    calls = BoundedCalls(10.0)
    assert calls.answer(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.answer(lambda: 1 / 0)
    with pytest.raises(TimeoutError):  # the question's own, which is no blocked call
        calls.answer(lambda: (_ for _ in ()).throw(TimeoutError()))


def test_a_thousand_calls_start_one_thread() -> None:
    calls = BoundedCalls(10.0)
    names = {calls.answer(lambda: threading.current_thread().name) for _ in range(1000)}
    assert len(names) == 1


def test_a_blocked_call_is_given_up_and_the_next_one_is_answered() -> None:
    calls, free = BoundedCalls(0.05), threading.Event()
    before = threading.active_count()
    begun = time.monotonic()
    with pytest.raises(BlockedError) as blocked:
        calls.answer(lambda: free.wait(30))
    assert time.monotonic() - begun < 5
    assert not blocked.value.call.done()
    assert calls.answer(lambda: 8) == 8
    free.set()
    assert blocked.value.call.result(10) is True
    deadline = time.monotonic() + 10
    while threading.active_count() > before + 1 and time.monotonic() < deadline:  # the one that answered 8 waits
        time.sleep(0.01)
    assert threading.active_count() == before + 1
