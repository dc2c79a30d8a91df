"""The settings of a host are read from the kernel's files, which are made up here."""

from __future__ import annotations

import pytest

from suite.machine import host_state as module
from suite.machine.host_state import (
    highest_hertz,
    host_state,
    numbers,
    one_of_each_core_first,
    quota_cores,
    siblings_share,
    thread_ticks,
)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that writes files below /sys and /proc; two hardware threads are usable."""
    monkeypatch.setattr(module, "SYS", tmp_path / "sys")
    monkeypatch.setattr(module, "PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "usable_threads", lambda: frozenset({0, 1}))

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    return write


def test_lists_of_the_kernel_are_read():
    found = {"": [], "0": [0], "0-3,8": [0, 1, 2, 3, 8], "0-1,4-5\n": [0, 1, 4, 5], "0-2,8,10-11": [0, 1, 2, 8, 10, 11]}
    assert {text: numbers(text) for text in found} == found


def test_a_host_that_says_nothing_has_nothing_unusual(kernel, tmp_path):
    state = host_state(tmp_path, {})
    assert (state.governors, state.clock_share, state.huge_pages, state.numa_absent) == ({}, None, "", [])
    assert (state.quota_cores, state.siblings_share) == (None, None)
    assert state.written_bytes_per_second > 0
    assert host_state(tmp_path / "nowhere", {}).written_bytes_per_second is None
    assert list(tmp_path.iterdir()) == []


def test_clocks_are_those_of_usable_threads(kernel, tmp_path):
    for number, (governor, most) in enumerate((("performance", 3000), ("powersave", 1500), ("ondemand", 10))):
        where = f"sys__devices__system__cpu__cpu{number}__cpufreq__"
        kernel(**{f"{where}scaling_governor": governor, f"{where}scaling_driver": "acpi-cpufreq"})
        kernel(**{f"{where}scaling_max_freq": most, f"{where}cpuinfo_max_freq": 3000})
    state = host_state(tmp_path, {})
    assert state.governors == {"performance": 1, "powersave": 1}
    assert (state.governor_driver, state.clock_share) == ("acpi-cpufreq", 0.5)


def test_nodes_of_memory_that_are_missing_or_empty_are_named(kernel, tmp_path):
    where = "sys__devices__system__node__"
    kernel(**{f"{where}online": "0-1", f"{where}possible": "0-2", f"{where}has_cpu": "0-1", f"{where}has_memory": "0"})
    state = host_state(tmp_path, {})
    assert (state.numa_absent, state.numa_without_memory) == ([2], [1])
    kernel(sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]")
    assert host_state(tmp_path, {}).huge_pages == "never"


def test_nodes_of_accelerators_memory_that_are_not_used_are_none_that_are_missing(kernel, tmp_path):
    """GB200: two of the processors, four GPUs with 8 nodes each, of which one has the memory."""
    where = "sys__devices__system__node__"
    gpus = "2,10,18,26"
    kernel(**{f"{where}possible": "0-33", f"{where}has_cpu": "0-1", f"{where}has_generic_initiator": ""})
    for online, memory, absent in (
        (f"0-1,{gpus}", f"0-1,{gpus}", []),
        ("0-33", f"0-1,{gpus}", []),
        (f"1,{gpus}", f"1,{gpus}", [0]),  # one of the processors'
    ):
        kernel(**{f"{where}online": online, f"{where}has_memory": memory})
        state = host_state(tmp_path, {})
        assert (state.numa_absent, state.numa_without_memory) == (absent, [] if not absent else [0]), online


@pytest.mark.parametrize(
    ("group", "file", "text", "quota"),
    [
        ("0::/a/b", "sys__fs__cgroup__a__cpu.max", "50000 100000", 0.5),
        ("0::/a/b", "sys__fs__cgroup__a__b__cpu.max", "max 100000", None),
        ("4:cpu,cpuacct:/a", "sys__fs__cgroup__cpu,cpuacct__a__cpu.cfs_quota_us", "150000", 1.5),
        ("4:cpu,cpuacct:/a", "sys__fs__cgroup__cpu,cpuacct__a__cpu.cfs_quota_us", "-1", None),
        ("4:cpu:/host/a", "sys__fs__cgroup__cpu__cpu.cfs_quota_us", "25000", 0.25),  # a container's own root
    ],
)
def test_the_least_quota_around_a_process_counts(kernel, group, file, text, quota):
    kernel(proc__self__cgroup=f"9:memory:/a\n{group}", **{file: text})
    kernel(**{file.replace("quota", "period"): 100000} if "quota" in file else {})
    assert quota_cores() == quota


def test_ranks_get_a_thread_of_every_core_before_the_second_ones(kernel):
    assert one_of_each_core_first({3, 0, 1}) == [0, 1, 3]  # where the system says nothing of cores
    for number, text in ((0, "0-1"), (1, "0-1"), (2, "2,6"), (6, "2,6"), (3, "3")):
        kernel(**{f"sys__devices__system__cpu__cpu{number}__topology__thread_siblings_list": text})
    assert one_of_each_core_first({0, 1, 2, 3, 6}) == [0, 2, 3, 1, 6]
    assert one_of_each_core_first({1, 6, 3}) == [1, 3, 6]


def test_the_highest_clock_of_a_thread_is_known_where_the_system_says_it(kernel):
    kernel(sys__devices__system__cpu__cpu1__cpufreq__cpuinfo_max_freq="3700000")
    assert (highest_hertz(0), highest_hertz(1)) == (None, 3.7e9)


def test_time_of_threads_is_read_and_that_of_unusable_siblings_compared(kernel):
    kernel(proc__stat="cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 1 0 0 9 0 0 0 0 0 0\ncpu2 3 1 1 4 1 0 0 2 0 0\nintr 5")
    assert thread_ticks() == {0: (1, 10), 2: (7, 12)}
    for number, text in enumerate(("0,2", "1,3")):
        kernel(**{f"sys__devices__system__cpu__cpu{number}__topology__thread_siblings_list": text})
    before, after = {0: (0, 0), 2: (0, 0), 3: (0, 0)}, {0: (100, 100), 2: (60, 100), 3: (5, 100)}
    assert siblings_share(before, after, {0, 1}) == 0.6
    assert siblings_share(before, after, {0, 1, 2, 3}) is None
