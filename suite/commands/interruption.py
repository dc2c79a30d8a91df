"""A polite end, by Ctrl-C or SIGTERM, is an end by the user."""

from __future__ import annotations

import signal
from types import FrameType

_POLITE = (signal.SIGINT, signal.SIGTERM)


def end_as_interrupted() -> None:
    """From here on the first of these signals raises KeyboardInterrupt, and a second one disturbs no cleaning up.

    What is told and kept of an interrupted launch is the command's own; ranks and children are killed.
    """
    for kind in _POLITE:
        signal.signal(kind, _interrupt)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    for kind in _POLITE:
        signal.signal(kind, signal.SIG_IGN)
    raise KeyboardInterrupt
