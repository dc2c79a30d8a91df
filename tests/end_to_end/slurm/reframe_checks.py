"""deploy/reframe/ under ReFrame's own runner on a real cluster: which nodes pass, fail, and are skipped, and why.

`accept` answers in its place; references come from a fleet by the suite's own command.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from suite.fleet.fleet_record import SCHEMA, FleetEnd, FleetRow, keep
from suite.paths import ROOT
from suite.records.battery import BatteryEnd, CheckFinding, CheckVerdict, Decision, encode
from tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.timeout(900)
REFRAME = shutil.which("reframe", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
CHECKS = ROOT / "deploy" / "reframe"
RATE = 1e11
FAKE = """#!/bin/sh
case "$*" in *"fleet references"*) exec {python} "$@" ;; esac
cat {place}/says.$(hostname)
"""


def battery(node: str, rate: float) -> BatteryEnd:
    finding = CheckFinding(check=3, subject="copy", verdict=CheckVerdict.PASS, measured=rate, compared_as="copy")
    return BatteryEnd(
        kind="battery",
        schema="8.0",
        id=f"20261126T000000Z__{node}__00000000",
        node=node,
        profile="quick",
        finished=0.0,
        seconds=1.0,
        decision=Decision.ACCEPTED,
        findings=[finding],
        hashes={"hardware": "h"},
    )


@pytest.fixture(scope="module")
def results(place: Path) -> Path:
    """Records of a fleet of eight good nodes whose rates spread by 1 %."""
    if REFRAME is None:
        pytest.skip("NOT RUN: needs ReFrame (pip install reframe-hpc)")
    values, rows = random.Random(1), []
    batteries = place / "r" / "acceptance"
    batteries.mkdir(parents=True)
    for number in range(8):
        made = battery(f"m{number}", RATE * values.gauss(1, 0.01))
        (batteries / f"{made.id}.end.json").write_bytes(encode(made))
        rows.append(FleetRow(node=f"m{number}", verdict="accepted", battery=made.id))
    (place / "r" / "fleet" / "f").mkdir(parents=True)
    keep(place / "r" / "fleet" / "f" / "end.json", FleetEnd(schema=SCHEMA, id="f", finished=0.0, rows=rows))
    (place / "python").write_text(FAKE.format(python=sys.executable, place=place))
    (place / "python").chmod(0o755)
    return place / "r"


def says(place: Path, node: str, code: int, rate: float, summary: str = "said") -> None:
    finding = {"check": 3, "compared_as": "copy", "measured": rate}
    entry = {"exit_code": code, "summary": summary, "findings": [finding]}
    (place / f"says.{node}").write_text(json.dumps(entry) + "\n")


@pytest.fixture(scope="module")
def judged(cluster: SlurmCluster, place: Path, results: Path) -> dict[str, dict[str, str]]:
    """ReFrame's report of the check of each node."""
    says(place, "n1", 0, 0.99 * RATE)
    says(place, "n2", 0, 0.5 * RATE)
    says(place, "n3", 1, RATE, "quick: rejected: rank 1, GPU 3 (0000:0a:00.0) bitwise replays FAIL")
    says(place, "n4", 3, RATE, "quick: not decidable: other processes")
    options = ["-C", str(CHECKS / "settings.py"), "-c", str(CHECKS / "battery.py"), "--distribute=idle", "-r"]
    options += ["--prefix", str(place / "reframe"), f"--report-file={place}/report.json"]
    settings = {"SUITE_ROOT": str(ROOT), "SUITE_PYTHON": str(place / "python"), "SUITE_SHARED_RESULTS": str(results)}
    said = cluster.run(str(REFRAME), *options, timeout=600, HOME=str(place), **settings)
    report = place / "report.json"
    assert report.exists(), said.stdout + said.stderr
    assert said.returncode == 1, said.stdout + said.stderr
    cases = json.loads(report.read_bytes())["runs"][0]["testcases"]
    return {case["display_name"].rpartition("nid=")[2]: case for case in cases}


def test_a_good_node_passes_within_its_reference(judged: dict[str, dict[str, str]]) -> None:
    assert judged["n1"]["result"] == "pass"


def test_a_figure_beyond_the_fleets_reference_fails(judged: dict[str, dict[str, str]]) -> None:
    assert (judged["n2"]["result"], judged["n2"]["fail_phase"]) == ("fail", "performance")
    assert "copy" in judged["n2"]["fail_reason"]


def test_a_rejected_node_fails_with_its_part(judged: dict[str, dict[str, str]]) -> None:
    assert (judged["n3"]["result"], judged["n3"]["fail_phase"]) == ("fail", "sanity")
    assert "GPU 3 (0000:0a:00.0)" in judged["n3"]["fail_reason"]


def test_what_is_not_decided_is_skipped_and_fails_nothing(judged: dict[str, dict[str, str]]) -> None:
    assert judged["n4"]["result"] == "skip"


def test_references_are_those_of_the_fleet(cluster: SlurmCluster, results: Path) -> None:
    said = cluster.run(sys.executable, "-m", "suite", "fleet", "references", "--results", str(results))
    known = json.loads(said.stdout)["figures"]["3 copy"]
    assert known["value"] == pytest.approx(RATE, rel=0.02)
    assert known["lower"] == pytest.approx(-0.07)  # the check's own: the nodes spread less
    assert known["upper"] is None
    assert msgspec.json.decode(said.stdout)["fleet"] == "f"
