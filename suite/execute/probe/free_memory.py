"""How much memory of this machine a rank may fill, and how freed memory is handed back before that is asked."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

SHARE = 0.9  # of what is free: the rest of the system goes on living
RESERVED_BYTES = 2**30  # that are left at least: the launcher, torchrun and whatever starts meanwhile
LEAST_SHARE = 0.25  # taken all the same where little is free
# of the versions of cgroups: limit, use, and the use that the kernel gives back before it kills
_CONTROLLERS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def hand_back(device: torch.device) -> None:
    """Give memory that Python, PyTorch and the C library keep for later back to the device and the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc, which ranks tell to keep what is freed
    if trim is not None:
        trim(0)


def fillable_bytes(free: int, *, ranks: int) -> int:
    """Of each rank where `free` bytes are free for all: 90 %, less where that would not leave 1 GiB, a quarter at
    least."""
    return max(int(LEAST_SHARE * free), min(int(SHARE * free), free - RESERVED_BYTES)) // ranks


def free_bytes(root: Path = Path("/")) -> int | None:
    """What the system calls available, or what this process's cgroups still allow where that is less.

    None where the system does not tell.

    Args:
        root: below which proc and sys/fs/cgroup are.
    """
    found = [left for left in (_available(root), *_allowed(root)) if left is not None]
    return max(0, min(found)) if found else None


def _available(root: Path) -> int | None:
    try:
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None


def _allowed(root: Path) -> list[int]:
    """What each cgroup of this process, and of those above it, that has a limit still allows.

    A container may see its own cgroup as the root, or only the path that it has on the host, which is not there.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controller, _, path = rest.partition(":")
        if controller not in _CONTROLLERS:
            continue
        top = root / "sys/fs/cgroup" / controller
        group = top / path.strip("/")
        for one in (group, *group.parents):
            left = _left(one, *_CONTROLLERS[controller])
            found += [] if left is None else [left]
            if one == top:
                break
    return found


def _left(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    """Bytes of one cgroup; None where it has no limit ("max") or is not to be seen."""
    try:
        statistics = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        most, current = ((group / name).read_text(encoding="ascii") for name in (limit, used))
        return int(most) - int(current) + int(statistics.get(reclaimable, 0))
    except (OSError, ValueError):
        return None
