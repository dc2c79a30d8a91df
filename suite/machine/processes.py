"""Processes of a launch: they are tied to their parent, marked, found by their mark or start, and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LAUNCH_VARIABLE = "SUITE_LAUNCH"  # marks every process of a launch, so that all can be ended

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here, because no lock may be taken after a fork
_GONE_WITHIN_SECONDS = 10.0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, also if this process is stopped; Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment_of(pid: int) -> list[bytes]:
    """NAME=value entries of the process's environment; empty if it has ended or cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def started_ticks(pid: int) -> int:
    """When process `pid` started, in clock ticks since boot; -1 where it is gone or unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def boot_identity() -> str:
    """The kernel's random identity of this boot; "unknown" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def marked_processes(identity: str) -> Iterator[int]:
    """Processes of launch `identity`, found by the mark in their environment; Linux only."""
    mark = f"{LAUNCH_VARIABLE}={identity}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        if mark in environment_of(int(path.name)):
            yield int(path.name)


def end_all(parent: subprocess.Popen[bytes], identity: str, pids: list[int]) -> None:
    """Kill `parent` and every process of launch `identity`, stopped ones too, and wait until they are gone.

    Args:
        pids: processes known by number, for systems that show no environments.
    """
    import psutil

    if parent.poll() is None:
        parent.kill()
    parent.wait()
    deadline = time.monotonic() + _GONE_WITHIN_SECONDS
    while time.monotonic() < deadline:
        left = set(marked_processes(identity)) if sys.platform == "linux" else set(filter(psutil.pid_exists, pids))
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def is_stopped(pid: int | None) -> bool:
    """Whether the process is stopped (state T), for instance by SIGSTOP."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
