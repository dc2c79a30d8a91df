"""The cluster of these tests itself: that its faults are faults, and that nothing of it is left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import slurm_cluster
from tests.support.slurm_cluster import SlurmCluster


def namespaces() -> set[str]:
    said = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in said.splitlines()}


def mentioning(words: str) -> list[str]:
    """Commands of running processes that name it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [command] if words in command else []
    return found


def test_jobs_see_their_node_and_its_switch(cluster: SlurmCluster) -> None:
    said = cluster.run("srun", "-N4", "--ntasks-per-node=1", "sh", "-c", "echo $(hostname) $SLURM_TOPOLOGY_ADDR")
    assert sorted(said.stdout.split("\n")[:-1]) == [f"n{n} top.s{(n + 1) // 2}.n{n}" for n in (1, 2, 3, 4)]


def test_a_shifted_clock_is_that_of_jobs_on_that_node_alone(cluster: SlurmCluster) -> None:
    cluster.shift_clock("n3", 3600)
    said = cluster.run("srun", "-N4", "--ntasks-per-node=1", "sh", "-c", "echo $(hostname) $(date +%s)")
    cluster.shift_clock("n3", None)
    clocks = {name: int(second) for name, second in map(str.split, said.stdout.splitlines())}
    usual = clocks.pop("n3") - 3600
    assert max(abs(second - usual) for second in clocks.values()) < 60


def test_a_dead_node_is_down_until_it_is_revived(cluster: SlurmCluster) -> None:
    cluster.kill("n2")
    assert cluster.wait_for("n2", "down", "down*").startswith("down")
    cluster.revive("n2")
    assert cluster.wait_for("n2", "idle") == "idle"


def test_nothing_of_a_cluster_is_left(tmp_path: Path) -> None:
    if reason := slurm_cluster.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    before = namespaces()
    with slurm_cluster.slurm_cluster(tmp_path, 2) as running:
        job = running.popen("srun", "-N2", "sleep", "600")
        running.run("srun", "--immediate=1", "-N1", "true")
        assert namespaces() > before
    job.communicate(timeout=60)
    assert namespaces() == before
    assert mentioning(str(tmp_path)) == []
