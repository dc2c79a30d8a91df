"""Change points searched by another process: it imports ruptures while this one reads records and draws."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from suite.metrics.change_points import LEAST_STRETCH, change_points

Histories = list[list[float]]
Indices = list[list[int]]


class Search:
    """A process that waits for histories; ruptures and scipy take it a second to import, longer than the search.

    Where no process can be had, or it ends before it answers, the search is done here. Leaving the `with` ends it.
    """

    def __init__(self) -> None:
        self._asked: Histories = []
        here, there = get_context("spawn").Pipe()
        self._connection = here
        self._process = get_context("spawn").Process(target=_answer, args=(there,), daemon=True)
        with suppress(OSError):
            self._process.start()
        there.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()

    def ask(self, histories: Histories) -> None:
        """Hand over the values of every history; `answer` waits for their change points."""
        self._asked = histories
        if _worth_searching(histories):
            with suppress(OSError):
                self._connection.send(histories)

    def answer(self) -> Indices:
        """The change points of each history that was asked for."""
        if not _worth_searching(self._asked):
            return [[] for _ in self._asked]
        try:
            indices: Indices = self._connection.recv()
        except (EOFError, OSError):
            return searched(self._asked)
        return indices


def searched(histories: Sequence[Sequence[float]]) -> Indices:
    """The change points of each, found in this process."""
    return [change_points(values) for values in histories]


def _worth_searching(histories: Histories) -> bool:
    return any(len(values) >= 2 * LEAST_STRETCH for values in histories)


def _answer(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import ruptures  # noqa: F401
    from scipy import stats  # noqa: F401

    with suppress(EOFError, OSError):
        connection.send(searched(connection.recv()))
