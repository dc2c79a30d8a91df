"""Runs the parts in bounded time, the most valuable first; what is done is not done again."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from suite.first_hour.part import RESULTS, HourPart, PartKind
from suite.first_hour.reading import next_steps, reading
from suite.first_hour.result import PartResult, PartStatus, path_of, store, stored
from suite.launch.interruption import check_interrupted, held
from suite.machine.packages import described, lacking
from suite.machine.processes import die_with_parent
from suite.paths import ROOT, program

LEAST_SECONDS = 10.0  # that a part may take, however little time is left
RAN_TO_ITS_END = frozenset({0, 1, 3})  # exit codes of commands that judged something, or could not
REFUSED = 2  # exit code of bad input, and of what this machine lacks
NOTHING_SELECTED = 5  # pytest's
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


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """The parts to run, and the time for them.

    Args:
        machine: facts that decide whether an earlier result counts.
        again: names of parts that are done again, whatever is stored.
        deadline: on the clock of `time.monotonic`; None: there is time for all.
    """

    parts: Sequence[HourPart]
    results: Path
    machine: dict[str, str]
    again: frozenset[str] = frozenset()
    deadline: float | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


def run_hour(
    hour: Hour, on_begin: Callable[[HourPart, float], None], on_end: Callable[[HourPart, PartResult], None]
) -> None:
    """Run what is not done: parts with the fewest attempts first, and of those in their order.

    A part that fails, hangs or is ended does not stop the others.

    Raises:
        KeyboardInterrupt: a signal came; the part that it came in is kept as interrupted.
    """
    for part in remaining(hour):
        if part.least_seconds > hour.left:
            continue
        bound = max(LEAST_SECONDS, min(part.seconds, hour.left))
        on_begin(part, bound)
        on_end(part, _run(hour, part, bound))


def remaining(hour: Hour) -> list[HourPart]:
    """The parts that are to be run, in the order of their turns."""
    last = {part.name: result_of(hour, part) for part in hour.parts}
    attempts = {name: 0 if result is None else result.attempts for name, result in last.items()}
    left = [part for part in hour.parts if not ((result := last[part.name]) is not None and result.is_final)]
    return sorted(left, key=lambda part: attempts[part.name])


def result_of(hour: Hour, part: HourPart) -> PartResult | None:
    """The last attempt at a part on this machine; None where there was none, or it is to be done again."""
    result = stored(hour.results, part)
    counts = result is not None and result.setting == part.setting(hour.machine) and part.name not in hour.again
    return result if counts else None


def _run(hour: Hour, part: HourPart, bound: float) -> PartResult:
    before = result_of(hour, part)
    earlier = 0 if before is None else before.attempts
    words = [word.replace(RESULTS, str(hour.results)) for word in part.arguments]
    result = PartResult(
        part=part.name,
        setting=part.setting(hour.machine),
        status=PartStatus.RUNNING,
        attempts=earlier + 1,
        started=time.time(),
        command=" ".join(["python -m", *part.arguments]),
    )
    if missing := lacking(part.modules):
        says = f"for want of {described(missing)}"
        result = msgspec.structs.replace(result, status=PartStatus.NOT_RUN, attempts=earlier, says=says)
        store(hour.results, part, result)
        return result
    store(hour.results, part, result)
    output, errors = (path_of(hour.results, part, suffix) for suffix in (".out", ".err"))
    known = _benchmarks(hour.results)
    began = time.monotonic()
    code: int | None = None
    interrupted = True
    try:
        code = run_bounded(words, bound, output, errors)
        interrupted = False
    finally:
        result = msgspec.structs.replace(result, seconds=time.monotonic() - began, exit_code=code)
        if interrupted:
            store(hour.results, part, msgspec.structs.replace(result, status=PartStatus.INTERRUPTED))
    printed, said = (path.read_text(encoding="utf-8", errors="replace") for path in (output, errors))
    found = reading(part, code, printed, said, sorted(_benchmarks(hour.results) - known))
    status = _status(part, code, bound, readable=found.readable)
    says = found.says
    if status is PartStatus.NOT_RUN:
        result = msgspec.structs.replace(result, status=status, attempts=earlier, says=says)
        store(hour.results, part, result)
        return result
    if code is None:
        says = f"ended after {bound:.0f} s: {says}"
    elif code < 0:
        says = f"killed by {signal.Signals(-code).name}: {says}"
    again = f"{program()} first-hour --results {shlex.quote(str(hour.results))} --again {shlex.quote(part.name)}"
    steps = next_steps(part, found, failed=status is not PartStatus.DONE, errors=errors, again=again)
    result = msgspec.structs.replace(result, status=status, says=says, differences=found.differences, next_steps=steps)
    store(hour.results, part, result)
    return result


def _benchmarks(results: Path) -> set[Path]:
    return set((results / "kernels").rglob("*.json"))


def _status(part: HourPart, code: int | None, bound: float, *, readable: bool) -> PartStatus:
    if code is None:
        return PartStatus.TOO_LONG if bound >= part.seconds else PartStatus.CUT_OFF
    if code == REFUSED and part.may_be_refused:
        return PartStatus.NOT_RUN
    if (code in RAN_TO_ITS_END and readable) or (code == NOTHING_SELECTED and part.kind is PartKind.KERNELS):
        return PartStatus.DONE
    return PartStatus.FAILED
