"""The scripts of deploy/slurm/ where something is amiss; Slurm's commands are functions of their gates.conf."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from suite.paths import ROOT

SAID = "quick: rejected: rank 1, GPU 3"
CONF = """
SUITE_ROOT={place}
SUITE_PYTHON={place}/python
SUITE_RESULTS={place}
SUITE_SHARED_RESULTS={place}/shared
SUITE_DEVICE=cpu
SUITE_SECONDS=20
SUITE_CHECKS=14
SUITE_ATTEMPTS=1
SUITE_PAUSE_SECONDS=0
sinfo() {{ echo idle; }}
scontrol() {{ echo "$*" >>{place}/scontrol; }}
logger() {{ :; }}
sleep() {{ :; }}
squeue() {{ if [ -s {place}/jobs ]; then cat {place}/jobs; fi; [ ! -e {place}/away ]; }}
"""
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]  # /bin/sh is one or the other
GATES = ("prolog", "epilog", "health_check")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for path in (ROOT / "deploy" / "slurm").glob("*.sh"):
        shutil.copy(path, tmp_path)
    (tmp_path / "gates.conf").write_text(CONF.format(place=tmp_path))
    answers(tmp_path, f'echo "{SAID}"; exit 1')
    return tmp_path


def answers(place: Path, text: str) -> None:
    (place / "python").write_text(f"#!/bin/sh\n{text}\n")
    (place / "python").chmod(0o755)


def ran(
    place: Path, gate: str, *arguments: str, shell: str = "sh", node: str = "n1"
) -> subprocess.CompletedProcess[str]:
    command = [shell, *(["--posix"] if shell == "bash" else []), str(place / f"{gate}.sh"), *arguments]
    environment = os.environ | {"SLURMD_NODENAME": node}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def drained(place: Path) -> bool:
    asked = place / "scontrol"
    return asked.exists() and "state=drain" in asked.read_text()


EVERY = [(shell, gate) for shell in SHELLS for gate in GATES]


def test_each_exit_code_has_its_own_effect(place: Path) -> None:
    """How often `accept` is asked, whether the node is drained, and what is said of it."""
    conf = place / "gates.conf"
    conf.write_text(conf.read_text().replace("ATTEMPTS=1", "ATTEMPTS=2"))
    wrong = []
    for shell, gate in EVERY:
        once = gate == "health_check"  # which repeats nothing: Slurm would end it
        for code, asked, drains, words in (
            (0, 1, False, ""),
            (1, 1, True, "drained"),
            (2, 1, False, "the node is not judged"),
            (3, 1 if once else 2, False, "not decided"),
            (4, 1 if once else 2, not once, "the next check decides" if once else "drained"),
            (130, 1 if once else 2, False, "not decided (exit code 130)"),
        ):
            answers(place, f'echo >>{place}/asked; echo "{SAID}"; exit {code}')
            said = ran(place, gate, shell=shell)
            found = len((place / "asked").read_text().splitlines()), drained(place), words in said.stderr
            if found != (asked, drains, True) or said.returncode != (gate == "prolog" and drains):
                wrong.append((shell, gate, code, found, said.returncode, said.stderr))
            for path in (place / "asked", place / "scontrol", *place.glob(".failed_once.*")):
                path.unlink(missing_ok=True)
    assert wrong == []


def test_an_execution_that_fails_in_two_health_checks_running_drains(place: Path) -> None:
    answers(place, f'echo "{SAID}"; exit 4')
    ran(place, "health_check")
    assert not drained(place)
    answers(place, f'echo "{SAID}"; exit 0')
    ran(place, "health_check")  # forgets it
    answers(place, f'echo "{SAID}"; exit 4')
    ran(place, "health_check")
    assert not drained(place)
    ran(place, "health_check")
    assert drained(place)


def test_nodes_with_one_directory_of_results_remember_their_own_failed_executions(place: Path) -> None:
    for node, code in (("n1", 4), ("n2", 0), ("n2", 4)):
        answers(place, f'echo "{SAID}"; exit {code}')
        ran(place, "health_check", node=node)
    assert not drained(place)
    ran(place, "health_check", node="n1")
    assert drained(place)


def test_the_gates_say_how_many_gpus_a_node_must_have(place: Path) -> None:
    answers(place, f'echo "$*" >>{place}/asked; echo "{SAID}"; exit 0')
    for number, options in (("8", "--device cuda --devices 8 --results"), ("", "--device cuda --results")):
        with (place / "gates.conf").open("a") as conf:
            conf.write(f"SUITE_DEVICE=cuda\nSUITE_DEVICES={number}\n")
        for gate in GATES:
            ran(place, gate)
        lines = (place / "asked").read_text().splitlines()
        assert all(options in line for line in lines), lines
        (place / "asked").unlink()


# State of a node (tests/support/gpu_node.py) -> whether it is drained, and what is said of it
NODES = {
    "healthy": (False, ""),
    "broken image": (False, "not decided (exit code 3): error: torch is installed, but does not import: ImportError"),
    "no image": (False, "the node is not judged: error: "),
    "missing GPU": (True, "suite: quick: rejected: environment FAIL: GPUs: 7 of 8"),
    "busy": (False, "not decided (exit code 3): quick: not decidable: environment INVALID: GPU 3"),
    "ECC": (True, "memory or board of rank 3 (GPU 3 at 0000:1b:00.0)"),
}


def test_the_real_accept_drains_for_a_missing_gpu_and_for_ecc_errors_and_for_no_image(place: Path) -> None:
    """The command itself, in the bare environment of a prolog."""
    with (place / "gates.conf").open("a") as conf:
        conf.write(
            f"SUITE_ROOT={ROOT}\nSUITE_SECONDS=55\nSUITE_DEVICE=cuda\nSUITE_DEVICES=8\nSUITE_CHECKS=0,12,13,14\n"
        )
    wrong = []
    for state, (drains, words) in NODES.items():
        answers(place, f'shift 2; exec {sys.executable} -m tests.support.gpu_node "{state}" "$@" --others 1')
        said = ran(place, "prolog")
        if (said.returncode == 1, drained(place), words in said.stderr) != (drains, drains, True):
            wrong.append((state, said.returncode, drained(place), said.stderr))
        (place / "scontrol").unlink(missing_ok=True)
    assert wrong == []


@pytest.mark.parametrize("amiss", ["no package", "no checkout", "no results", "no python", "no configuration"])
def test_what_is_missing_on_a_node_drains_nothing(place: Path, amiss: str) -> None:
    conf = place / "gates.conf"
    if amiss == "no package":
        answers(place, "echo 'No module named suite' >&2; exit 1")
    elif amiss == "no configuration":
        conf.unlink()
    else:
        name = {"no checkout": "SUITE_ROOT", "no results": "SUITE_RESULTS", "no python": "SUITE_PYTHON"}[amiss]
        conf.write_text(f"{conf.read_text()}{name}={place}/none\n")
    for shell, gate in EVERY:
        said = ran(place, gate, shell=shell)
        assert said.returncode == 0, said.stderr
        assert "suite: " in said.stderr
    assert not drained(place)


def test_a_health_check_drains_nothing_where_a_job_runs_or_began_meanwhile_or_slurm_does_not_say(place: Path) -> None:
    (place / "jobs").write_text("7\n")
    assert "a job runs here" in ran(place, "health_check").stderr
    (place / "jobs").unlink()
    (place / "away").touch()
    assert "a job runs here" in ran(place, "health_check").stderr
    (place / "away").unlink()
    answers(place, f'echo 7 >{place}/jobs; echo "{SAID}"; exit 1')
    assert "began meanwhile" in ran(place, "health_check").stderr
    assert not drained(place)


@pytest.mark.parametrize("verdict", ["accepted", "rejected", None])
def test_after_a_repair_this_fleet_alone_releases_the_node(place: Path, verdict: str | None) -> None:
    """`fleet accept` that says nothing releases nothing, whatever an earlier fleet said."""
    row = {"node": "n1", "verdict": verdict, "part": "link", "evidence": ""}
    (place / "said").write_text("" if verdict is None else json.dumps({"rows": [row]}))
    (place / "earlier").write_text(json.dumps({"rows": [row | {"verdict": "accepted"}]}))
    answers(
        place,
        f'case "$*" in *"fleet accept"*) cat {place}/said ;; *"fleet show"*) cat {place}/earlier ;; '
        '*) exec /usr/bin/env python3 "$@" ;; esac',
    )
    said = ran(place, "post_repair", "n1", "n2", "n3")
    assert said.returncode == (verdict != "accepted"), said.stderr
    assert drained(place) == (verdict != "accepted")
    asked = (place / "scontrol").read_text()
    assert "delete reservation=" in asked
    assert ("reason=suite: link rejected" in asked) == (verdict == "rejected")
