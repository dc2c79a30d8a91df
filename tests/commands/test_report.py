"""Times of simulated GPUs are never shown beside measured ones, and never as such."""

from __future__ import annotations

from pathlib import Path

from suite.__main__ import main
from suite.commands.report import FILE, SIMULATED_HEAD
from suite.paths import ROOT
from suite.records.index import launches
from tests.support.timed_records import PREDICTED, record

SIMULATED = {"hardware": {"gpus": "NVIDIA H100 80GB HBM3 (simulated)"}, "job": {"device": "cuda"}}
MEASURED = {"hardware": {"gpus": "NVIDIA H100 80GB HBM3"}, "job": {"device": "cuda"}}


def written(results: Path, *kinds: dict[str, dict[str, str]]) -> int:
    for place, kind in enumerate(kinds):
        record(results, measured=PREDICTED, started=1000.0 + place, **{name: dict(to) for name, to in kind.items()})
    return main(["report", "--no-page", "--results", str(results)])


def test_simulated_launches_among_measured_ones_are_refused(tmp_path, capsys):
    assert written(tmp_path, MEASURED, SIMULATED, MEASURED) == 2
    assert "1 of 3 launches ran on simulated GPUs" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()


def test_simulated_launches_alone_are_said_to_be_so_and_measured_ones_are_not(tmp_path):
    on_a_cpu = SIMULATED | {"job": {"device": "cpu"}}  # of the same machine
    for number, (kinds, said) in enumerate((((SIMULATED, SIMULATED), True), ((MEASURED, on_a_cpu), False))):
        results = tmp_path / str(number)
        assert written(results, *kinds) == 0
        assert (SIMULATED_HEAD in (results / FILE).read_text()) is said


def test_no_recorded_launch_of_the_project_is_simulated():
    known, _ = launches(ROOT / "results" / "recorded")
    assert known
    assert not any(launch.simulated for launch in known)
