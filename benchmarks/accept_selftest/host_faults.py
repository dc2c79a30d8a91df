"""Faults of the host: what the kernel reports of clocks, memory and processors, quotas, disks, the time of day."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from benchmarks.accept_selftest.injection import AcceptedBefore, Injection, InjectionDirectories, Prepare, Prepared
from suite.commands import exit_codes
from suite.machine.devices import resolved_device, usable_cores, usable_threads
from suite.machine.host_state import SYS
from suite.records.battery import battery_directory

PROCESSORS, NODES = "devices/system/cpu", "devices/system/node"
HUGE_PAGES = "kernel/mm/transparent_hugepage"
MOUNTED = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 125; shift 2; done; shift; exec "$@"'
IN_CGROUP = 'echo $$ > "$1/cgroup.procs" || exit 125; shift; exec "$@"'
PERIOD_MICROSECONDS = 100_000
AHEAD_SECONDS = 3 * 86400.0
TREE_LEVELS = 3  # of a directory below /sys that are copied: cpu0/topology/thread_siblings_list


def _no_mounts() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "needs root and unshare to mount over /sys"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if done.returncode == 0 else "the kernel makes no mount namespace here"


def _no_second_thread() -> str | None:
    lacking = None if usable_cores() > 1 and shutil.which("taskset") else "needs taskset and two usable processors"
    return _no_mounts() or lacking


def _sys(changed: Callable[[Path], None], *directories: str, prefix: tuple[str, ...] = ()) -> Prepare:
    """Directories below /sys as copies that are changed, mounted over the kernel's for the battery alone."""

    @contextmanager
    def mounted(places: InjectionDirectories) -> Iterator[Prepared]:
        copies = places.scratch / "sys"
        for directory in directories:
            _copy(SYS / directory, copies / directory, TREE_LEVELS)
        changed(copies)
        pairs = [text for each in directories for text in (str(copies / each), str(SYS / each))]
        yield Prepared([], {}, ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", *pairs, "--", *prefix])

    return mounted


def _copy(source: Path, target: Path, levels: int) -> None:
    """Files that can be read, without links: below /sys these lead around in circles."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_symlink():
            continue
        with suppress(OSError):
            if path.is_file():
                (target / path.name).write_bytes(path.read_bytes())
            elif path.is_dir() and levels:
                _copy(path, target / path.name, levels - 1)


def _clocks(governor: str, most: int) -> Callable[[Path], None]:
    def changed(copies: Path) -> None:
        for number in usable_threads():
            where = copies / PROCESSORS / f"cpu{number}/cpufreq"
            where.mkdir(parents=True, exist_ok=True)
            texts = {"scaling_governor": governor, "scaling_driver": "acpi-cpufreq"}
            texts |= {"cpuinfo_max_freq": "3000000", "scaling_max_freq": str(most)}
            for name, text in texts.items():
                (where / name).write_text(f"{text}\n")

    return changed


def _siblings(copies: Path) -> None:
    first, second = sorted(usable_threads())[:2]
    for number in (first, second):
        where = copies / PROCESSORS / f"cpu{number}/topology"
        where.mkdir(parents=True, exist_ok=True)
        (where / "thread_siblings_list").write_text(f"{first},{second}\n")


def _texts(directory: str, **texts: str) -> Callable[[Path], None]:
    def changed(copies: Path) -> None:
        for name, text in texts.items():
            (copies / directory / name).write_text(f"{text}\n")

    return changed


@contextmanager
def _busy_sibling(places: InjectionDirectories) -> Iterator[Prepared]:
    """The battery on one processor, and a busy process on the other, which is said to be a thread of the same core."""
    first, second = sorted(usable_threads())[:2]
    alone = ("taskset", "--cpu-list", str(first))
    with _sys(_siblings, PROCESSORS, prefix=alone)(places) as prepared:
        command = ["taskset", "--cpu-list", str(second), sys.executable, "-S", "-c", "while True: pass"]
        busy = subprocess.Popen(command)
        try:
            yield prepared._replace(arguments=["--ranks", "1"])
        finally:
            busy.kill()
            busy.wait()


def _cgroups() -> Path | None:
    """Where a cgroup with a quota can be made: of version 1 or 2."""
    for place, file in ((SYS / "fs/cgroup/cpu", "cpu.cfs_quota_us"), (SYS / "fs/cgroup", "cgroup.subtree_control")):
        with suppress(OSError):
            has_quotas = file == "cpu.cfs_quota_us" or "cpu" in (place / file).read_text().split()
            if has_quotas and os.access(place / "cgroup.procs", os.W_OK):
                return place
    return None


def _no_cgroup() -> str | None:
    return None if os.geteuid() == 0 and _cgroups() is not None else "needs root and a cgroup of processors"


@contextmanager
def _quota(_places: InjectionDirectories) -> Iterator[Prepared]:
    """A cgroup that allows half of a processor's time."""
    around = _cgroups()
    assert around is not None
    own = around / f"suite-selftest-{os.getpid()}"
    own.mkdir()
    try:
        half = str(PERIOD_MICROSECONDS // 2)
        if (own / "cpu.cfs_quota_us").exists():
            (own / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (own / "cpu.cfs_quota_us").write_text(half)
        else:
            (own / "cpu.max").write_text(f"{half} {PERIOD_MICROSECONDS}")
        yield Prepared([], {}, ["sh", "-c", IN_CGROUP, "sh", str(own)])
    finally:
        _removed(own)


def _removed(cgroup: Path) -> None:
    """Remove a cgroup, whose last process may still be ending."""
    for _ in range(100):
        with suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.1)


@contextmanager
def _wrong_clock(places: InjectionDirectories) -> Iterator[Prepared]:
    """The last battery of this node ended in three days: the clock went back since."""
    results = places.scratch / "results"
    directory = battery_directory(results)
    directory.mkdir(parents=True)
    for path in battery_directory(places.results).glob("*.end.json"):
        closed = json.loads(path.read_bytes())
        (directory / path.name).write_text(json.dumps(closed | {"finished": time.time() + AHEAD_SECONDS}))
    yield Prepared(["--results", str(results)], {}, [])


def _slow_disk(_places: InjectionDirectories) -> nullcontext[Prepared]:
    return nullcontext(Prepared([], {"PYTHONPATH": str(Path(__file__).parent / "disk")}, []))


_HOST = ["--only", "0"]
_OPEN = exit_codes.INCONCLUSIVE
_HERE = resolved_device("auto")[0]

HOST_INJECTIONS = (
    Injection("clean-host", _HOST, 0, 0, "PASS", "", "nothing unusual", _sys(lambda _: None, PROCESSORS), _no_mounts),
    Injection(
        "governor",
        *(_HOST, 0, 0, "WARN", "clock governor", "powersave on"),
        *(_sys(_clocks("powersave", 3_000_000), PROCESSORS), _no_mounts),
    ),
    Injection(
        "clock-limit",
        *(_HOST, 0, 0, "WARN", "clock limit", "50% of"),
        *(_sys(_clocks("performance", 1_500_000), PROCESSORS), _no_mounts),
    ),
    Injection(
        "smt-sibling-busy",
        ["--only", "0", "--others", "0.1"],
        *(_OPEN, 0, "INVALID", "SMT sibling", "shares a core with ours", _busy_sibling, _no_second_thread),
    ),
    Injection(
        "cgroup-quota",
        *(_HOST, _OPEN if _HERE == "cpu" else 0, 0, "INVALID" if _HERE == "cpu" else "WARN", "cgroup quota"),
        *("0.5 processors", _quota, _no_cgroup),
    ),
    Injection(
        "huge-pages-off",
        *(_HOST, 0, 0, "WARN", "huge pages", "are off"),
        *(_sys(_texts(HUGE_PAGES, enabled="always madvise [never]"), HUGE_PAGES), _no_mounts),
    ),
    Injection(
        "numa-node-missing",
        *(_HOST, 0, 0, "WARN", "NUMA node 1", "the system has not"),
        *(_sys(_texts(NODES, online="0", possible="0-1"), NODES), _no_mounts),
    ),
    Injection(
        "numa-node-without-memory",
        *(_HOST, 0, 0, "WARN", "NUMA node 1", "no memory"),
        *(_sys(_texts(NODES, online="0-1", possible="0-1", has_cpu="0-1", has_memory="0"), NODES), _no_mounts),
    ),
    Injection("slow-disk", _HOST, 0, 0, "WARN", "disk of the results", "MB/s", _slow_disk),
    Injection("wrong-clock", _HOST, 0, 0, "WARN", "clock", "in the future", _wrong_clock, past=AcceptedBefore.LINKS),
)
