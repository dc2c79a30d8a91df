"""One mutant against the tests that must notice it, in a fork of a process that has imported the libraries."""

from __future__ import annotations

import enum
import importlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

LIBRARIES = (
    "numpy",
    "scipy.stats",
    "scipy.special",
    "pandas",
    "msgspec",
    "rich.console",
    "typer",
    "hypothesis",
    "torch",
)
OPTIONS = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--benchmark-disable",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)


class TrialOutcome(enum.StrEnum):
    """How the tests of a mutant ended.

    ASSERTED: a test's assertion failed. RAISED: the mutated code raised inside a test. Both are found. SURVIVED: all
    tests passed. TIMED_OUT (also of ranks that a test waited for) and BROKEN (it could not be imported or collected)
    say nothing of the tests.
    """

    ASSERTED = "asserted"
    RAISED = "raised"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"
    BROKEN = "broken"


class Trial(msgspec.Struct, frozen=True):
    """The outcome, the first test that failed, its error, the tests that passed before it, and the seconds taken."""

    outcome: TrialOutcome
    test: str = ""
    error: str = ""
    passed: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, said: bytes, seconds: float, limit_seconds: float) -> Trial:
        """The one that a process wrote; one that wrote none is broken, or was killed after the limit."""
        try:
            return msgspec.structs.replace(msgspec.json.decode(said, type=cls), seconds=seconds)
        except msgspec.MsgspecError:
            if seconds >= limit_seconds:
                return cls(TrialOutcome.TIMED_OUT, seconds=seconds)
            return cls(TrialOutcome.BROKEN, error="the process of the tests ended without an answer", seconds=seconds)


def import_libraries(names: tuple[str, ...] = LIBRARIES) -> None:
    """Import what the tests need besides this project, once for all forks."""
    import pytest  # noqa: F401

    for name in names:
        importlib.import_module(name)


def tried(tests: list[str], log: Path, *, limit_seconds: float) -> Trial:
    """Import the mutant and run its tests in a fork until one fails; killed after the limit."""

    def session() -> bytes:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        return msgspec.json.encode(_session(tests))

    return Trial.of(*answer_of_fork(session, limit_seconds=limit_seconds), limit_seconds)


def answer_of_fork(answer: Callable[[], bytes], *, limit_seconds: float) -> tuple[bytes, float]:
    """Answer of a function in a fork, and its seconds; the fork and all that it started are killed afterwards."""
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setsid()
            _write_all(writing, answer())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    said = b""
    try:
        while (left := started + limit_seconds - time.monotonic()) > 0:
            if select.select([reading], [], [], left)[0]:
                part = os.read(reading, 1 << 16)
                said += part
                if not part:
                    break
    finally:
        os.close(reading)
        for target in (os.killpg, os.kill):
            try:
                target(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(child, 0)
    return said, time.monotonic() - started


def _write_all(end: int, message: bytes) -> None:
    while message:
        message = message[os.write(end, message) :]


def _session(tests: list[str]) -> Trial:
    import pytest

    noted = Noted()
    code = pytest.main([*OPTIONS, *tests], plugins=[noted])
    if noted.trial is not None:
        return noted.trial
    if code == pytest.ExitCode.OK and noted.passed:
        return Trial(TrialOutcome.SURVIVED, passed=noted.passed)
    return Trial(TrialOutcome.BROKEN, error=f"pytest ended with {code!r} after {noted.passed} passed tests")


class Noted:
    """A session of pytest: how many tests passed, and what failed first."""

    def __init__(self) -> None:
        self.passed = 0
        self.trial: Trial | None = None

    def pytest_collectreport(self, report: object) -> None:
        """A file that cannot be collected is a broken mutant, not one that a test found."""
        if getattr(report, "failed", False) and self.trial is None:
            self.trial = Trial(
                TrialOutcome.BROKEN, str(getattr(report, "nodeid", "")), str(getattr(report, "longrepr", ""))[-300:]
            )

    def pytest_runtest_makereport(self, item: object, call: object) -> None:
        """Note the first exception of a test."""
        info = getattr(call, "excinfo", None)
        if info is None:
            self.passed += getattr(call, "when", "") == "call"
        elif self.trial is None and type(info.value).__name__ != "Skipped":
            kind = classified(info.value)
            error = f"{type(info.value).__name__}: {info.value}"[:300]
            self.trial = Trial(kind, str(getattr(item, "nodeid", "")), error, self.passed)


def classified(error: BaseException) -> TrialOutcome:
    """Outcome of a mutant by the exception of a test."""
    if isinstance(error, BaseExceptionGroup):
        kinds = {classified(each) for each in error.exceptions}
        found_first = (TrialOutcome.ASSERTED, TrialOutcome.RAISED, TrialOutcome.TIMED_OUT, TrialOutcome.BROKEN)
        return next(kind for kind in found_first if kind in kinds)
    if isinstance(error, AssertionError) or type(error).__name__ == "Failed":  # pytest's: did not raise, or `fail()`
        return TrialOutcome.ASSERTED
    if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
        return TrialOutcome.TIMED_OUT
    return TrialOutcome.BROKEN if isinstance(error, ImportError | SyntaxError) else TrialOutcome.RAISED
