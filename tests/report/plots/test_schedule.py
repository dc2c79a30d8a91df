"""The picture of a schedule has every pass of every stage, where its time is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.job.pipeline_passes import PassKind
from suite.report.plots.schedule import IDLE, draw_schedule
from suite.report.schedule import predicted_panel
from tests.support.strategies import BLOOM

Axes = pytest.importorskip("matplotlib.axes", reason="NOT RUN: pictures need matplotlib").Axes
MICRO_BATCHES = 6


def workload(words: str) -> Workload:
    recipe = msgspec.structs.replace(BLOOM.recipe, global_batch=MICRO_BATCHES)
    return Workload(BLOOM.architecture, recipe, parse_layout(f"{words},micro1", base=BLOOM.layout))


def test_the_picture_is_written_and_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    both = [predicted_panel(workload("pp3,1f1b"), "one"), predicted_panel(workload("pp3,zero-bubble"), "other")]
    draw_schedule(tmp_path / "one.png", both[:1])
    draw_schedule(tmp_path / "both.png", both, heading="both")
    one, two = (tmp_path / name for name in ("one.png", "both.png"))
    assert two.read_bytes().startswith(b"\x89PNG")
    assert two.stat().st_size > one.stat().st_size > 5_000
    with pytest.raises(InputError, match="cannot draw"):
        draw_schedule(tmp_path / "nowhere" / "one.png", both)


def test_every_pass_has_a_bar_where_its_time_is_paler_for_a_second_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[float, float, float, Any]] = []

    original = Axes.barh

    def barh(axes: Any, row: float, width: float, left: float = 0.0, color: Any = None, **more: Any) -> Any:
        drawn.append((row, left, left + width, color))
        return original(axes, row, width, left=left, color=color, **more)

    monkeypatch.setattr(Axes, "barh", barh)
    panel = predicted_panel(workload("pp2,1f1b,interleave2"), "one")
    draw_schedule(tmp_path / "one.png", [panel])
    bars = [bar for bar in drawn if bar[3] != IDLE]
    passes = [(row, each) for row, lane in enumerate(panel.lanes) for each in lane.passes]
    assert [bar[:2] for bar in bars] == [(row, each.start) for row, each in passes]
    assert [bar[2] for bar in bars] == pytest.approx([each.end for _, each in passes])
    assert [bar[2] for bar in drawn if bar[3] == IDLE] == [panel.end] * 2
    colours: dict[tuple[PassKind, bool], set[Any]] = {}
    for (_, each), bar in zip(passes, bars, strict=True):
        colours.setdefault((each.done.kind, each.done.chunk >= 2), set()).add(bar[3])
    assert {len(of_kind) for of_kind in colours.values()} == {1}
    for kind in (PassKind.FORWARD, PassKind.BACKWARD):
        (first,), (second,) = colours[kind, False], colours[kind, True]
        assert sum(second) > sum(first)
