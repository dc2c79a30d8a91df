"""A command as a child that ends in bounded time, with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent
from suite.paths import ROOT

POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0  # for a command to end its ranks and its record


def run_bounded(arguments: Sequence[str], seconds: float, output: Path, errors: Path) -> int | None:
    """Run `python -m ARGUMENTS` for at most so many seconds; its exit code, or None where it had to be ended.

    Raises:
        KeyboardInterrupt: a signal came; the command has ended, as it does after that time.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": _python_path()}
    with output.open("wb") as out, errors.open("wb") as error, held():
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches first-hour alone
            preexec_fn=die_with_parent,
        )
    try:
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            check_interrupted()
            time.sleep(POLL_SECONDS)
        return process.poll()
    finally:
        if process.poll() is None:
            _end(process)


def _python_path() -> str:
    return os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT, by which commands end cleanly and benchmarks keep what they have; what is left then is killed."""
    import psutil

    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    with contextlib.suppress(psutil.Error):
        family += psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()  # psutil knows numbers that others took over by their start
