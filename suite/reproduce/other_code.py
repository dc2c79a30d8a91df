"""Launches by other code than this: that of a working tree of another commit."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent

POLL_SECONDS = 0.1
ENDING_SECONDS = 30.0  # for a launch that is interrupted to end its ranks and its record


class OldCodeError(Exception):
    """The old code cannot be checked out or does not run here."""


class _ReportedLaunch(msgspec.Struct):
    status: str
    record: str
    message: str = ""


def old_launch(tree: Path, arguments: Sequence[str]) -> str:
    """Launch `reproduce ARGUMENTS` by the code in `tree`; returns the path of its record.

    Where this process is interrupted or the time of a `time_limit` is over, so is the launch: it ends its ranks and its
    record, and is killed if that takes longer than 30 s.

    Raises:
        OldCodeError: it did not end well; the text is its last line.
        KeyboardInterrupt, OutOfTimeError: see `suite.launch.interruption.check_interrupted`.
    """
    command = [sys.executable, "-m", "suite", "reproduce", *arguments, "--no-calibrate", "--json"]
    process: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            with held():
                process = subprocess.Popen(
                    command,
                    cwd=tree,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C reaches this process alone, which then interrupts that one
                    preexec_fn=die_with_parent,
                )
            while process.poll() is None:
                check_interrupted()
                time.sleep(POLL_SECONDS)
        finally:
            if process is not None:
                _end(process)
        for file in (out, errors):
            file.seek(0)
        written, said = out.read(), errors.read().decode(errors="replace")
    try:
        result = msgspec.json.decode((written.splitlines() or [b""])[0], type=_ReportedLaunch)
    except msgspec.MsgspecError:
        last = (said.strip().splitlines() or ["no output"])[-1]
        raise OldCodeError(f"the old code does not run (exit code {process.returncode}): {last}") from None
    if result.status != "ok":
        raise OldCodeError(f"the old code's launch ended as {result.status}: {result.message}")
    return result.record


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
