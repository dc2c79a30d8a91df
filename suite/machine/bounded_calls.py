"""Calls with a time limit, such as those to a GPU's driver, which a lost GPU can block for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


class BlockedError(Exception):
    """A call did not return in time.

    Attributes:
        call: is done once the call returns, which may be never.
    """

    def __init__(self, call: Future[Any]) -> None:
        super().__init__("no answer in time")
        self.call = call


class BoundedCalls:
    """Makes calls in threads that wait for the next one: a thread of its own for each of 994 tasks would cost more
    than the call. Several threads may make calls at once.

    A call that blocks keeps its thread, which ends when the call does. The next call gets another one.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._idle: list[queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]] = []

    def answer(self, question: Callable[[], Any]) -> Any:
        """The answer: whatever `question` returns or raises.

        Raises:
            BlockedError: it does neither within the time limit.
        """
        future: Future[Any] = Future()
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = queue.SimpleQueue()
            threading.Thread(target=_answer_all, args=(thread,), daemon=True).start()
        thread.put((question, future))
        if not wait([future], self.seconds).done:
            thread.put(None)
            raise BlockedError(future)
        self._idle.append(thread)
        return future.result()


def _answer_all(questions: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    """Answer until there is a None."""
    while (item := questions.get()) is not None:
        question, future = item
        try:
            future.set_result(question())
        except Exception as error:  # whatever it is, the caller gets it
            future.set_exception(error)
