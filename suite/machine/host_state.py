"""Settings of a host that make its times say little of its hardware: clocks, memory, processor time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec

from suite.machine.devices import usable_threads

SYS, PROC = Path("/sys"), Path("/proc")
WRITTEN_BYTES = 4 * 2**20
ThreadTicks = dict[int, tuple[int, int]]  # by hardware thread, busy and all ticks since the machine started


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """One reading; None or empty where the system does not say.

    Args:
        governors: of the processors' clocks, by name, how many usable hardware threads have each; `governor_driver`.
        clock_share: highest clock that is allowed over the highest that there is, of the usable thread with the least.
        huge_pages: transparent ones: always, madvise or never.
        numa_absent: NUMA nodes that the firmware lists and that are not online.
        numa_without_memory: NUMA nodes with processors, but without memory.
        quota_cores: processor time a second that the cgroups of this process allow.
        siblings_share: of the hardware threads that share a core with a usable one and are not usable themselves, the
            share of time that others computed on them.
        written_bytes_per_second: of a file in the results directory, written and brought to the disk.
    """

    governors: dict[str, int] = {}
    governor_driver: str = ""
    clock_share: float | None = None
    huge_pages: str = ""
    numa_absent: list[int] = []
    numa_without_memory: list[int] = []
    quota_cores: float | None = None
    siblings_share: float | None = None
    written_bytes_per_second: float | None = None


def host_state(results: Path, before: ThreadTicks) -> HostState:
    """The state now.

    Args:
        before: `thread_ticks` of a while ago.
    """
    threads = usable_threads()
    processors = SYS / "devices/system/cpu"
    frequencies = [processors / f"cpu{number}/cpufreq" for number in sorted(threads)]
    governors = Counter(text for each in frequencies if (text := file_text(each / "scaling_governor")))
    drivers = {text for each in frequencies if (text := file_text(each / "scaling_driver"))}
    nodes = SYS / "devices/system/node"
    online, possible = (set(numbers(file_text(nodes / name))) for name in ("online", "possible"))
    with_processors, with_memory, of_devices = (
        set(numbers(file_text(nodes / name))) for name in ("has_cpu", "has_memory", "has_generic_initiator")
    )
    return HostState(
        governors=dict(governors),
        governor_driver=", ".join(sorted(drivers)),
        clock_share=_clock_share(frequencies),
        huge_pages=_chosen(file_text(SYS / "kernel/mm/transparent_hugepage/enabled")),
        numa_absent=_absent(possible, online, with_processors, of_devices) if online else [],
        numa_without_memory=sorted(with_processors - with_memory) if with_memory else [],
        quota_cores=quota_cores(),
        siblings_share=siblings_share(before, thread_ticks(), threads),
        written_bytes_per_second=written_bytes_per_second(results),
    )


def _absent(possible: set[int], online: set[int], with_processors: set[int], of_devices: set[int]) -> list[int]:
    """NUMA nodes that should be online and are not.

    A system whose accelerators have memory in NUMA nodes of their own (GB200: HBM) has nodes without processors, and
    its firmware lists 8 for each accelerator, one for each of its partitions, of which one is used. They come behind
    the nodes with processors.
    """
    highest = max(with_processors, default=-1)
    has_device_memory = bool(of_devices or online - with_processors) and highest >= 0
    absent = possible - online - of_devices
    return sorted(node for node in absent if not has_device_memory or node < highest)


def numbers(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            found += range(int(first), int(last if last.isdecimal() else first) + 1)
    return found


def one_of_each_core_first(threads: Collection[int]) -> list[int]:
    """Hardware threads in the order in which ranks get one each: one of every core, then the second ones."""
    topology = SYS / "devices/system/cpu"

    def place(number: int) -> int:
        siblings = numbers(file_text(topology / f"cpu{number}/topology/thread_siblings_list"))
        return sum(each in threads for each in siblings if each < number)

    return sorted(threads, key=lambda number: (place(number), number))


def highest_hertz(number: int) -> float | None:
    """The highest clock of a hardware thread; None where the system does not say."""
    kilohertz = file_text(SYS / f"devices/system/cpu/cpu{number}/cpufreq/cpuinfo_max_freq")
    return 1e3 * int(kilohertz) if kilohertz.isdecimal() else None


def thread_ticks() -> ThreadTicks:
    """Busy and all ticks of every hardware thread; empty where the system does not report them."""
    ticks: ThreadTicks = {}
    for line in file_text(PROC / "stat").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu" and len(counts) >= 8:
            whole = [int(count) for count in counts[:8]]
            ticks[int(name[3:])] = (sum(whole) - whole[3] - whole[4], sum(whole))  # less idle, and waiting for disks
    return ticks


def siblings_share(before: ThreadTicks, after: ThreadTicks, threads: Collection[int]) -> float | None:
    """Share of time in which the busiest unusable sibling of a usable thread computed; None where there is none."""
    topology = SYS / "devices/system/cpu"
    siblings = {
        sibling
        for number in threads
        for sibling in numbers(file_text(topology / f"cpu{number}/topology/thread_siblings_list"))
    }
    shares = [
        (after[number][0] - before[number][0]) / (after[number][1] - before[number][1])
        for number in siblings - set(threads)
        if number in before and number in after and after[number][1] > before[number][1]
    ]
    return max(shares, default=None)


def quota_cores() -> float | None:
    """Processors' worth of time that this process's cgroups, and those around them, allow; None without a limit."""
    limits = []
    for line in file_text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts, quota = [SYS / "fs/cgroup", SYS / "fs/cgroup/unified"], _quota
        elif "cpu" in controllers.split(","):
            mounts, quota = [SYS / "fs/cgroup" / controllers, SYS / "fs/cgroup/cpu"], _quota_of_version_1
        else:
            continue
        inner = Path(path.lstrip("/"))
        around = [inner, *inner.parents]
        limits += [limit for mount in mounts for each in around if (limit := quota(mount / each)) is not None]
    return min(limits, default=None)


def _quota(directory: Path) -> float | None:
    quota, _, period = file_text(directory / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _quota_of_version_1(directory: Path) -> float | None:
    quota, period = (file_text(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def written_bytes_per_second(directory: Path) -> float | None:
    """Rate of 4 MiB written to a file there and brought to the disk; None where nothing can be written."""
    data = os.urandom(WRITTEN_BYTES)
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=directory) as file:
        begun = time.monotonic()
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return WRITTEN_BYTES / (time.monotonic() - begun)
    return None


def _clock_share(frequencies: Collection[Path]) -> float | None:
    shares = [
        int(allowed) / int(most)
        for each in frequencies
        if (allowed := file_text(each / "scaling_max_freq")).isdecimal()
        and (most := file_text(each / "cpuinfo_max_freq")).isdecimal()
        and int(most)
    ]
    return min(shares, default=None)


def _chosen(text: str) -> str:
    """The word in brackets of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0]


def file_text(path: Path) -> str:
    """Contents of a small file of the kernel, stripped; empty where there is none, or it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
