from __future__ import annotations

from pathlib import Path

from suite.paths import RECORDED
from suite.report.explore.measured import MOST_ROWS, measured


def test_launches_of_the_miniature_stand_beside_what_was_predicted_of_them() -> None:
    found = measured("bloom-176b", RECORDED)
    assert "bloom-mini" in found["words"]
    assert 1 <= len(found["launches"]) <= MOST_ROWS
    for row in found["launches"]:
        assert row["launches"] >= 1
        assert 0 < row["measured_seconds"] < 100
        assert row["measured_bytes"] > 1e6


def test_where_nothing_was_measured_nothing_is_shown(tmp_path: Path) -> None:
    assert measured("bloom-176b", tmp_path)["launches"] == []
    assert measured("korthikanti2022_table5:2", RECORDED)["launches"] == []
