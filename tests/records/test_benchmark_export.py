"""Launches as PyTorch's benchmark database, Bencher and asv take them: every number is the record's."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.metrics.figures import Quantity
from suite.paths import RECORDED
from suite.records.benchmark_export import bencher, full_commits, measured, pytorch_records, write_asv
from suite.records.index import launches
from suite.records.summary import LaunchSummary
from tests.support.timed_records import record, scaled


@pytest.fixture
def three(tmp_path: Path) -> list[LaunchSummary]:
    """Three launches of one execution: as measured, twice and three times as slow."""
    for number in (1, 2, 3):
        record(tmp_path, measured=scaled(float(number)), started=1000.0 * number)
    return list(launches(tmp_path)[0])


def test_pytorchs_database_gets_a_record_a_launch_and_figure_with_the_predicted_value_as_its_target(
    three: list[LaunchSummary],
) -> None:
    records = pytorch_records(measured(three))
    steps = [each for each in records if each["metric"]["name"] == "step_seconds"]
    assert [each["metric"]["benchmark_values"] for each in steps] == [
        [launch.measured.of(Quantity.STEP_SECONDS)] for launch in three
    ]
    assert {each["metric"]["target_value"] for each in steps} == {three[0].predicted.of(Quantity.STEP_SECONDS)}
    assert {each["metric"]["extra_info"]["unit"] for each in steps} == {"s"}
    for each in records:
        assert set(each) == {"benchmark", "model", "metric"}
        assert set(each["benchmark"]) == {"name", "mode", "dtype", "extra_info"}
        assert set(each["model"]) == {"name", "type", "origins", "backend"}
        assert set(each["metric"]) <= {"name", "benchmark_values", "target_value", "extra_info"}
    assert (records[0]["model"]["name"], records[0]["benchmark"]["mode"]) == (three[0].run, "training")


def test_bencher_gets_the_median_between_least_and_most(three: list[LaunchSummary]) -> None:
    (report,) = bencher(measured(three)).values()
    values = [float(launch.measured.of(Quantity.STEP_SECONDS) or 0) for launch in three]
    assert report["step_seconds"] == {
        "value": statistics.median(values),
        "lower_value": min(values),
        "upper_value": max(values),
    }
    (alone,) = bencher(measured(three[:1])).values()
    assert set(alone["step_seconds"]) == {"value"}


def test_bencher_gets_one_machine_and_the_newest_suite(three: list[LaunchSummary]) -> None:
    older = [msgspec.structs.replace(three[0], suite="0.1.0 (0123456789ab)"), *three[1:]]
    (report,) = bencher(measured(older)).values()
    assert report["step_seconds"]["lower_value"] == three[1].measured.of(Quantity.STEP_SECONDS)
    with pytest.raises(InputError, match="a report of Bencher is of one machine"):
        bencher(measured([msgspec.structs.replace(three[0], node="other"), *three[1:]]))


def test_asv_gets_a_file_a_machine_and_commit_with_all_samples(three: list[LaunchSummary], tmp_path: Path) -> None:
    commit = "0123456789ab"
    known = [msgspec.structs.replace(launch, suite=f"0.2.0 ({commit})") for launch in three]
    without = msgspec.structs.replace(three[0], id="x", suite="0.2.0 (no checkout)")
    out = tmp_path / "asv"
    assert write_asv(measured([*known, without]), out) == 1
    name = f"{three[0].run}.step_seconds"
    described = json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))
    assert (described["version"], described[name]["type"], described[name]["unit"]) == (2, "time", "seconds")
    machine = json.loads((out / three[0].node / "machine.json").read_text(encoding="utf-8"))
    assert (machine["machine"], machine["version"]) == (three[0].node, 1)
    (path,) = (out / three[0].node).glob(f"{commit[:8]}-*.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    assert (results["commit_hash"], results["version"]) == (commit, 2)
    row = dict(zip(results["result_columns"], results["results"][name], strict=True))
    values = [launch.measured.of(Quantity.STEP_SECONDS) for launch in three]
    assert (row["result"], row["samples"], row["stats_repeat"]) == ([statistics.median(values)], [values], [3])
    assert row["params"] == described[name]["params"]
    assert row["version"] == described[name]["version"]


def test_a_commit_of_this_checkout_gets_its_whole_hash_and_another_stays_as_it_is() -> None:
    assert full_commits(["0" * 12]) == {"0" * 12: ("0" * 12, None)}


@pytest.mark.parametrize("name", ["pytorch-benchmark", "bencher", "asv"])
def test_recorded_launches_are_exported_in_every_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["results", "export", "--format", name, "--out", str(out), "--results", str(RECORDED)]) == 0
    assert re.fullmatch(rf"wrote {re.escape(str(out))}: \d+ launches, \d+ figures\n", capsys.readouterr().out)
    written = json.loads((out / "benchmarks.json" if name == "asv" else out).read_text(encoding="utf-8"))
    assert len(written) > 10


def test_an_unwritable_place_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    asked = ["results", "export", "--format", "asv", "--out", str(tmp_path / "file"), "--results", str(RECORDED)]
    assert main(asked) == 2
    assert "--out" in capsys.readouterr().err
