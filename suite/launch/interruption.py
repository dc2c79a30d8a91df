"""Every signal that asks a command to end, Ctrl-C among them, ends it once, as interrupted by the user."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class _Interruption:
    """The signal that came, and whether it has to wait."""

    came: int | None = None
    held = False


def end_as_interrupted() -> None:
    """From here on the first of these signals raises KeyboardInterrupt, and a second one disturbs no cleaning up.

    A command reports and keeps of an interrupted launch what it wants to; ranks and children are killed. Under nohup,
    which has SIGHUP ignored, it stays ignored.
    """
    _Interruption.came = None
    for kind in ENDING:
        if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN:
            signal.signal(kind, _interrupt)


def interrupted_by() -> int | None:
    """The number of the signal that came since `end_as_interrupted`; None where none did."""
    return _Interruption.came


def check_interrupted() -> None:
    """For loops that wait: Python loses what a handler raises in a callback, of a fork or of an object's end.

    Raises:
        KeyboardInterrupt: a signal came since `end_as_interrupted`.
    """
    if _Interruption.came is not None:
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


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for kind in ENDING:
        signal.signal(kind, signal.SIG_IGN)
    _Interruption.came = number
    if not _Interruption.held:
        raise KeyboardInterrupt
