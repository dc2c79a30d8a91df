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


def _of_commit(launches: list[LaunchSummary], commit: str) -> list[LaunchSummary]:
    return [msgspec.structs.replace(launch, suite=f"0.2.0 ({commit})") for launch in launches]


def test_asvs_directory_keeps_the_benchmarks_machines_and_results_that_are_there(
    three: list[LaunchSummary], tmp_path: Path
) -> None:
    out = tmp_path / "asv"
    node = out / three[0].node
    node.mkdir(parents=True)
    foreign = {"time_other": {"name": "time_other", "version": "1", "params": []}}
    (out / "benchmarks.json").write_text(json.dumps({"version": 2, **foreign}), encoding="utf-8")
    (node / "machine.json").write_text(json.dumps({"version": 1, "cpu": "by hand", "rack": 7}), encoding="utf-8")
    write_asv(measured(_of_commit(three, "0123456789ab")), out)
    other = [msgspec.structs.replace(each, precision="other") for each in _of_commit(three, "1123456789ab")]
    write_asv(measured(other), out)
    described = json.loads((out / "benchmarks.json").read_text(encoding="utf-8"))
    assert described["time_other"] == foreign["time_other"]
    (params,) = described[f"{three[0].run}.step_seconds"]["params"]
    assert len(params) == 2
    machine = json.loads((node / "machine.json").read_text(encoding="utf-8"))
    assert (machine["cpu"], machine["rack"], machine["machine"]) == ("by hand", 7, three[0].node)
    assert len(list(node.glob("?123456*.json"))) == 2


def test_results_that_are_there_are_overwritten_only_with_force(three: list[LaunchSummary], tmp_path: Path) -> None:
    figures = measured(_of_commit(three, "0123456789ab"))
    write_asv(figures, tmp_path / "asv")
    (results,) = (tmp_path / "asv" / three[0].node).glob("0123*.json")
    results.write_text("{}", encoding="utf-8")
    benchmarks = (tmp_path / "asv" / "benchmarks.json").read_bytes()
    with pytest.raises(InputError, match=r"results of the same machine, commit and environment are there.*--force"):
        write_asv(
            measured(_of_commit(three, "0123456789ab")) + measured(_of_commit(three, "1123456789ab")),
            results.parents[1],
        )
    assert results.read_text(encoding="utf-8") == "{}"
    assert (tmp_path / "asv" / "benchmarks.json").read_bytes() == benchmarks
    assert len(list(results.parent.iterdir())) == 2  # nothing of the other commit either
    write_asv(figures, tmp_path / "asv", force=True)
    assert json.loads(results.read_text(encoding="utf-8"))["version"] == 2


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"version": 1}'])
def test_a_file_that_is_not_asvs_is_not_joined(text: str, three: list[LaunchSummary], tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="--out"):
        write_asv(measured(_of_commit(three, "0123456789ab")), tmp_path, force=True)
    assert (tmp_path / "benchmarks.json").read_text(encoding="utf-8") == text


def test_another_benchmark_of_the_same_name_is_overwritten_only_with_force(
    three: list[LaunchSummary], tmp_path: Path
) -> None:
    name = f"{three[0].run}.step_seconds"
    there = {"version": 2, name: {"name": name, "version": "1", "params": []}}
    (tmp_path / "benchmarks.json").write_text(json.dumps(there), encoding="utf-8")
    figures = measured(_of_commit(three, "0123456789ab"))
    with pytest.raises(InputError, match="another benchmark has the same name"):
        write_asv(figures, tmp_path)
    write_asv(figures, tmp_path, force=True)
    assert json.loads((tmp_path / "benchmarks.json").read_text(encoding="utf-8"))[name]["version"] != "1"


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


def test_an_unwritable_place_is_a_line_before_records_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for place in (tmp_path / "file", tmp_path / "none" / "asv"):
        asked = ["results", "export", "--format", "asv", "--out", str(place), "--results", str(tmp_path / "empty")]
        assert main(asked) == 2  # 3: records were looked for, and there are none
        assert "--out" in capsys.readouterr().err
