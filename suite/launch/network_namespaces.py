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
BURST_BYTES = 64 * 1024  # that htb lets pass at once: one segment as veth carries it


def address(host: int) -> str:
    """Of the host with that number, from 0."""
    return f"{NETWORK}.{host + 1}"


def why_not() -> str | None:
    """Why no namespaces with limited rates can be made here; None where they can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"needs {program} (iproute2)"
    name = f"suite{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return "network namespaces (ip netns) are not permitted here"
    try:
        limited = subprocess.run(
            ["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1"],
            capture_output=True,
            check=False,
        )
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
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
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            port = f"port{number}"
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in [*names, switch]:
            _kill(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _kill(name: str) -> None:
    """End what runs in a namespace: ranks have sessions of their own, and outlive the torchrun that started them."""
    told = subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=False).stdout
    for pid in map(int, told.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def limit(names: list[str], bits_per_second: float | None) -> None:
    """Let every host send at most at that rate; None: as fast as it can."""
    for name in names:
        tc = ["tc", "-n", name]
        device = ["dev", INTERFACE]
        subprocess.run([*tc, "qdisc", "del", *device, "root"], capture_output=True, check=False)  # none at first
        if bits_per_second is None:
            continue
        rate = [f"{bits_per_second:.0f}bit", "burst", str(BURST_BYTES)]
        _run([*tc, "qdisc", "add", *device, "root", "handle", "1:", "htb", "default", "1"])
        _run([*tc, "class", "add", *device, "parent", "1:", "classid", "1:1", "htb", "rate", *rate])


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
