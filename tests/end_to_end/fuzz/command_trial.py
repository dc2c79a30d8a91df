"""Runs a command line in a fork as its process would: what it printed, how it ended, and what was wrong with that."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from reference_runs.printable import printable
from suite.__main__ import main
from suite.commands import exit_codes, explore
from suite.job import corpus
from suite.predict.machine_model import fit
from tests.end_to_end.fuzz.command_lines import BASES, Trial, hostile_line, lines_beyond_every_range, loaded

SECONDS = 5.0  # of a processor, for what is refused
MOST_SECONDS = 60.0  # for what is answered: a search over all layouts of a real run takes 15 s
WAITING_SECONDS = 600.0  # others may have the processors
MOST_BYTES = 2 << 30  # more than before
CODES = {value for name, value in vars(exit_codes).items() if name.isupper()}
WORKS = "goes to work"  # would start ranks, ask a scheduler, tokenise the standard library, fit, or serve
OF_SCHEDULERS = ("srun", "sbatch", "scontrol", "squeue", "sinfo", "scancel", "ssh", "reframe", "ip", "kubectl")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)|^\w+Error: ", re.MULTILINE)


class GoesToWorkError(BaseException):
    """An accepted command goes beyond this process: no more is asked here."""


class TookLongError(BaseException):
    """The command was still at it; no handler of errors is to take it for one of the system."""


class Ending(NamedTuple):
    """How a command line ended: its exit code or `WORKS`, after how long, and what is wrong with it, if anything is."""

    code: int | str
    seconds: float
    wrong: str


def endings_of(numbers: Iterable[int], seed: int, place: Path) -> list[tuple[Trial, Ending]]:
    """The command lines of these numbers, of all commands by turns, and how each ends in a directory of its own."""
    loaded()
    commands, found = [*BASES], []
    for number in numbers:
        directory = place / "x"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        chosen = hostile_line(commands[number % len(commands)], directory, random.Random(f"{seed} {number}"))
        found.append((chosen, ending(chosen, directory)))
    return found


def endings_beyond_ranges(place: Path) -> list[tuple[Trial, Ending]]:
    """Each line with a number beyond every range, and how it ends."""
    loaded()
    directory = place / "x"
    directory.mkdir()
    return [(trial, ending(trial, directory)) for trial in lines_beyond_every_range(directory)]


def ending(trial: Trial, place: Path) -> Ending:
    """Run a command line in a fork, in the directory `place`."""
    before = _files(place)
    answer, out, err = (place.parent / name for name in ("answer", "out", "err"))
    for path in (answer, out, err):
        path.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork goes without them
        child = os.fork()
    if child == 0:
        _run(trial, place, answer, out, err)
    os.waitpid(child, 0)
    printed, said = (path.read_bytes().decode(errors="surrogateescape") for path in (out, err))
    code, seconds, wrong = json.loads(answer.read_bytes()) if answer.exists() else ("died", 0.0, "the process died")
    if code == exit_codes.BAD_INPUT and said.startswith("error: ") and seconds > SECONDS:  # not: some are left out
        wrong = wrong or f"refused after {seconds:.1f} s of a processor"
    return Ending(code, seconds, wrong or _wrong(trial, code, printed, said, before, _files(place)))


def _files(place: Path) -> dict[str, int]:
    """Files below a directory, with their sizes."""
    return {str(path): path.lstat().st_size for path in sorted(place.rglob("*")) if not path.is_dir()}


def _wrong(trial: Trial, code: int | str, out: str, err: str, before: dict[str, int], after: dict[str, int]) -> str:
    """The fault of a command that raised nothing."""
    if code != WORKS and code not in CODES:
        return f"exit code {code}"
    if _TRACEBACK.search(err):
        return "a traceback in its words"
    for what, text in (("output", out), ("errors", err)):
        if printable(text.replace("\r\n", "\n")) != text.replace("\r\n", "\n"):
            return f"a control character in its {what}"
    if code == exit_codes.BAD_INPUT and not out + err and trial.stream != "closed":
        return "bad input, and not a word"
    made = {path for path in after if path not in before and not Path(path).name.startswith(".")}
    if code == exit_codes.BAD_INPUT and err.startswith("error: ") and made:
        return f"bad input, and new files: {sorted(made)[:3]}"
    return ""


def _run(trial: Trial, place: Path, answer: Path, out: Path, err: Path) -> NoReturn:
    code: int | str = WORKS
    wrong, begin = "", time.process_time()
    try:
        _surround(trial, place, out, err)
        code = main(trial.arguments)
        sys.stdout.flush()
    except GoesToWorkError:
        pass
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        code, wrong = 1, "".join(traceback.format_exception(error))[-3000:]
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    answer.write_text(json.dumps([code, time.process_time() - begin, wrong]), encoding="utf-8")
    os._exit(0)


def _surround(trial: Trial, place: Path, out: Path, err: Path) -> None:
    """Streams, variables, limits, and the ends of what is asked here."""
    import resource

    os.environ.update({"COLUMNS": "100", "TERM": "dumb", **trial.variables})
    os.environ.pop("FORCE_COLOR", None)
    os.chdir(place)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT, 0o644), 2)
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT, 0o644), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    _stream(trial.stream)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _too_long)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING_SECONDS)
    started = subprocess.Popen.__init__

    def begin(self: Any, command: Any, *rest: Any, **named: Any) -> None:
        words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes) else command)]
        if words[0] == sys.executable or Path(words[0]).name in OF_SCHEDULERS:
            self.returncode = 0  # for its destructor
            raise GoesToWorkError
        started(self, command, *rest, **named)

    def work(*_: Any, **__: Any) -> NoReturn:
        raise GoesToWorkError

    subprocess.Popen.__init__ = begin  # type: ignore[method-assign]
    corpus._standard_library_digest = work  # type: ignore[assignment]
    explore.serve = work
    fit.fit = fit.determined = work  # type: ignore[assignment]  # the fit itself takes 15 s


def _stream(kind: str) -> None:
    """Standard output of this kind."""
    encoding = "ascii" if kind == "ascii" else "utf-8"
    if kind == "closed":
        os.close(1)
        sys.stdout = None  # type: ignore[assignment]  # as Python has it then
        return
    if kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    if kind == "nobody reads":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115


def _too_long(number: int, _frame: object) -> None:
    raise TookLongError(f"waited for {WAITING_SECONDS} s" if number == signal.SIGALRM else f"took {MOST_SECONDS} s")
