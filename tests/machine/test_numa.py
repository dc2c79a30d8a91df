"""A rank runs on the processors next to its GPU where the system says which those are, and elsewhere says why not."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from suite.machine import numa
from suite.machine.devices import usable_threads

ADDRESS = "0000:1b:00.0"


@pytest.fixture
def unbound():
    """Gives back what the test binds."""
    before = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # other threads may end meanwhile
            before[int(thread.name)] = os.sched_getaffinity(int(thread.name))
    yield
    for thread, processors in before.items():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, processors)


def system(root, *, node, processors=None):
    """A system's files below `root`: of a device at that node, and the node's list of processors."""
    device = root / "sys/bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    if processors is not None:
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        (root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{processors}\n")
    return root


def test_all_threads_run_on_the_devices_node_alone(tmp_path, unbound):
    """Also those that a library started before."""
    last = max(usable_threads())
    over, started, seen = threading.Event(), threading.Event(), []

    def wait():
        started.set()
        over.wait()
        seen.append(os.sched_getaffinity(0))

    other = threading.Thread(target=wait)
    other.start()
    started.wait()
    root = system(tmp_path, node=1, processors=f"{last},4000-4095")
    assert numa.bind_near(ADDRESS, threads=1, root=root) == "1"
    over.set()
    other.join()
    assert [os.sched_getaffinity(0), *seen] == [{last}, {last}]


def test_where_the_node_is_unknown_or_forbidden_nothing_is_bound(tmp_path, unbound):
    before = usable_threads()
    said = {}
    for number, (facts, threads, why) in enumerate(
        (
            (None, 1, "not bound: No such file or directory"),
            ({"node": -1}, 1, "not bound: one node alone, or not told which"),
            ({"node": 1}, 1, "not bound: No such file or directory"),
            ({"node": 1, "processors": "4000-4095"}, 1, "not bound: 0 processors of node 1 may be used, by 1 threads"),
            ({"node": 0, "processors": "0-4095"}, 5000, f"{len(before)} processors of node 0 may be used, by 5000"),
            ({"node": "?"}, 1, "not bound: invalid literal"),
        )
    ):
        root = tmp_path / str(number)
        said[why] = numa.bind_near(ADDRESS, threads=threads, root=root if facts is None else system(root, **facts))
    assert [words for why, words in said.items() if why not in words] == []
    assert usable_threads() == before
