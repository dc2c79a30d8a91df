"""Panels of a pipeline: predicted passes, together as long as the measured ones, and the measured ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from suite.metrics.figures import MEASURED_PASSES, Figure, Quantity
from suite.predict.executed_run.pipeline_bubble import idle_share
from suite.predict.simulation.pipeline_schedule import Durations
from suite.report import schedule
from suite.report.schedule import Panel, launch_panels
from tests.support.page_records import job_of
from tests.support.pipeline_times import pipelined_job, times_of

PIPELINES = [
    "pp2,gpipe",
    "pp2,1f1b",
    "pp2,1f1b,interleave2",
    "pp2,zero-bubble",
    "pp2,zbv",
    "pp2,dualpipev",
    "pp2,pipedream",
]


def durations(chunks: int) -> Durations:
    """Milliseconds, other ones for each chunk."""
    forward = [1e-3 * (10 + chunk) for chunk in range(chunks)]
    return Durations(forward, [2.5 * seconds for seconds in forward], [seconds * 1.1 for seconds in forward])


def busy(panel: Panel) -> float:
    return sum(each.end - each.start for lane in panel.lanes for each in lane.passes)


@pytest.mark.parametrize("words", PIPELINES)
def test_the_prediction_takes_as_long_together_and_the_measured_passes_are_as_reported(words: str) -> None:
    job = pipelined_job(words)
    times = times_of(job, durations(2 * job.layout.virtual_stages))
    predicted, measured = launch_panels(job.workload, times)
    assert (predicted.side, measured.side) == ("predicted", "measured")
    assert predicted.has_unit
    assert predicted.axis == measured.axis == "ms since the step's first pass"
    assert busy(predicted) == pytest.approx(busy(measured), rel=1e-4)  # whole microseconds
    assert [lane.name for lane in predicted.lanes] == ["stage 0", "stage 1"]
    assert [lane.name for lane in measured.lanes] == ["rank 0", "rank 1"]
    for lane, of_rank, ideal in zip(measured.lanes, times, predicted.lanes, strict=True):
        assert [each.done for each in lane.passes] == [each.done for each in ideal.passes]
        assert [1e3 * each.start for each in lane.passes] == pytest.approx([each.start_us for each in of_rank.passes])
        assert all(before.end <= after.start + 1e-3 for before, after in itertools.pairwise(lane.passes))
    waits = idle_share([lane.passes for lane in measured.lanes])
    of_step = f": a stage waits {waits:.1%} of the time" if job.layout.flushes else ""
    assert measured.title.startswith(f"measured, step 7{of_step}; the schedule with the median passes, ")


def test_the_measured_panel_says_the_median_and_what_its_passes_would_wait_in_the_schedule() -> None:
    job = pipelined_job("pp2,1f1b")
    figures = [Figure(Quantity.BUBBLE_FRACTION, 0.25), Figure(Quantity.BUBBLE_FRACTION, 0.25, term=MEASURED_PASSES)]
    equal = Durations([0.01] * 2, [0.02] * 2, [0.01] * 2)
    title = launch_panels(job.workload, times_of(job, equal), figures)[1].title
    assert title.endswith("; median of the timed steps, 25.0%; the schedule with the median passes, 14.3%")  # 1 / 7


def test_without_measured_passes_the_prediction_stands_alone_in_shares_of_its_time() -> None:
    job = pipelined_job("pp2,1f1b")
    times = times_of(job, durations(2))
    for known in ([], [times[0], None]):
        (panel,) = launch_panels(job.workload, known)
        assert (panel.side, panel.axis) == ("predicted", "% of the pipeline's time")
        assert panel.end == pytest.approx(100)
    assert launch_panels(job_of("small").workload, [None, None]) == []


def test_every_rank_has_a_lane_and_of_very_many_one_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    job = pipelined_job("dp2,pp2,1f1b", ranks=4, samples=12)
    times = times_of(job, durations(2))
    (_, measured) = launch_panels(job.workload, times)
    assert [lane.name.partition(", ")[2] for lane in measured.lanes] == ["stage 0"] * 2 + ["stage 1"] * 2
    assert len({lane.name for lane in measured.lanes}) == 4
    monkeypatch.setattr(schedule, "MOST_LANES", 3)
    (_, measured) = launch_panels(job.workload, times)
    assert [lane.name.partition(", ")[2] for lane in measured.lanes] == ["stage 0", "stage 1"]


def test_of_very_many_passes_the_first_of_each_lane_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MOST_DRAWN", 10)
    job = pipelined_job("pp2,1f1b")
    panels: list[Any] = launch_panels(job.workload, times_of(job, durations(2)))
    assert [[len(lane.passes) for lane in panel.lanes] for panel in panels] == [[5, 5], [5, 5]]
