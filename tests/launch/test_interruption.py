"""Every ending signal ends a command once; all commands that start ranks take them in one way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from suite.launch.interruption import ENDING, check_interrupted, end_as_interrupted, held, interrupted_by
from suite.machine.processes import die_with_parent
from suite.paths import ROOT

COMMANDS = ROOT / "suite" / "commands"


@pytest.fixture
def _handlers() -> Iterator[None]:
    before, hook = [signal.getsignal(kind) for kind in ENDING], sys.unraisablehook
    yield
    end_as_interrupted()  # forgets this test's signal: it would end the launches of later tests
    for kind, handler in zip(ENDING, before, strict=True):
        signal.signal(kind, handler)
    sys.unraisablehook = hook


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(("first", "second"), [*zip(ENDING, [*ENDING[1:], ENDING[0]], strict=True)])
def test_the_first_signal_interrupts_and_a_second_one_disturbs_nothing(first, second):
    end_as_interrupted()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(first)
    signal.raise_signal(second)
    assert interrupted_by() == first


@pytest.mark.usefixtures("_handlers")
def test_a_command_under_nohup_does_not_see_that_its_terminal_hangs_up():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_as_interrupted()
    signal.raise_signal(signal.SIGHUP)
    assert interrupted_by() is None


class Ending:
    """An object at whose end a signal comes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("_handlers")
def test_a_signal_that_comes_while_an_object_ends_is_not_lost():
    end_as_interrupted()
    Ending()  # Python drops what the handler raises there
    with pytest.raises(KeyboardInterrupt):
        time.sleep(30)
    assert interrupted_by() == signal.SIGTERM


SIGNALLED = """
import os, pty, signal, sys
import suite.__main__ as command
def main():
    print("unwritten", end="")
    os.close(master)
    signal.raise_signal(int(sys.argv[1]))
master, terminal = pty.openpty()
os.dup2(terminal, 1)
sys.stdout = os.fdopen(1, "w")
command.main = main
sys.exit(command.run())
"""


@pytest.mark.parametrize("kind", [signal.SIGHUP, signal.SIGTERM])
def test_a_command_that_a_signal_ends_has_its_exit_code_also_where_the_terminal_is_gone(kind):
    done = subprocess.run([sys.executable, "-c", SIGNALLED, str(int(kind))], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + kind, "")


@pytest.mark.usefixtures("_handlers")
def test_an_interrupt_that_python_loses_is_found_by_the_next_look(monkeypatch):
    lost: list[str] = []
    end_as_interrupted()
    monkeypatch.setattr(sys, "unraisablehook", lambda reported: lost.append(reported.exc_type.__name__))
    check_interrupted()

    def callback(_dead: object) -> None:
        signal.raise_signal(signal.SIGINT)

    watched = Watched()
    kept = weakref.ref(watched, callback)
    del watched
    assert kept() is None
    assert lost == ["KeyboardInterrupt"]
    with pytest.raises(KeyboardInterrupt):
        check_interrupted()
    end_as_interrupted()  # the next command's
    check_interrupted()


class Watched:
    pass


@pytest.mark.usefixtures("_handlers")
def test_an_interrupt_waits_until_a_process_is_started():
    end_as_interrupted()
    reached = []

    def start() -> None:
        with held():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == ["the end of the block"]
    end_as_interrupted()
    with held():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("_handlers")
def test_an_interrupt_while_a_process_is_forked_is_not_lost():
    armed = [True]

    def behind_the_fork() -> None:  # cannot be taken back: it does nothing from the second time on
        if armed and armed.pop():
            signal.raise_signal(signal.SIGINT)

    os.register_at_fork(after_in_parent=behind_the_fork)
    end_as_interrupted()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with held():
            started.append(subprocess.Popen(["true"], preexec_fn=die_with_parent))

    with pytest.raises(KeyboardInterrupt):
        start()
    (process,) = started
    assert process.wait(20) == 0


def test_no_command_has_a_handler_of_its_own():
    own = [path.name for path in COMMANDS.glob("*.py") if "signal.signal(" in path.read_text(encoding="utf-8")]
    assert own == []
