"""`reproduce` over nodes of a real cluster: exact figures, bytes on its interfaces, dead nodes, sockets, signals."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from suite.job.events import Status
from suite.records import store
from tests.support.slurm_cluster import SlurmCluster

WIRE_TOLERANCE = 0.03
SLURMD = 6818


def reproduce(cluster: SlurmCluster, place: Path, *options: str) -> dict:
    said = cluster.suite("reproduce", "gpt2-mini", "--engine", "slurm", *options, "--json", "--results", f"{place}/r")
    assert said.returncode == 0, said.stdout + said.stderr
    return json.loads(said.stdout)


def row(entry: dict, quantity: str, term: str) -> dict:
    (found,) = [each for each in entry["figures"] if each["quantity"] == quantity and each["term"] == term]
    return found


def record_of(place: Path) -> store.Record:
    return store.read(sorted((place / "r" / "records" / "gpt2-mini").glob("*.begin.json"))[-1])


def test_exact_figures_are_equal_on_four_nodes_and_the_wires_agree(cluster: SlurmCluster, place: Path) -> None:
    entry = reproduce(cluster, place, "--nodes", "4", "--steps", "12")
    exact = [each for each in entry["figures"] if each["why"] == "exact"]
    assert len(exact) > 20
    assert {each["verdict"] for each in exact} == {"pass"}
    wires = row(entry, "sent_bytes", "between nodes")
    assert wires["right"] == pytest.approx(wires["left"], rel=WIRE_TOLERANCE)
    nodes = record_of(place).end.nodes
    assert [(node.name, node.first_rank, node.switch) for node in nodes] == [
        (f"n{number}", number - 1, f"top.s{(number + 1) // 2}") for number in (1, 2, 3, 4)
    ]


def test_payload_between_and_inside_nodes_is_counted_apart(cluster: SlurmCluster, place: Path) -> None:
    entry = reproduce(
        cluster, place, "--nodes", "2", "--ranks-per-node", "2", "--layout", "dp2,tp2", "--steps", "12", "--on", "n2,n3"
    )
    for place_ in ("between nodes", "inside nodes"):
        payload = row(entry, "payload_bytes", place_)
        assert payload["left"] == payload["right"] > 0
    wires = row(entry, "sent_bytes", "between nodes")
    assert wires["right"] == pytest.approx(wires["left"], rel=WIRE_TOLERANCE)
    assert [node.name for node in record_of(place).end.nodes] == ["n2", "n3"]


def running(cluster: SlurmCluster, place: Path, name: str, *options: str):
    """A long run over two nodes, once its ranks train, and its scratch directory."""
    words = ["reproduce", "gpt2-mini", "--engine", "slurm", "--nodes", "2", "--on", "n1,n2", "--steps", "5000"]
    process = cluster.popen(sys.executable, "-m", "suite", *words, "--json", "--results", f"{place}/{name}", *options)
    until = time.monotonic() + 300
    while not any(b'"step"' in path.read_bytes() for path in (place / name).glob("scratch/*/rank1*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.5)
    return process


def test_nothing_listens_but_on_the_interface_of_the_job(cluster: SlurmCluster, place: Path) -> None:
    process = running(cluster, place, "sockets")
    try:
        listening = {node: cluster.listening(node) for node in ("n1", "n2")}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    for number, node in enumerate(("n1", "n2"), start=2):
        others = [address for address in listening[node] if not address.endswith(f":{SLURMD}")]
        assert others, node
        assert all(address.startswith((f"10.77.0.{number}:", "127.0.0.1:")) for address in others), listening


def test_ctrl_c_ends_the_job_and_its_ranks(cluster: SlurmCluster, place: Path) -> None:
    process = running(cluster, place, "interrupted")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    until = time.monotonic() + 60
    while cluster.run("squeue", "--noheader").stdout.strip():
        assert time.monotonic() < until
        time.sleep(1)
    commands = cluster.on_node("n1", "ps", "-eo", "args").stdout
    assert "ps -eo args" in commands
    assert f"{place}/interrupted" not in commands


def test_a_node_that_dies_ends_the_run_in_bounded_time_and_is_named(cluster: SlurmCluster, place: Path) -> None:
    process = running(cluster, place, "dead")
    cluster.kill("n2")
    out, err = process.communicate(timeout=300)
    cluster.revive("n2")
    assert process.returncode == 4, out + err
    (begin,) = (place / "dead" / "records" / "gpt2-mini").glob("*.begin.json")
    end = store.read(begin).end
    assert end.status in (Status.CRASHED, Status.HANG)
    assert "n2" in end.message
    assert end.ranks_at_fault == [1]
    assert msgspec.json.decode(out.splitlines()[-1])["status"] == end.status
    cluster.wait_for("n2", "idle")
