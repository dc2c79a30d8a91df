"""A battery that SIGKILL ends in one of its phases: nothing outlives it, and `--resume` ends it with its verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.accept_selftest.child import child
from benchmarks.accept_selftest.injection import Injection, InjectionDirectories, Prepare, Prepared
from suite.acceptance import battery_record
from suite.records.battery import battery_directory

LIMIT_SECONDS = 300.0
AGONY_SECONDS = 10.0  # until the kernel has ended all processes of a battery that is gone
SLOW_DISK = {"PYTHONPATH": str(Path(__file__).parent / "disk")}  # writes take 2 s, in which a battery can be killed
_ALL = ["--only", "0,7,14", "--miniatures", "gpt2-mini"]
KillMoment = Callable[[str, Path], bool]  # from what the battery has printed so far, and its records


def _in_phase(name: str, seconds: float) -> KillMoment:
    """So long after a phase began."""
    begun: list[float] = []

    def is_now(printed: str, _records: Path) -> bool:
        if f"{name}: about" in printed and not begun:
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() - begun[0] >= seconds

    return is_now


def _stores(pattern: str) -> KillMoment:
    """As soon as such a file is there: a slow disk takes 2 s for it, and 2 s for its name."""
    return lambda _printed, records: any(records.glob(pattern))


def _stores_verdict(_printed: str, records: Path) -> bool:
    """The room that is reserved for the verdict shrinks to the verdict, and has no name of its own yet."""
    return any(path.stat().st_size < battery_record.RESERVED_BYTES // 2 for path in records.glob(".*.reserve"))


def _killed(moment: KillMoment, options: list[str], environment: dict[str, str] | None = None) -> Prepare:
    @contextmanager
    def prepared(places: InjectionDirectories) -> Iterator[Prepared]:
        results = places.scratch / "results"
        output = places.scratch / "first.err"
        arguments = [*options, "--others", "1", "--results", str(results), "--json"]
        command = [sys.executable, "-m", "suite", "accept", *arguments]
        with (
            output.open("wb") as errors,
            child(command, os.environ | (environment or {}), out=subprocess.DEVNULL, err=errors) as battery,
        ):
            orphans = _end(battery, lambda: moment(output.read_text(), battery_directory(results)))
        prefix = ["sh", "-c", f"echo '{orphans}' >&2; exit 9"] if orphans else []
        yield Prepared(["--results", str(results), "--resume"], {}, prefix)

    return prepared


def _end(battery: subprocess.Popen[bytes], is_now: Callable[[], bool]) -> str:
    """Kill the battery at the moment; what is wrong, empty where nothing outlived it."""
    import psutil

    until = time.monotonic() + LIMIT_SECONDS
    while not is_now():
        if battery.poll() is not None or time.monotonic() > until:
            battery.kill()
            battery.wait()
            return "it ended before it could be killed"
        time.sleep(0.01)
    children = psutil.Process(battery.pid).children(recursive=True)
    battery.kill()
    battery.wait()
    _, alive = psutil.wait_procs(children, timeout=AGONY_SECONDS)
    return f"{len(alive)} processes outlived the battery" if alive else ""


def _interruption(name: str, moment: KillMoment, *, slow: bool = False) -> Injection:
    prepare = _killed(moment, _ALL, SLOW_DISK if slow else None)
    return Injection(f"killed-{name}", _ALL, 0, 7, "PASS", "", "figures equal", prepare, passes=(14,))


INTERRUPTIONS = (
    _interruption("in-the-environment", _in_phase("environment", 0.5)),
    _interruption("as-ranks-start", _in_phase("gpt2-mini exact", 0.5)),
    _interruption("in-a-launch", _in_phase("gpt2-mini exact", 6.0)),
    _interruption("as-a-phase-is-stored", _stores(".*.environment.phase.json.*"), slow=True),
    _interruption("in-the-probe", _in_phase("probe", 4.0)),
    _interruption("before-the-verdict", _stores("*.health.phase.json"), slow=True),
    _interruption("as-the-verdict-is-stored", _stores_verdict, slow=True),
    Injection(  # products of a virtual machine's ranks may warn without an interruption too
        "killed-in-micro-measurements",
        *(["--only", "0,2"], 0, 2, "PASS", "", "Gflop/s"),
        _killed(_in_phase("micro-measurements", 10.0), ["--only", "0,2"]),
        or_verdict="WARN",
    ),
)
