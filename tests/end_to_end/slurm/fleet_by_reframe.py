"""`fleet accept --engine reframe`: a node's battery by ReFrame's own runner, on this machine and on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reference_runs.errors import InputError
from suite.fleet.engines.reframe_engine import NOT_STARTED, reframe_program
from suite.paths import ROOT
from tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.timeout(1800)
NODES = 3
HERE = """
site_configuration = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": [
        {"name": "this", "scheduler": "local", "launcher": "local", "environs": ["plain", "other"]},
    ]}],
    "environments": [{"name": "plain"}, {"name": "other"}],
}
"""
COMMAND = [sys.executable, "-m", "suite.fleet.reframe_command"]


@pytest.fixture(autouse=True, scope="module")
def needs_reframe() -> None:
    try:
        reframe_program()
    except InputError as error:
        pytest.skip(f"NOT RUN: {error}")


def begun_here(place: Path, node: str, *command: str) -> subprocess.Popen[str]:
    """A command by ReFrame's local scheduler, under a configuration that is named from where the command is given."""
    (place / "here.py").write_text(HERE)
    return subprocess.Popen(
        [*COMMAND, str(place / "r"), node, "label", *command],
        cwd=place,
        env=os.environ
        | {"RFM_CONFIG_FILES": "here.py", "HOME": str(place), "PYTHONPATH": str(ROOT)}
        | {"PATH": f"{place}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(place: Path) -> list[str]:
    return [str(path) for path in (place / "r").rglob("*") if path.name != "scratch"]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_runs_once_says_what_it_says_and_ends_as_it_ends(tmp_path: Path, code: int) -> None:
    process = begun_here(tmp_path, "localhost", "sh", "-c", f"echo 'it is  so'; echo x >> {tmp_path}/x; exit {code}")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, "it is  so\n"), err
    assert (tmp_path / "x").read_text() == "x\n"
    assert left(tmp_path) == []


def test_a_node_that_reframe_cannot_reach_is_not_one_whose_command_failed(tmp_path: Path) -> None:
    process = begun_here(tmp_path, "elsewhere", "touch", str(tmp_path / "x"))
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert out.startswith(f"{NOT_STARTED}: ")
    assert f"reaches no elsewhere from {socket.gethostname()}" in out
    assert not (tmp_path / "x").exists()


def test_what_is_interrupted_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    process = begun_here(tmp_path, "localhost", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())), 20)
    assert left(tmp_path) == []


def test_a_job_that_reframe_does_not_know_yet_is_cancelled_by_its_name(tmp_path: Path) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    scancel.chmod(0o755)
    process = begun_here(tmp_path, "localhost", "sh", "-c", f"touch {tmp_path}/alive; exec sleep 600")
    wait_until((tmp_path / "alive").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (tmp_path / "cancelled").read_text().split() == ["--quiet", "--name=label"]


def by_reframe(cluster: SlurmCluster, place: Path, node: str, *command: str) -> subprocess.Popen[str]:
    settings = {"RFM_CONFIG_FILES": str(ROOT / "deploy" / "reframe" / "settings.py"), "HOME": str(place)}
    return cluster.popen(*COMMAND, str(place / "r"), node, f"label-{node}", *command, **settings)


def test_the_command_is_on_the_node_that_is_named_and_has_all_of_it(cluster: SlurmCluster, place: Path) -> None:
    begun = {
        node: by_reframe(cluster, place, node, "sh", "-c", "hostname; echo $SLURM_CPUS_ON_NODE; pwd")
        for node in ("n3", "n2")
    }
    for node, process in begun.items():
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out.split()) == (0, [node, "2", str(ROOT)]), err


def test_a_busy_node_is_not_waited_for_and_says_so(cluster: SlurmCluster, place: Path) -> None:
    job = cluster.popen("srun", "-w", "n2", "-N1", "--exclusive", "sleep", "900")
    cluster.wait_for("n2", "allocated", "mixed")
    try:
        process = by_reframe(cluster, place, "n2", "touch", f"{place}/busy")
        out, _ = process.communicate(timeout=300)
    finally:
        job.terminate()
        job.communicate(timeout=60)
    assert out.startswith(NOT_STARTED)
    assert not (place / "busy").exists()
    assert cluster.run("squeue", "-h").stdout == ""


def test_an_interrupted_command_leaves_no_job(cluster: SlurmCluster, place: Path) -> None:
    process = by_reframe(cluster, place, "n1", "sleep", "600")
    wait_until(lambda: "label-n1" in cluster.run("squeue", "-h", "-t", "R", "-o", "%j").stdout)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    wait_until(lambda: cluster.run("squeue", "-h").stdout == "", 60)


def test_a_node_that_dies_amid_a_command_is_not_one_that_was_not_given(cluster: SlurmCluster, place: Path) -> None:
    process = by_reframe(cluster, place, "n3", "sh", "-c", f"touch {place}/alive; sleep 600")
    wait_until((place / "alive").exists)
    cluster.kill("n3")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert NOT_STARTED not in out
    assert "the job ended amid the command" in out


def test_a_fleet_is_judged_and_nodes_that_are_down_are_listed(cluster: SlurmCluster, place: Path) -> None:
    """After the test above n3 is down: two nodes have a battery each by ReFrame, and are a pair by Slurm."""
    cluster.wait_for("n3", "down", "down*")
    words = ["fleet", "accept", "--engine", "reframe", "--results", f"{place}/r", "--at-once", "2", "--json"]
    words += ["--groups", "none", "--node-minutes", "15", "--", "--only", "14", "--others", "1"]
    settings = {"RFM_CONFIG_FILES": str(ROOT / "deploy" / "reframe" / "settings.py"), "HOME": str(place)}
    said = cluster.suite(*words, OMP_NUM_THREADS="1", **settings)
    assert said.stdout.startswith("{"), said.stderr
    end = json.loads(said.stdout)
    found = {row["node"]: row["verdict"] for row in end["rows"]}
    assert found == {"n1": "accepted", "n2": "accepted", "n3": "not run"}, said.stderr
    assert said.returncode == 0
    assert (place / "r" / "acceptance").is_dir()
