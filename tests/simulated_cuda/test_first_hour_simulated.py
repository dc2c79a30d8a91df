"""`first-hour` on a simulated GPU: every part of its short form runs to its end, and what goes wrong is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from suite.first_hour.measurements import measurements
from suite.first_hour.parts import parts
from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

FEW = "environment,rates,layout tp2"


def first_hour(results: Path, *options: str, devices: int = 1, **simulated: object) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the short form."""
    command = [sys.executable, "-m", "suite", "first-hour", "--short", "--device", "cuda", "--json"]
    environment = simulated_environment(devices, **simulated)  # type: ignore[arg-type]
    done = subprocess.run(
        [*command, "--results", str(results), *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_gpu_s_parts_run_are_kept_and_not_run_again(tmp_path: Path) -> None:
    code, entry = first_hour(tmp_path, "--parts", FEW, "--no-page")
    by_name = {part["part"]: part for part in entry["parts"]}
    assert code == 1  # losses of a simulated GPU mean nothing, and are seen to
    assert {part["status"] for part in by_name.values()} == {"done"}
    assert "H100" in by_name["environment"]["says"]
    assert any(line.startswith("first_loss") for line in by_name["layout tp2"]["differences"])
    assert first_hour(tmp_path, "--parts", FEW, "--no-page") == (code, entry)


@pytest.mark.ranks
@pytest.mark.timeout(600)
def test_a_device_without_room_fails_its_parts_alone(tmp_path: Path) -> None:
    code, entry = first_hour(tmp_path, "--parts", FEW, "--no-page", "--minutes", "9", memory=2 << 30)
    by_name = {part["part"]: part for part in entry["parts"]}
    assert code == 4
    assert by_name["environment"]["status"] == "done"
    assert by_name["rates"]["status"] == "failed"  # 4 GiB of tensors on a device of 2
    assert "OutOfMemoryError" in by_name["rates"]["says"]
    assert by_name["layout tp2"]["status"] == "failed"


MEASURED = {part.name: part for part in measurements(short=True)}


def ran_to_its_end(results: Path, wanted: set[str], devices: int) -> dict[str, dict[str, Any]]:
    """The results of these parts by name, once none failed: what an optimization lacks here it says, and is not run."""
    _, entry = first_hour(results, "--parts", ",".join(wanted), devices=devices)
    by_name: dict[str, dict[str, Any]] = {part["part"]: part for part in entry["parts"]}
    assert set(by_name) == wanted
    statuses = {name: part["status"] for name, part in by_name.items()}
    may_lack = {name for name in wanted if name in MEASURED and MEASURED[name].may_be_refused}
    expected = {name: statuses[name] if name in may_lack else "done" for name in wanted}
    assert statuses == expected
    assert {statuses[name] for name in may_lack} <= {"done", "not run"}
    return by_name


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_measurements_of_utilisation_run_to_their_end_and_name_their_peaks(tmp_path: Path) -> None:
    by_name = ran_to_its_end(tmp_path, {*MEASURED}, 1)
    for name, part in by_name.items():
        if part["status"] == "not run":
            assert "\n" not in part["says"]
            continue
        assert ("FP8 peak" in part["says"]) is ("fp8" in name)
        assert ("layers alone, of the data sheet's peak" in part["says"]) is ("slice" in name)
        assert ("mfu" in part["says"]) is not ("fp8" in name or "slice" in name)


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("devices", [1, 8])
def test_the_rest_in_its_short_form_runs_to_its_end(devices: int, tmp_path: Path) -> None:
    wanted = {part.name for part in parts("cuda", short=True)} - {"kernel tests"}  # nothing is computed here
    one_gpu = {*MEASURED} - ({"gpt2-124m"} if devices > 1 else set())  # whatever the node has
    ran_to_its_end(tmp_path, wanted - one_gpu, devices)


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(version("triton") < "3.7", reason="NOT RUN: Triton 3.6 interprets with older numpy alone")
def test_kernels_that_are_launched_compute_what_their_references_do(tmp_path: Path) -> None:
    code, entry = first_hour(tmp_path, "--parts", "kernel tests", "--no-page", values=1 << 30)
    assert code == 0, entry
