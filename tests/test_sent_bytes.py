"""sent_bytes against the bytes that real network interfaces counted: one network namespace a rank, joined by veth."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from suite.figures import Quantity
from suite.job import Event, Finished, Job, events_path
from suite.miniature import miniature
from suite.predict.prediction import SENT_TOLERANCE, rank_figures
from suite.reproduction import Plan, corpus_for, job_for

ROOT = Path(__file__).parent.parent
STEPS = 12  # seven are timed: what the ends of their window cut through counts little
PORT = 29400


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _namespaces_are_permitted() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"suite{secrets.token_hex(3)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    return subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Namespaces with one interface `wire` each, 10.77.0.1 and up, on a bridge in a namespace of its own."""
    if not _namespaces_are_permitted():
        pytest.skip("NOT RUN: network namespaces (ip netns) are not permitted here")
    mark = secrets.token_hex(3)
    switch, names = f"suite{mark}sw", [f"suite{mark}h{n}" for n in range(request.param)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            port = f"port{number}"
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "wire", "netns", name)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _job(ranks: int, directory: Path) -> Job:
    mini = miniature(reference_run("bloom-176b"), "cpu", ranks=ranks, steps=STEPS)
    plan = Plan(
        name=mini.name,
        architecture=mini.architecture,
        recipe=mini.recipe,
        layout=mini.layout,
        device="cpu",
        compiled=False,
        steps=STEPS,
        seed=1,
    )
    job = job_for(plan, corpus_for(plan, None), str(directory))
    return msgspec.structs.replace(job, threads=1, interface="wire")


@pytest.mark.parametrize("hosts", [2, pytest.param(4, marks=pytest.mark.rare)], indirect=True)
def test_predicted_sent_bytes_leave_the_interface(hosts: list[str], tmp_path: Path) -> None:
    job = _job(len(hosts), tmp_path)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    processes = []
    for rank, host in enumerate(hosts):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "wire",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "suite.execute", str(tmp_path / "job.json")]
        log = (tmp_path / f"rank{rank}.log").open("wb")
        processes.append(subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log))
        log.close()
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * len(hosts), (tmp_path / "rank0.log").read_text()
    predicted = {
        figure.rank: figure.value
        for figure in rank_figures(job.architecture, job.recipe, job.layout)
        if figure.quantity is Quantity.SENT_BYTES and figure.operation is None
    }
    for rank in range(len(hosts)):
        lines = Path(events_path(str(tmp_path), rank)).read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=Event) for line in lines]
        (finished,) = [event for event in events if isinstance(event, Finished)]
        assert finished.interface_sent_bytes is not None
        excess = finished.interface_sent_bytes / predicted[rank] - 1
        print(f"{len(hosts)} ranks, rank {rank}: interface sent {excess:+.3%} of the prediction")
        assert 0 < excess <= SENT_TOLERANCE  # headers only ever add
