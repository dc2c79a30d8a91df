"""A polite end, by Ctrl-C or SIGTERM, is an end by the user."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_POLITE = (signal.SIGINT, signal.SIGTERM)


class _Interruption:
    """Whether a signal came, and whether it has to wait."""

    came = False
    held = False


def end_as_interrupted() -> None:
    """From here on the first of these signals raises KeyboardInterrupt, and a second one disturbs no cleaning up.

    What is told and kept of an interrupted launch is the command's own; ranks and children are killed.
    """
    _Interruption.came = False
    for kind in _POLITE:
        signal.signal(kind, _interrupt)


def check_interrupted() -> None:
    """For loops that wait: Python loses what a handler raises in a callback, of a fork or of an object's end.

    Raises:
        KeyboardInterrupt: a signal came since `end_as_interrupted`.
    """
    if _Interruption.came:
        raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[None]:
    """Keep a signal until the end of the block: a process that is being started must not be lost.

    Raises:
        KeyboardInterrupt: at the end, if a signal came.
    """
    _Interruption.held = True
    try:
        yield
    finally:
        _Interruption.held = False
    check_interrupted()


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    for kind in _POLITE:
        signal.signal(kind, signal.SIG_IGN)
    _Interruption.came = True
    if not _Interruption.held:
        raise KeyboardInterrupt
