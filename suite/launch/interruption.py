"""Every signal that asks a command to end, Ctrl-C among them, ends it once, as interrupted by the user."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from reference_runs.errors import InputError

AGAIN_SECONDS = 0.02
MOST_MINUTES = 1_000_000
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class OutOfTimeError(Exception):
    """Raised where a block of `time_limit` did not end in time.

    Attributes:
        measured: whole parts of what did not end, in the words of who measured it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[Any] = []


class _Interruption:
    """The signal that came, whether it has to wait, and when what is waited for has to end."""

    came: int | None = None
    held = False
    until: float | None = None


def end_as_interrupted() -> None:
    """From here on the first of these signals raises KeyboardInterrupt, and a second one disturbs no cleaning up.

    A command reports and keeps of an interrupted launch what it wants to; ranks and children are killed. Under nohup,
    which has SIGHUP ignored, it stays ignored.
    """
    _Interruption.came = None
    for kind in ENDING:
        if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN:
            signal.signal(kind, _interrupt)
    sys.unraisablehook = _lost


def interrupted_by() -> int | None:
    """The number of the signal that came since `end_as_interrupted`; None where none did."""
    return _Interruption.came


def check_interrupted() -> None:
    """For loops that wait, so that they end at once: what a handler raises in a callback comes later, see `_lost`.

    Raises:
        KeyboardInterrupt: a signal came since `end_as_interrupted`.
        OutOfTimeError: the time of a `time_limit` around the loop is over.
    """
    if _Interruption.came is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # it need not come later
        raise KeyboardInterrupt
    if _Interruption.until is not None and time.monotonic() > _Interruption.until:
        raise OutOfTimeError


def check_minutes(minutes: float | None, where: str) -> None:
    """Refuse minutes that nobody can wait; `where` is their option.

    Raises:
        InputError: they are not above 0, more than two years, or no number.
    """
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise InputError("minutes", got=minutes, allowed=f"more than 0, up to {MOST_MINUTES:,}", where=where)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Loops that wait in the block, of launches too, end after so many seconds: see `check_interrupted`."""
    _Interruption.until = time.monotonic() + seconds
    try:
        yield
    finally:
        _Interruption.until = None


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


def _lost(what: sys.UnraisableHookArgs) -> None:
    """Python drops what a handler raises in a callback, of a fork or of an object's end: raise it again, soon after."""
    if _Interruption.came is None or not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    signal.signal(signal.SIGALRM, _again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)


def _again(_number: int, _frame: FrameType | None) -> None:
    if not _Interruption.held:
        raise KeyboardInterrupt
