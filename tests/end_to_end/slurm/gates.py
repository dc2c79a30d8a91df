"""The files of deploy/slurm/ as Slurm itself runs them: prolog, epilog, health check, and the gate after a repair.

`accept` answers in its place where a test wants an exit code; the gate after a repair runs it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.paths import ROOT
from tests.support import slurm_cluster
from tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.timeout(3600)
SAID = "quick: rejected: rank 1, GPU 3 (0000:0a:00.0) bitwise replays FAIL " + "and so on " * 30
ON_GPUS = "--device cuda --devices 8 --only 0,12,13,14 --others 1"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts with a configuration, and a python that ends with the code in a node's file `verdict`."""
    if reason := slurm_cluster.why_not():
        pytest.skip(f"NOT RUN: {reason}")
    place = tmp_path_factory.mktemp("gates")
    for path in (ROOT / "deploy" / "slurm").glob("*.sh"):
        shutil.copy(path, place)
    fake = place / "python"
    fake.write_text(
        "#!/bin/sh\n"
        f'echo "$(hostname) PATH=$PATH $*" >> {place}/asked\n'
        f"state={place}/state.$(hostname)\n"
        'if [ -e "$state" ]; then\n'
        "    shift 2\n"
        f'    exec {sys.executable} -m tests.support.gpu_node "$(cat "$state")" "$@" {ON_GPUS}\n'
        "fi\n"
        f"code=$(cat {place}/verdict.$(hostname) 2>/dev/null || echo 0)\n"
        f"echo '{SAID}'\nexit $code\n"
    )
    fake.chmod(0o755)
    (place / "gates.conf").write_text(
        f"SUITE_ROOT={ROOT}\nSUITE_PYTHON={fake}\nSUITE_RESULTS={place}\nSUITE_SHARED_RESULTS={place}/shared\n"
        "SUITE_DEVICE=cpu\nSUITE_SECONDS=50\nSUITE_CHECKS=14\nSUITE_ATTEMPTS=2\nSUITE_PAUSE_SECONDS=1\n"
    )
    return place


@pytest.fixture(scope="module")
def cluster(gates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    lines = [f"Prolog={gates}/prolog.sh", f"Epilog={gates}/epilog.sh", f"HealthCheckProgram={gates}/health_check.sh"]
    lines += ["HealthCheckInterval=5", "HealthCheckNodeState=IDLE"]
    place = tmp_path_factory.mktemp("slurm")
    with (gates / "gates.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"SLURM_CONF={place}/slurm.conf\nexport SLURM_CONF\n")
    with slurm_cluster.slurm_cluster(place, 4, configuration="\n".join(lines)) as running:
        yield running


@pytest.fixture(autouse=True)
def released(cluster: SlurmCluster, gates: Path) -> Iterator[None]:
    """Every node is accepted and idle at the beginning of a test."""
    yield
    for path in (*gates.glob("verdict.*"), *gates.glob("state.*"), *gates.glob(".failed_once.*")):
        path.unlink()
    cluster.run("scancel", "--user=root")
    time.sleep(6)  # a health check that had begun
    for node in cluster.nodes:
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
        cluster.wait_for(node, "idle")


def answers(gates: Path, node: str, code: int) -> None:
    (gates / f"verdict.{node}").write_text(str(code))


def drained(cluster: SlurmCluster, node: str, seconds: float = 60) -> str:
    """The reason of a node once it is drained."""
    cluster.wait_for(node, "drained", "draining", "drained*", seconds=seconds)
    return cluster.reason(node)


def says_part(reason: str) -> bool:
    return reason.startswith("suite: quick: rejected: rank 1, GPU 3 (0000:0a:00.0)") and len(reason) <= 200


@pytest.mark.parametrize("code", [1, 4])
def test_the_health_check_drains_an_idle_node_with_the_part_as_reason(
    code: int, cluster: SlurmCluster, gates: Path
) -> None:
    answers(gates, "n2", code)
    assert says_part(drained(cluster, "n2"))
    assert [cluster.state(node) for node in ("n1", "n3", "n4")] == ["idle"] * 3


def test_what_cannot_be_decided_drains_nothing_and_the_job_runs(cluster: SlurmCluster, gates: Path) -> None:
    for node in cluster.nodes:
        answers(gates, node, 3)
    before = (gates / "asked").read_text().count("n1 ")
    said = cluster.run("srun", "-w", "n1", "-N1", "hostname")
    assert said.stdout == "n1\n", said.stderr
    time.sleep(10)
    assert {cluster.state(node) for node in cluster.nodes} <= {"idle", "completing"}
    assert {cluster.reason(node) for node in cluster.nodes} == {""}
    assert (gates / "asked").read_text().count("n1 ") >= before + 4  # two attempts before the job, two after it


@pytest.mark.parametrize("code", [1, 4])
def test_the_prolog_drains_with_the_part_as_reason_and_the_job_goes_elsewhere(
    code: int, cluster: SlurmCluster, gates: Path
) -> None:
    place = gates / f"ran{code}"
    for node in ("n1", "n2", "n3"):
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    answers(gates, "n4", code)
    script = gates / "job.sh"
    script.write_text(f"#!/bin/sh\nhostname > {place}\n")
    cluster.run("sbatch", "-N1", "--requeue", "-o", "/dev/null", str(script))
    assert says_part(drained(cluster, "n4"))
    assert not place.exists()
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    until = time.monotonic() + 200
    while not place.exists():
        cluster.run("sh", "-c", "for job in $(squeue -h -o %A); do scontrol release $job; done")
        assert time.monotonic() < until, cluster.run("squeue").stdout
        time.sleep(2)
    assert place.read_text() == "n1\n"


def test_the_real_accept_drains_for_a_missing_gpu_and_for_ecc_errors_alone(cluster: SlurmCluster, gates: Path) -> None:
    """In each state of tests/support/gpu_node.py. On the others jobs begin, although nothing is decided."""
    states = {"n1": "broken image", "n2": "missing GPU", "n3": "busy", "n4": "ECC"}
    for node, state in states.items():
        (gates / f"state.{node}").write_text(state)
    assert "GPUs: 7 of 8" in drained(cluster, "n2", seconds=240)
    assert "GPU 3 at 0000:1b:00.0" in drained(cluster, "n4", seconds=240)
    script = gates / "begun.sh"
    script.write_text(f"#!/bin/sh\ntouch {gates}/begun.$(hostname)\n")
    for node in ("n1", "n3"):  # sbatch waits for a long prolog
        cluster.run("sbatch", "-w", node, "-N1", "-o", "/dev/null", str(script))
    until = time.monotonic() + 240
    while not all((gates / f"begun.{node}").exists() for node in ("n1", "n3")):
        assert time.monotonic() < until, cluster.run("squeue").stdout
        time.sleep(2)
    assert [cluster.reason(node) for node in ("n1", "n3")] == ["", ""]


def test_the_epilog_drains_what_a_job_left_broken(cluster: SlurmCluster, gates: Path) -> None:
    process = cluster.popen("srun", "-w", "n3", "-N1", "sleep", "8")
    cluster.wait_for("n3", "allocated", "mixed")
    time.sleep(3)
    answers(gates, "n3", 1)
    process.communicate(timeout=120)
    assert says_part(drained(cluster, "n3"))


def test_beside_another_job_its_load_is_allowed_for_and_the_health_check_waits(
    cluster: SlurmCluster, gates: Path
) -> None:
    began = gates / "began"
    first = cluster.popen("srun", "-w", "n2", "-N1", "-n1", "--overlap", "sh", "-c", f"touch {began}; sleep 25")
    until = time.monotonic() + 60
    while not began.exists():  # its own prolog, which found nobody else, has ended
        assert time.monotonic() < until
        time.sleep(0.2)
    (gates / "asked").write_text("")
    said = cluster.run("srun", "-w", "n2", "-N1", "-n1", "hostname")
    assert said.stdout == "n2\n", said.stderr
    shared = [line for line in (gates / "asked").read_text().splitlines() if line.startswith("n2 ")]
    first.communicate(timeout=120)
    assert len(shared) >= 1
    assert all("--others 1" in line for line in shared), shared


def test_nothing_is_found_by_a_path_that_an_environment_gave(gates: Path) -> None:
    lines = (gates / "asked").read_text().splitlines()
    assert lines
    assert {line.split()[1] for line in lines} == {"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/bin"}


@pytest.mark.parametrize("repaired", [True, False])
def test_after_a_repair_the_gate_releases_an_accepted_node_alone(
    repaired: bool, cluster: SlurmCluster, gates: Path
) -> None:
    """Run the real `accept` over pairs: the link of the node is slow, or has been repaired."""
    text = (gates / "gates.conf").read_text().replace(f"SUITE_PYTHON={gates}/python", f"SUITE_PYTHON={sys.executable}")
    conf = gates / f"repair{repaired}.conf"
    conf.write_text(text + 'SUITE_ACCEPT="--only 14 --others 1"\nSUITE_FLEET="--at-once 2 --node-minutes 15"\n')
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=suite: link of the node: slow")
    cluster.limit_link("n2", None if repaired else 40e6)
    try:
        said = cluster.run(
            f"{gates}/post_repair.sh", "n2", "n3", "n4", timeout=3000, SUITE_CONF=str(conf), OMP_NUM_THREADS="1"
        )
    finally:
        cluster.limit_link("n2", None)
    assert said.returncode == (0 if repaired else 1), said.stdout + said.stderr
    assert "suite_" not in cluster.run("scontrol", "show", "reservation").stdout
    if repaired:
        assert (cluster.wait_for("n2", "idle"), cluster.reason("n2")) == ("idle", "")
    else:
        assert cluster.reason("n2").startswith("suite: link of the node rejected")
