"""Reads a file within limits of time and memory: whatever is in it, it is read, or refused in a line."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from reference_runs.errors import MOST_LETTERS, InputError
from tests.end_to_end.fuzz.parsers import Parser

SECONDS = 2.0  # of a processor
WAITING_SECONDS = 60.0  # a file that blocks is none that takes long: others may have the processors
MOST_BYTES = 500 * 10**6


class TookLongError(Exception):
    """The reader was still at it."""


def read(parser: Parser, directory: Path) -> InputError | None:
    """Read once; the refusal, if it is one. Everything else that is raised is a mistake of the reader."""
    try:
        parser.read(directory)
    except InputError as error:
        for line in error.lines:
            assert "\n" not in line
            assert len(line) <= 2 * MOST_LETTERS
        return error
    return None


def placed(parser: Parser, directory: Path, make: Callable[[Path], None]) -> None:
    """An empty directory with the parser's file in it, as `make` makes it, and what must lie next to it."""
    shutil.rmtree(directory, ignore_errors=True)
    for name, data in parser.beside().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    path = directory / parser.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


def in_fork(work: Callable[[], str]) -> str:
    """The result of `work`, in a fork with 500 MB more than its memory; or the error that it raised, in words."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork starts none, and ends here
        child = os.fork()
    if child == 0:
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # to its end
            size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
            said = work() or "as wanted"
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode(errors="replace")[:60000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return "" if said == "as wanted" else said or "the process died"


def timed(work: Callable[[], object]) -> None:
    """Run within 2 s of a processor.

    Raises:
        TookLongError: it took longer, or waited for something.
    """

    def end(number: int, _frame: object) -> None:
        raise TookLongError("waited for 60 s" if number == signal.SIGALRM else f"took {SECONDS} s of a processor")

    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, end)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING_SECONDS)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
