"""Commands of a fleet, some at the same time: each bounded, its output in a file; all end with this process.

Output is kept as records are: without the paths of who runs it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from suite.launch.interruption import check_interrupted
from suite.machine.processes import die_with_parent
from suite.paths import ROOT, whole_file
from suite.records.private_paths import private_directories, without_private_paths

POLL_SECONDS = 0.2
ENDED_WITHIN_SECONDS = 20.0
WORDS_CHARACTERS = 2000


class FleetCommand(NamedTuple):
    """A command: `key` names it to the caller, `label` to the engine."""

    key: str
    label: str
    command: list[str]
    output: Path
    limit_seconds: float


class EndedCommand(NamedTuple):
    """How it ended: its exit code, None past its limit; and the end of its output."""

    code: int | None
    words: str


def run_all(
    commands: Iterable[FleetCommand],
    at_once: int,
    *,
    cancel: Callable[[str], None],
    ended: Callable[[FleetCommand, EndedCommand], None],
) -> None:
    """Run all, so many at the same time; `ended` hears of each. What is interrupted or late is cancelled and killed."""
    waiting = list(commands)[::-1]
    running: list[tuple[FleetCommand, subprocess.Popen[bytes], float]] = []
    try:
        while waiting or running:
            check_interrupted()
            while waiting and len(running) < at_once:
                command = waiting.pop()
                running.append((command, _started(command), time.monotonic()))
            for entry in list(running):
                command, process, start = entry
                late = time.monotonic() - start > command.limit_seconds
                if process.poll() is None and not late:
                    continue
                running.remove(entry)
                if process.poll() is None:
                    _end(command, process, cancel)
                    ended(command, EndedCommand(None, _words(command)))
                else:
                    ended(command, EndedCommand(process.returncode, _words(command)))
            time.sleep(POLL_SECONDS)
    finally:
        for _, process, _ in running:
            with suppress(ProcessLookupError):
                process.terminate()
        for command, process, _ in running:
            _end(command, process, cancel)


def _started(command: FleetCommand) -> subprocess.Popen[bytes]:
    with command.output.open("wb") as output:
        return subprocess.Popen(
            command.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _end(command: FleetCommand, process: subprocess.Popen[bytes], cancel: Callable[[str], None]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(timeout=ENDED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    cancel(command.label)
    public_output(command.output)


def _words(command: FleetCommand) -> str:
    return public_output(command.output)[-WORDS_CHARACTERS:].strip()


def public_output(path: Path) -> str:
    """Output of an ended command without private paths, which are removed from its file too."""
    said = path.read_text(encoding="utf-8", errors="replace")
    public = without_private_paths(said, private_directories())
    if public != said:
        with whole_file(path) as file:
            file.write_text(public, encoding="utf-8")
    return public
