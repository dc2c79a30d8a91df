"""sent_bytes against the bytes that real network interfaces counted: one network namespace a rank, joined by veth."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.miniature import miniature
from suite.execute.measure import clock
from suite.job.events import Event, Finished, events_path
from suite.job.options import Averaging, StepOptions
from suite.job.training_job import Job
from suite.launch import network_namespaces
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.predict.analytic.parameters import parameter_count
from suite.predict.executed_run.counts import SENT_TOLERANCE, rank_figures
from suite.reproduce.plan import Plan, corpus_for, job_for

STEPS = 12  # seven are timed: what the ends of their window cut through counts little
PORT = 29400


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Network namespaces with one interface each."""
    if reason := network_namespaces.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    with network_namespaces.hosts(request.param) as names:
        yield names


def _job(ranks: int, directory: Path, averaging: Averaging) -> Job:
    mini = miniature(reference_run("bloom-176b"), "cpu", ranks=ranks, steps=STEPS)
    # each rank has all state; PowerSGD's one bucket: with more, gloo's two threads can wait for each other
    whole = msgspec.structs.replace(mini.layout, zero_stage=0, bucket_bytes=4 * parameter_count(mini.architecture))
    plan = Plan(
        name=mini.name,
        architecture=mini.architecture,
        recipe=mini.recipe,
        layout=mini.layout if averaging is Averaging.EXACT else whole,
        device="cpu",
        compiled=False,
        steps=STEPS,
        seed=1,
        averaging=averaging,
        exact_steps=2 if averaging.exact_at_first else 0,
    )
    job = job_for(plan, corpus_for(plan, None), str(directory))
    return msgspec.structs.replace(job, threads=1, interface=network_namespaces.INTERFACE)


def test_what_tcp_sent_again_is_counted_off_as_full_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SNMP", tmp_path / "snmp")
    mtu = int(Path("/sys/class/net/lo/mtu").read_text(encoding="ascii"))
    counted = []
    for segments in (0, 10**12):
        text = f"Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs InErrs\nTcp: 9 {segments} 7\n"
        (tmp_path / "snmp").write_text(text, encoding="ascii")
        counted.append(clock.interface_sent_bytes("lo"))
    none, many = counted
    assert none is not None
    assert many is not None
    assert round((none - many) / 10**12) == mtu - 52


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("hosts", "averaging"),
    [
        pytest.param(2, Averaging.EXACT, marks=pytest.mark.rare),
        (2, Averaging.ONE_BIT),
        pytest.param(2, Averaging.POWER_SGD, marks=pytest.mark.rare),
        pytest.param(2, Averaging.FP16, marks=pytest.mark.rare),
        pytest.param(4, Averaging.EXACT, marks=pytest.mark.rare),
        pytest.param(4, Averaging.ONE_BIT, marks=pytest.mark.rare),
    ],
    indirect=["hosts"],
)
def test_predicted_sent_bytes_leave_the_interface(hosts: list[str], averaging: Averaging, tmp_path: Path) -> None:
    job = _job(len(hosts), tmp_path, averaging)
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job))
    processes = []
    for rank, host in enumerate(hosts):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": network_namespaces.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": network_namespaces.INTERFACE,
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
        for figure in rank_figures(job.workload, StepOptions(averaging=averaging))
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
