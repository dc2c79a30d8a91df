"""The picture of the numbers of accelerators."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.__main__ import main
from suite.report.plots.plan import draw_numbers

pytest.importorskip("matplotlib", reason="NOT RUN: pictures need matplotlib")


def test_the_picture_is_drawn_by_cost_or_by_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hours, cost = tmp_path / "hours.png", tmp_path / "cost.png"
    asked = ["plan", "gpt2-124m", "--on", "a100-sxm-40gb", "--gpus", "8", "--fix", "tp1,pp1,cp1", "--top", "1"]
    assert main([*asked, "--picture", str(hours)]) == 0
    assert main([*asked, "--picture", str(cost), "--price", "2"]) == 0
    for path in (hours, cost):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000
    assert hours.read_bytes() != cost.read_bytes()
    assert "largest parts of the first one's step" in capsys.readouterr().out


def test_a_picture_without_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no number of accelerators fits"):
        draw_numbers(tmp_path / "none.png", "none", [], asked=8)
    assert main(["plan", "gpt2-124m", "--picture", str(tmp_path / "numbers.txt")]) == 2
