from __future__ import annotations

import pytest

from suite.report.explore.pictures import memory_picture, schedule_panel, schedule_picture, time_picture
from suite.report.explore.view import state_of_run, view

STATE = state_of_run("bloom-176b")
A, B = view(STATE, STATE.layout), view(STATE, "dp8,tp8,pp6,zero1,recompute-full,micro2")


def test_bars_add_up_to_peaks_and_to_the_step() -> None:
    memory = memory_picture([A, B])
    assert len(memory["data"][0]["x"]) == 12 + 6
    peaks = [stage.peak / 2**30 for each in (A, B) for stage in each.stages]
    assert [sum(column) for column in zip(*(trace["y"] for trace in memory["data"]), strict=True)] == pytest.approx(
        peaks
    )
    time = time_picture([A, B])
    totals = [sum(column) for column in zip(*(trace["x"] for trace in time["data"]), strict=True)]
    assert totals == pytest.approx([sum(each.terms.values()) for each in (A, B)])


def test_a_pipeline_has_a_lane_for_each_stage_and_one_stage_has_none() -> None:
    panel = schedule_panel(A)
    assert panel is not None
    picture = schedule_picture(panel)
    assert {name for trace in picture["data"] for name in trace["y"]} == {f"stage {stage}" for stage in range(12)}
    assert schedule_panel(view(STATE, "dp48,tp8")) is None
