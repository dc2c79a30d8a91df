"""Results as frames: a row says what its record says, gaps are missing values, nothing is counted twice."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy
import pandas
import pytest

from suite.metrics.figures import Quantity
from suite.paths import ROOT
from suite.records import frame
from suite.records.index import launches as indexed
from suite.records.store import read
from tests.support.timed_records import MEASURED, PREDICTED, record, scaled


@pytest.fixture
def results(tmp_path: Path) -> Path:
    record(tmp_path, measured=MEASURED, started=1000.25)
    record(tmp_path, measured=scaled(2.0), started=2000.0)
    return tmp_path


def test_a_launch_is_a_row_with_units_in_its_columns(results: Path) -> None:
    rows = frame.launches(results)
    first, second = indexed(results)[0]
    assert [*rows.id] == [first.id, second.id]
    assert rows.started_utc[0] == pandas.Timestamp(1000.25, unit="s", tz="UTC")
    assert [*rows.step_seconds] == [one.measured.of(Quantity.STEP_SECONDS) for one in (first, second)]
    assert [*rows.predicted_step_seconds] == [one.predicted.of(Quantity.STEP_SECONDS) for one in (first, second)]
    assert [*rows.layout] == [first.layout, second.layout]
    assert rows.bubble_fraction.isna().all()
    assert rows.attrs["left_out"] == []


def test_summaries_that_are_at_hand_are_not_read_again(results: Path) -> None:
    summaries = indexed(results)[0][1:]
    assert [*frame.launches(summaries).id] == [summaries[0].id]


def test_a_figure_is_a_row_with_both_sides(results: Path) -> None:
    rows = frame.figures(results)
    summaries = indexed(results)[0]
    for launch in summaries:
        own = rows[rows.launch == launch.id]
        assert own[["quantity", "axis", "operation", "term"]].duplicated().sum() == 0
        for side in ("predicted", "measured"):
            known = {
                tuple(None if part is numpy.nan or part != part else part for part in key): value
                for *key, value in own[own[side].notna()][["quantity", "axis", "operation", "term", side]].itertuples(
                    index=False
                )
            }
            assert known == dict(getattr(launch, side).items())
    steps = rows[(rows.quantity == "step_seconds") & (rows.term == "backward")]
    assert {*steps.unit} == {"s"}
    assert [*steps.predicted] == [PREDICTED["backward"]] * 2
    assert rows["rank"].isna().all()
    for ranks in (False, True):
        assert {*frame.figures(results, quantities=["step_seconds"], ranks=ranks).quantity} == {"step_seconds"}


def test_figures_of_ranks_are_those_of_the_whole_record(results: Path) -> None:
    rows = frame.figures(results, ranks=True)
    for launch in indexed(results)[0]:
        end = read(Path(launch.path)).end
        assert end is not None
        own = rows[rows.launch == launch.id]
        assert own.measured.notna().sum() == len({figure.key for figure in end.figures})
        assert own.measured.sum() == pytest.approx(sum(figure.value for figure in end.figures))


def test_launches_with_other_figures_stand_in_their_order(results: Path) -> None:
    earlier = ROOT / "tests" / "records" / "earlier_records" / "records"
    shutil.copytree(earlier, results / "records", dirs_exist_ok=True)
    rows = frame.figures(results)
    ids = [launch.id for launch in indexed(results)[0]]
    assert [*dict.fromkeys(rows.launch)] == ids
    counts = rows.groupby("launch", observed=True).size()
    for launch in indexed(results)[0]:
        assert counts[launch.id] == len({*launch.measured.indices, *launch.predicted.indices})


def test_what_is_damaged_is_left_out_and_named(results: Path) -> None:
    path = Path(indexed(results)[0][0].path)
    path.write_bytes(b"{")
    rows = frame.launches(results)
    assert len(rows) == 1
    assert str(path) in rows.attrs["left_out"][0]


@pytest.mark.parametrize("name", ["launches", "figures", "kernel_runs", "batteries", "battery_findings", "fleet"])
def test_an_empty_directory_has_columns_and_no_rows(name: str, tmp_path: Path) -> None:
    rows = getattr(frame, name)(tmp_path)
    assert len(rows) == 0
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    (described,) = (line.split("|")[3] for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    documented = [word for word in re.findall(r"`([^`]*)`", described) if word != "ranks=True"]
    columns = [*rows.columns]
    assert [column for column in columns if column in documented] == documented
    assert columns == documented or name == "launches"  # whose facts are more


def test_stored_kernel_runs_have_a_row_a_case() -> None:
    rows = frame.kernel_runs(ROOT / "results")
    assert {"kernel", "plain", "eager"} & {*rows.form}
    assert (rows.seconds > 0).all()
    assert str(rows.time_utc.dt.tz) == "UTC"


def battery(results: Path, number: int, node: str, decision: str | None) -> None:
    directory = results / "acceptance"
    directory.mkdir(exist_ok=True)
    facts = {"id": f"{number}__{node}", "node": node, "profile": "quick", "schema": "3.0", "started": 1000.0 * number}
    hardware = {"cpu": "EPYC", "cores": "2", "gpus": "none"}
    begin = facts | {"options": {"device": "cpu", "ranks": "2"}, "hardware": hardware, "software": {"suite": "0.1"}}
    (directory / f"{number}__{node}.begin.json").write_text(json.dumps(begin))
    if decision is not None:
        findings = [{"check": 4, "subject": "bloom", "verdict": verdict, "ratio": 1.1} for verdict in ("PASS", "FAIL")]
        end = {"decision": decision, "finished": 1.0, "seconds": 60.0, "findings": findings}
        (directory / f"{number}__{node}.end.json").write_text(json.dumps(end))


def test_a_battery_is_a_row_of_any_version_ended_or_not(tmp_path: Path) -> None:
    battery(tmp_path, 1, "aaaa", "rejected")
    battery(tmp_path, 2, "aaaa", None)
    rows = frame.batteries(tmp_path)
    assert [*rows.id] == ["1__aaaa", "2__aaaa"]
    assert rows.decision[0] == "rejected"
    assert pandas.isna(rows.decision[1])
    assert (rows.fail[0], rows.seconds[0], rows.ranks[0]) == (1, 60.0, "2")
    assert [*frame.battery_findings(tmp_path).verdict] == ["PASS", "FAIL"]


def test_batteries_whose_file_cannot_be_read_are_named_and_the_others_are_rows(tmp_path: Path) -> None:
    battery(tmp_path, 1, "aaaa", "accepted")
    lost = tmp_path / "acceptance" / "2__aaaa.begin.json"
    lost.symlink_to("gone")
    rows = frame.batteries(tmp_path)
    assert [*rows.id] == ["1__aaaa"]
    (words,) = rows.attrs["left_out"]
    assert words.startswith(f"{lost}: ")


def test_the_fleet_has_a_row_a_node_with_its_newest_battery(results: Path) -> None:
    battery(results, 1, "aaaa", "rejected")
    battery(results, 2, "aaaa", "accepted")
    rows = frame.fleet(results).set_index("node")
    node = indexed(results)[0][0].node
    assert {*rows.index} == {"aaaa", node}
    assert (rows.batteries["aaaa"], rows.decision["aaaa"], rows.launches["aaaa"]) == (2, "accepted", 0)
    assert (rows.batteries[node], rows.launches[node], rows.ok_launches[node]) == (0, 2, 2)
