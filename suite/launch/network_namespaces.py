"""Hosts on one machine: network namespaces that a bridge joins, each with one interface whose rate may be limited."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERFACE = "wire"
NETWORK = "10.77.0"
_HTB = ("root", "handle", "1:", "htb", "default", "1")
BURST_BYTES = 64 * 1024  # that htb lets pass at once: one segment as veth carries it


def address(host: int) -> str:
    """Address of the host with that number, from 0."""
    return f"{NETWORK}.{host + 1}"


def why_not() -> str | None:
    """Why no namespaces with limited rates can be made here; None where they can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"needs {program} (iproute2)"
    name = f"suite{secrets.token_hex(3)}"
    if _run("ip", "netns", "add", name, check=False).returncode != 0:
        return "network namespaces (ip netns) are not permitted here"
    try:
        limited = _run("tc", "-n", name, "qdisc", "add", "dev", "lo", *_HTB, check=False)
    finally:
        _run("ip", "netns", "del", name, check=False)
    return None if limited.returncode == 0 else "the kernel has no htb queueing"


@contextmanager
def hosts(count: int) -> Iterator[list[str]]:
    """The names of `count` namespaces with one interface each; removed at the end with all that runs there.

    Raises:
        subprocess.CalledProcessError: they cannot be made (see `why_not`).
    """
    mark = secrets.token_hex(3)
    switch, names = f"suite{mark}sw", [f"suite{mark}h{number}" for number in range(count)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            _run("ip", "netns", "add", name)
            port = f"port{number}"
            _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", name, "addr", "add", f"{address(number)}/24", "dev", INTERFACE)
            _run("ip", "-n", name, "link", "set", INTERFACE, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in [*names, switch]:
            end_all_in(name)
            _run("ip", "netns", "del", name, check=False)


def end_all_in(name: str) -> None:
    """End what runs in a namespace: ranks have sessions of their own, and outlive the torchrun that started them."""
    for pid in map(int, _run("ip", "netns", "pids", name, check=False).stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def limit(names: list[str], bits_per_second: float | None) -> None:
    """Let every host send at most at that rate; None: as fast as it can."""
    for name in names:
        tc, device = ("tc", "-n", name), ("dev", INTERFACE)
        _run(*tc, "qdisc", "del", *device, "root", check=False)  # none at first
        if bits_per_second is not None:
            rate = (f"{bits_per_second:.0f}bit", "burst", str(BURST_BYTES))
            _run(*tc, "qdisc", "add", *device, *_HTB)
            _run(*tc, "class", "add", *device, "parent", "1:", "classid", "1:1", "htb", "rate", *rate)


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True)
