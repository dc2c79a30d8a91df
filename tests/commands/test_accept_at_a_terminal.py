"""The question of `accept` in an invalid environment, under a pseudo terminal that controls the command."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from suite.commands import exit_codes
from suite.paths import ROOT

# A command that finds another process at work; the terminal's session leader, or in its background, or beside a thread
# that gets the signals, so that no system call of the main thread returns for one.
COMMAND = """
import fcntl, signal, subprocess, sys, termios, threading, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1] == "background":
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[2], *sys.argv[3:]], process_group=0).returncode)
if sys.argv[1] == "beside a thread":
    threading.Thread(target=time.sleep, args=[1000.0], daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
sys.argv[:] = sys.argv[2:]
exec(sys.argv[0])
"""
BUSY = """
import sys
import suite.acceptance.phases
from suite.commands import accept
from suite.machine.cpu_contention import Competitor
suite.acceptance.phases.competitors = lambda: ([Competitor(pid=7, name="other", cores=1.0)], 0.5)
accept.ANSWER_SECONDS = float(sys.argv[1])
from suite.__main__ import run
sys.argv[1:] = ["accept", "--only", "0", "--json", "--results", sys.argv[2]]
sys.exit(run())
"""
QUESTION = "stop here? [Y/n]"
GOES_ON, STOPS = [], ["stopped before anything was measured: the environment is invalid"]
ALARM_SECONDS = 250.0  # of a test that would hang; a disk that others fill makes the battery wait
ENDLESS, AT_ONCE = 1000.0, 0.2


class Ended(NamedTuple):
    """Exit code, what was on the terminal, and the report's notes; None: no report."""

    code: int
    screen: str
    notes: list[str] | None


class _Terminal:
    """The other side of a pseudo terminal: the keyboard and the screen."""

    def __init__(self, master: int) -> None:
        self.master, self.screen, self._open = master, "", True

    def read_until(self, words: str, times: int = 1) -> None:
        end = time.monotonic() + ALARM_SECONDS
        while self.screen.count(words) < times:
            assert time.monotonic() < end, f"no {words!r} in {self.screen!r}"
            self.read(0.2)

    def read(self, seconds: float) -> None:
        if not self._open:
            time.sleep(seconds)
        elif select.select([self.master], [], [], seconds)[0]:
            data = b""
            with suppress(OSError):  # the last process of the terminal has ended
                data = os.read(self.master, 65536)
            self.screen += data.decode()

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> None:
        if self._open:
            os.close(self.master)
        self._open = False


def at_a_terminal(
    place: Path, does: Callable[[_Terminal], None], *, wait: float = ENDLESS, how: str = "foreground"
) -> Ended:
    """Run the command at a terminal of its own, and what somebody `does` there."""
    master, slave = os.openpty()
    arguments = [sys.executable, "-c", COMMAND, how, BUSY, str(wait), str(place)]
    with closing(_Terminal(master)) as terminal:
        process = subprocess.Popen(
            arguments, cwd=ROOT, stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True, start_new_session=True
        )
        os.close(slave)
        try:
            does(terminal)
            end = time.monotonic() + ALARM_SECONDS
            while process.poll() is None and time.monotonic() < end:
                terminal.read(0.05)  # a full terminal would block it
            assert process.poll() is not None, f"it did not end: {terminal.screen!r}"
        finally:
            process.kill()
            process.wait()
            notes = _notes(process.stdout)
        return Ended(process.returncode, terminal.screen, notes)


def _notes(stdout: IO[str] | None) -> list[str] | None:
    assert stdout is not None
    with stdout:
        text = stdout.read()
    return json.loads(text)["notes"] if text else None


def answering(*keys: str) -> Callable[[_Terminal], None]:
    def does(terminal: _Terminal) -> None:
        for number, each in enumerate(keys, start=1):
            terminal.read_until(QUESTION, number)
            terminal.type(each)

    return does


def hangs_up(terminal: _Terminal) -> None:
    terminal.read_until(QUESTION)
    terminal.close()


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        (["\n"], STOPS),
        (["what?\n", "No \n"], GOES_ON),  # it asks again
        (["\x04"], GOES_ON),  # Ctrl-D: nobody will answer
    ],
    ids=["Enter", "gibberish-then-No", "Ctrl-D"],
)
def test_an_answer_is_obeyed(keys: list[str], notes: list[str], tmp_path: Path) -> None:
    ended = at_a_terminal(tmp_path, answering(*keys))
    assert "environment INVALID: other processes: other (pid 7) 100% of a core" in " ".join(ended.screen.split())
    assert (ended.code, ended.notes) == (exit_codes.INCONCLUSIVE, notes)
    assert ended.screen.count(QUESTION) == len(keys)


def test_without_an_answer_it_goes_on(tmp_path: Path) -> None:
    ended = at_a_terminal(tmp_path, lambda _terminal: None, wait=AT_ONCE)
    assert ended.screen.count(QUESTION) == 1
    assert (ended.code, ended.notes) == (exit_codes.INCONCLUSIVE, GOES_ON)


@pytest.mark.parametrize(
    ("does", "how", "signal"),
    [(answering("\x03"), "foreground", 2), (answering("\x03"), "beside a thread", 2), (hangs_up, "foreground", 1)],
    ids=["Ctrl-C", "Ctrl-C-that-wakes-no-wait", "hang-up"],
)
def test_an_interruption_is_no_answer_and_the_battery_can_be_resumed(
    does: Callable[[_Terminal], None], how: str, signal: int, tmp_path: Path
) -> None:
    ended = at_a_terminal(tmp_path, does, how=how)
    assert (ended.code, ended.notes) == (128 + signal, None)
    assert "Traceback" not in ended.screen
    names = [path.name for path in (tmp_path / "acceptance").iterdir()]
    assert [name for name in names if name.endswith(".begin.json")]
    assert not [name for name in names if name.endswith(".end.json")]


def test_in_the_background_of_its_terminal_it_does_not_ask(tmp_path: Path) -> None:
    ended = at_a_terminal(tmp_path, lambda terminal: terminal.type("n\n"), how="background")
    assert QUESTION not in ended.screen
    assert "--stop-if-invalid would end here" in " ".join(ended.screen.split())
    assert (ended.code, ended.notes) == (exit_codes.INCONCLUSIVE, GOES_ON)
