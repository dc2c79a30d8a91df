"""`fleet accept` on a real cluster with four bad nodes of six: each is found by name and part, the others accepted."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from suite.fleet.judge import CONSEQUENCES
from tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.timeout(3600)  # a fleet of six on two cores
NODES = 6
SLOW, LINK, CLOCK, DIES = "n1", "n2", "n4", "n6"
TINY = ("--", "--only", "14", "--others", "1")  # replays alone: a machine of 2 cores has no other 12 to spare


def accept(cluster: SlurmCluster, place: Path, *options: str, during=None) -> tuple[int, dict]:
    words = ["fleet", "accept", "--results", f"{place}/r", "--at-once", "2", "--json", "--node-minutes", "15"]
    process = cluster.popen(sys.executable, "-m", "suite", *words, *options, *TINY, OMP_NUM_THREADS="1")
    try:
        if during is not None:
            during()
        out, err = process.communicate(timeout=3000)
    finally:
        process.terminate()
    assert out.startswith("{"), out + err
    return process.returncode, json.loads(out)


@pytest.fixture(scope="module")
def judged(cluster: SlurmCluster, place: Path) -> tuple[int, dict]:
    """One fleet with all four faults; the sixth node dies while its battery runs."""
    cluster.slow(SLOW, 0.12)
    cluster.limit_link(LINK, 40e6)
    cluster.shift_clock(CLOCK, 20)

    def die() -> None:
        until = time.monotonic() + 1800
        while not any(
            f"{DIES} " in line for line in cluster.run("squeue", "-h", "-t", "R", "-o", "%N ").stdout.splitlines()
        ):
            assert time.monotonic() < until
            time.sleep(0.5)
        cluster.kill(DIES)

    return accept(cluster, place, "--drain", during=lambda: threading.Thread(target=die, daemon=True).start())


def test_each_bad_node_is_found_by_name_and_part(judged: tuple[int, dict]) -> None:
    code, end = judged
    found = {row["node"]: (row["verdict"], row["part"]) for row in end["rows"]}
    verdict, slow = found[SLOW][0], found[SLOW][1].split("; ")
    assert (verdict, slow[0]) == ("rejected", "products (processor)")
    assert {*slow[1:]} <= {*CONSEQUENCES}  # at 12 % of a busy machine a battery may not end in time either
    assert found == {
        SLOW: found[SLOW],
        LINK: ("rejected", "link of the node"),
        "n3": ("accepted", ""),
        CLOCK: ("rejected", "clock"),
        "n5": ("accepted", ""),
        DIES: ("no answer", "node"),
    }
    assert code == 1
    assert end["links"] == []


def test_they_are_drained_with_that_reason_and_the_others_are_not(
    judged: tuple[int, dict], cluster: SlurmCluster
) -> None:
    parts = {SLOW: "products (processor)", LINK: "link of the node", CLOCK: "clock", DIES: "node"}
    for node in cluster.nodes:
        reason = cluster.reason(node)
        if node in parts:
            assert reason.startswith(f"suite: {parts[node]}"), reason
            assert len(reason) <= 200
        else:
            assert (cluster.state(node), reason) == ("idle", "")


def test_good_nodes_ran_the_miniature_together(judged: tuple[int, dict]) -> None:
    assert [(group["nodes"], group["exit_code"]) for group in judged[1]["groups"]] == [(["n3", "n5"], 0)]


def test_drained_and_busy_nodes_are_listed_as_not_run(
    judged: tuple[int, dict], cluster: SlurmCluster, place: Path
) -> None:
    job = cluster.popen("srun", "-w", "n5", "-N1", "sleep", "900")
    cluster.wait_for("n5", "allocated", "mixed")
    try:
        code, end = accept(cluster, place, "--nodes", f"n3,n5,{LINK}", "--groups", "none")
    finally:
        job.terminate()
        job.communicate(timeout=60)
    found = {row["node"]: (row["verdict"], row["evidence"].partition(":")[0]) for row in end["rows"]}
    assert found == {"n3": ("accepted", ""), "n5": ("not run", found["n5"][1]), LINK: ("not run", "drained")}
    assert found["n5"][1] in ("allocated", "mixed")
    assert code == 0
