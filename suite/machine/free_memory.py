"""Memory of the host that is free for this process, and processes that ended for want of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

# by version of cgroups: limit, use, and the use that the kernel can reclaim
_CONTROLLERS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
KILLED = "killed by the kernel for want of memory"


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that the system calls available, or that this process's cgroups still allow where those are fewer.

    Args:
        root: below which proc and sys/fs/cgroup are.
    """
    import psutil  # commands that only list or describe do without

    return max(0, min([psutil.virtual_memory().available, *_allowed(root)]))


def oom_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel has killed for want of memory since boot: of the host, or by the limit of a container.

    0 where the kernel does not say.
    """
    try:
        counters = (root / "proc/vmstat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters.splitlines() if line.startswith("oom_kill ")), 0)


def _allowed(root: Path) -> list[int]:
    """Bytes that each cgroup of this process with a limit, and each of its parents, still allows.

    A container may see its own cgroup as the root, or a path of the host that does not exist in it.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    allowed = []
    for line in lines:
        _, controller, path = line.split(":", 2)
        if controller not in _CONTROLLERS:
            continue
        top = root / "sys/fs/cgroup" / controller
        lowest = top / path.strip("/")
        limit, used, reclaimable = _CONTROLLERS[controller]
        for group in (lowest, *lowest.parents):
            with contextlib.suppress(OSError, ValueError):  # it cannot be read, or has no limit ("max")
                statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                most, current = (int((group / name).read_text()) for name in (limit, used))
                allowed.append(most - current + int(statistics.get(reclaimable, 0)))
            if group == top:
                break
    return allowed
