"""Free memory of a process: what the system has, or what its cgroups still allow."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from suite.machine import free_memory

GIB = 2**30


def test_processes_that_the_kernel_killed_for_want_of_memory_are_counted(tmp_path):
    assert free_memory.oom_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("pgfault 7\noom_kill 3\noom_kill_other 5\n")
    assert free_memory.oom_kills(tmp_path) == 3


def machine(root, *, groups, files):
    """A machine's files below `root`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        (root / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / name).write_text(text)
    return root


def limited(group, limit, used, cache=0):
    return {f"{group}memory.max": f"{limit}\n", f"{group}memory.current": f"{used}\n"} | {
        f"{group}memory.stat": f"anon 5\ninactive_file {cache}\n"
    }


VERSION_1 = {
    "memory/job/memory.limit_in_bytes": str(5 * GIB),
    "memory/job/memory.usage_in_bytes": str(2 * GIB),
    "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {GIB}\n",
}


@pytest.mark.parametrize(
    ("available", "groups", "files", "free"),
    [
        (20, "", {}, 20),
        (20, "0::/\n", limited("", 8 * GIB, 3 * GIB, GIB), 6),
        (2, "0::/\n", limited("", 8 * GIB, 3 * GIB), 2),
        (20, "0::/\n", limited("", "max", 3 * GIB), 20),
        (20, "0::/\n", limited("", GIB, 3 * GIB), 0),
        # the limit is the parent's
        (20, "0::/job/step\n", limited("job/step/", "max", GIB) | limited("job/", 4 * GIB, GIB), 3),
        # the path is the host's, and the container sees its own group as the root
        (20, "0::/pods/7\n", limited("", 4 * GIB, GIB), 3),
        (20, "9:name=systemd:/\n4:memory:/job\n0::/\n", VERSION_1, 4),
    ],
)
def test_what_is_free_is_the_least_of_system_and_cgroups(tmp_path, monkeypatch, available, groups, files, free):
    system = SimpleNamespace(available=available * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
    assert free_memory.free_bytes(machine(tmp_path, groups=groups, files=files)) == free * GIB


def test_this_machine_reports_what_is_free():
    assert 0 < free_memory.free_bytes() < 2**50
