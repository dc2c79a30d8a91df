"""Ctrl-C and SIGTERM end a command once; all commands that start ranks take them in one way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.commands.interruption import end_as_interrupted

POLITE = (signal.SIGINT, signal.SIGTERM)
COMMANDS = Path(__file__).parent.parent / "suite" / "commands"


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = [signal.getsignal(kind) for kind in POLITE]
    yield
    for kind, handler in zip(POLITE, before, strict=True):
        signal.signal(kind, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("first", POLITE)
@pytest.mark.parametrize("second", POLITE)
def test_the_first_signal_interrupts_and_a_second_one_disturbs_nothing(
    first: signal.Signals, second: signal.Signals
) -> None:
    end_as_interrupted()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(first)
    signal.raise_signal(second)


def test_no_command_has_a_handler_of_its_own() -> None:
    own = [path.name for path in COMMANDS.glob("*.py") if "signal.signal(" in path.read_text(encoding="utf-8")]
    assert own == ["interruption.py"]
