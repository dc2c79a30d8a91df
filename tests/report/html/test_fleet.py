"""The fleet's section of the page: every node on the map, a picture of each bad one, what outliers have in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fleet_records import write_records
from suite.fleet.battery_store import STORE
from suite.fleet.battery_table import ingest
from suite.records.index import launches
from suite.report.html import fleet
from suite.report.html.fleet import EMPTY, fleet_section
from suite.report.html.page import page

pytest.importorskip("duckdb")
NODES = 64
OLD = range(3, 64, 8)  # nodes with another driver, which are slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two racks; node 9 was rejected last."""
    place = tmp_path_factory.mktemp("fleet")
    write_records(place, nodes=NODES, batteries=2, seed=1)
    (place / "fleet" / "made-up" / "end.json").unlink()
    for number in range(NODES):
        for path in sorted((place / "acceptance").glob(f"*__{number:08x}__*.begin.json")):
            begin = json.loads(path.read_bytes())
            begin["software"]["driver"] = "550" if number in OLD else "570"
            path.write_text(json.dumps(begin))
            end_path = path.with_name(path.name.replace(".begin.", ".end."))
            end = json.loads(end_path.read_bytes())
            for finding in end["findings"]:
                if number in OLD and finding.get("measured") is not None:
                    finding["measured"] *= 0.9 if number % 16 == 3 else 0.88
            end_path.write_text(json.dumps(end))
    bad = sorted((place / "acceptance").glob("*__00000009__*.end.json"))[-1]
    end = json.loads(bad.read_bytes())
    end["findings"][0] |= {"verdict": "FAIL", "part": "GPU <3>", "evidence": "seen"}
    bad.write_text(json.dumps(end | {"decision": "rejected"}))
    rows = [{"node": f"n{n}", "verdict": "accepted", "switch": f"rack{n // 32}"} for n in range(NODES)]
    for row, end_path in zip(rows, sorted((place / "acceptance").glob("*.end.json")), strict=False):
        row["battery"] = end_path.name.removesuffix(".end.json")
    (place / "fleet" / "f").mkdir()
    early = {"schema": "1.0", "id": "f", "finished": 1.0, "rows": rows, "links": [], "groups": [], "drained": []}
    (place / "fleet" / "f" / "end.json").write_text(json.dumps(early))
    ingest(place, place / STORE)
    return place


def test_every_node_is_on_the_map_by_its_rack_and_kind(results: Path) -> None:
    shown = fleet_section(results)
    assert shown.nodes is not None
    (trace,) = shown.nodes.traces
    assert trace["y"] == ["rack0", "rack1"]
    assert [len(row) for row in trace["z"]] == [32, 32]
    assert trace["z"][0][9] == 3
    assert {number for number in range(32) if trace["z"][0][number] == 1} >= {3, 11, 19, 27}
    assert "GPU &lt;3&gt;" in trace["text"][0][9]
    assert [row[0] for row in shown.nodes.rows if row[2] == "rejected"] == ["n9"]


def test_bad_nodes_come_first_among_the_pictures_and_their_table_is_their_history(results: Path) -> None:
    shown = fleet_section(results)
    first = shown.histories[0]
    assert first.title == "n9, rack0: rejected, GPU <3>"
    assert [row[1] for row in first.rows] == ["rejected", "accepted", "accepted"]
    ratios = {trace["name"]: trace["y"] for trace in first.traces}
    assert all(len(values) == 2 for values in ratios.values())
    assert all(0.8 < value < 1.2 for values in ratios.values() for value in values)
    slow = next(plot for plot in shown.histories if plot.title.startswith("n3,"))
    assert all(0.8 < trace["y"][-1] < 0.95 for trace in slow.traces)


def test_outliers_are_distinguished_by_their_driver(results: Path) -> None:
    found = fleet_section(results).common
    assert [(one.attribute, one.value, one.standing_out) for one in found] == [("firmware", "driver 550", len(OLD))]


def test_pictures_are_limited_and_the_rest_counted(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fleet_section(results)
    monkeypatch.setattr(fleet, "MOST_HISTORIES", 2)
    shown = fleet_section(results)
    assert len(shown.histories) == 2
    assert shown.left_out == len(whole.histories) + whole.left_out - 2


def test_the_page_has_the_section_where_there_is_a_store_alone(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    with_store = page(results, launches(results)[0])
    assert 'id="fleet"' in with_store
    assert "driver 550" in with_store
    assert "&lt;3&gt;" in with_store
    assert fleet_section(tmp_path) == EMPTY
