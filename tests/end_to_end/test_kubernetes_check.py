"""deploy/kubernetes/check_node.sh as a pod runs it; `accept` and kubectl answer as a test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suite.paths import ROOT

SAID = "quick: rejected: rank 1, GPU 3 (0000:0a:00.0) bitwise replays FAIL"
TAINT = {"key": "llm-reference-runs/battery", "value": "rejected", "effect": "NoSchedule"}
PYTHON = """#!/bin/sh
case "$*" in *" accept "*) echo "$*" >>asked; echo "{said}"; exit $(cat verdict) ;; esac
cd {root} && exec {python} "$@"
"""
KUBECTL = """#!/bin/sh
case "$1" in get) cat {place}/node.json; exit ;; esac
if [ -e {place}/conflict ]; then rm {place}/conflict; echo "Conflict" >&2; exit 1; fi
for last; do :; done
echo "$*" | cut -d'{{' -f1 >>{place}/options
echo "$last" >>{place}/patches
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in (("python", PYTHON), ("kubectl", KUBECTL)):
        (tmp_path / name).write_text(text.format(root=ROOT, python=sys.executable, place=tmp_path, said=SAID))
        (tmp_path / name).chmod(0o755)
    node = {"kind": "Node", "metadata": {"resourceVersion": "7"}, "spec": {}, "status": {}}
    (tmp_path / "node.json").write_text(json.dumps(node))
    return tmp_path


def checked(place: Path, verdict: int, **settings: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the patches that kubectl was given."""
    (place / "verdict").write_text(str(verdict))
    variables = os.environ | {"PATH": f"{place}:/usr/bin:/bin", "NODE_NAME": "n7", "SUITE_ROOT": str(place)}
    variables |= {"SUITE_PYTHON": str(place / "python"), "SUITE_RESULTS": str(place), "SUITE_PAUSE_SECONDS": "0"}
    script = ROOT / "deploy" / "kubernetes" / "check_node.sh"
    ended = subprocess.run([script], env=variables | settings, capture_output=True, text=True, check=False, timeout=60)
    patches = place / "patches"
    return ended.returncode, [json.loads(line) for line in patches.read_text().splitlines()] if patches.exists() else []


def test_a_rejected_node_is_tainted_and_says_why_even_if_somebody_else_changed_it_meanwhile(place: Path) -> None:
    (place / "conflict").touch()
    code, (taints, condition) = checked(place, 1, SUITE_ACCEPT="--only 14")
    assert code == 1
    assert taints == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [TAINT]}}
    assert condition["status"]["conditions"][0]["message"] == SAID
    assert (place / "asked").read_text() == f"-m suite accept --results {place} --summary --only 14\n"
    assert (place / "options").read_text().split("\n")[:2] == [
        "patch node n7 --type=merge --patch ",
        "patch node n7 --subresource=status --type=strategic --patch ",
    ]


def test_what_is_not_decided_is_asked_again_and_taints_nothing(place: Path) -> None:
    code, (condition,) = checked(place, 3, SUITE_ATTEMPTS="2")
    assert code == 3
    assert condition["status"]["conditions"][0]["status"] == "Unknown"
    assert len((place / "asked").read_text().splitlines()) == 2


def test_bad_usage_is_asked_once_and_a_failed_execution_is_asked_again_before_it_taints(place: Path) -> None:
    code, (condition,) = checked(place, 2, SUITE_ATTEMPTS="3")
    assert (code, condition["status"]["conditions"][0]["reason"]) == (2, "NotJudged")
    assert len((place / "asked").read_text().splitlines()) == 1
    (place / "asked").unlink()
    (place / "patches").unlink()
    code, (taints, _) = checked(place, 4)
    assert code == 4
    assert taints["spec"]["taints"] == [TAINT | {"value": "execution-failed"}]
    assert len((place / "asked").read_text().splitlines()) == 2


@pytest.mark.parametrize("code", [1, 4])
def test_an_end_without_a_verdict_taints_nothing(place: Path, code: int) -> None:
    """Python ends so in an image that lacks a package: on every node of a sweep."""
    (place / "python").write_text(
        (place / "python").read_text().replace(f'echo "{SAID}"; exit', "echo lacks >&2; exit")
    )
    ended, (condition,) = checked(place, code, SUITE_ATTEMPTS="1")
    assert ended == 2
    assert condition["status"]["conditions"][0]["status"] == "Unknown"
    assert condition["status"]["conditions"][0]["message"] == "no verdict: lacks"


def test_an_accepted_node_is_released_after_a_repair_alone(place: Path) -> None:
    node = {"kind": "Node", "metadata": {"resourceVersion": "8"}, "spec": {"taints": [TAINT]}, "status": {}}
    (place / "node.json").write_text(json.dumps(node))
    assert checked(place, 0) == (0, [])
    code, (taints, condition) = checked(place, 0, SUITE_RELEASE="yes")
    assert code == 0
    assert taints["spec"]["taints"] == []
    assert condition["status"]["conditions"][0]["status"] == "False"
