"""Binds this process to the processors next to a device, so that what it pins lies in the memory next to it too."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from suite.machine.devices import usable_threads
from suite.machine.host_state import numbers


def bind_near(pci: str, *, threads: int, root: Path = Path("/")) -> str:
    """Let this process run only on the NUMA node of the device at this PCI address; its number, or "not bound: WHY".

    Memory then comes from that node too: the kernel takes it where a thread first writes it. No right is needed.
    Nothing is bound where the system does not know the node, or leaves this process fewer processors of it than
    threads: a scheduler may have bound it elsewhere.

    Args:
        threads: that compute in this process.
        root: below which sys is.
    """
    try:
        node = int((root / "sys/bus/pci/devices" / pci / "numa_node").read_text(encoding="utf-8"))
        if node < 0:
            return "not bound: one node alone, or not told which"
        text = (root / f"sys/devices/system/node/node{node}/cpulist").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        return f"not bound: {getattr(error, 'strerror', None) or error}"
    near = usable_threads().intersection(numbers(text))
    if len(near) < threads:
        return f"not bound: {len(near)} processors of node {node} may be used, by {threads} threads"
    for thread in Path("/proc/self/task").iterdir():  # those that libraries have started
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), near)
    return str(node)
