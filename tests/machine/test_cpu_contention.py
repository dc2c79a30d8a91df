"""Others used the processor time of all, less that of the ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from suite.machine.cpu_contention import Shared, competitors, others_shares


def shared(own, busy=8.0, steal=1.0, whole=20.0):
    return Shared(own=own, busy=busy, steal=steal, whole=whole)


def test_shares_are_of_rank_0s_time_and_need_every_rank():
    assert others_shares([shared(3.0), shared(3.0)]) == pytest.approx((0.1, 0.05))
    # clocks of processes and of the system differ a little
    assert others_shares([shared(5.0), shared(5.0)]) == pytest.approx((0.0, 0.05))
    for unknown in ([shared(3.0), None], [], [shared(3.0, whole=0.0)]):
        assert others_shares(unknown) == (None, None)


RENAMED = """
import sys, time
while time.process_time() < 1.0:
    pass
print("idle", flush=True)
for number in range(1000):
    time.sleep(0.02)
    with open("/proc/self/comm", "w") as comm:
        comm.write(f"worker-{number}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: only Linux has /proc")
def test_a_process_that_changes_its_name_used_no_more_than_meanwhile() -> None:
    """As the kernel's workers do: one was said to use 4.9 cores of 2, all that it had used since its start."""
    with subprocess.Popen([sys.executable, "-c", RENAMED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "idle\n"
        found, _ = competitors(0.5)
        process.kill()
    assert all(one.cores < 1.5 for one in found if one.pid == process.pid)  # 2 and more with what it used before
