"""The page's picture of a pipeline: a bar for every pass, where its time is, and none of what has no pipeline."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from suite.job.training_job import Job
from suite.predict.simulation.pipeline_schedule import Durations
from suite.records.record import Record
from suite.records.store import read
from suite.report.html.schedule import schedule
from suite.report.schedule import launch_panels
from tests.support.page_records import job_of, record
from tests.support.pipeline_times import pipelined_job, times_of

DURATIONS = Durations([0.01, 0.012, 0.011, 0.03], [0.02, 0.02, 0.02, 0.05], [0.01, 0.01, 0.01, 0.02])


def recorded(results: Path, job: Job, *, measured: bool) -> Record:
    end = record(results, job, 1)
    whole = read(end.with_name(end.name.replace(".end.", ".begin.")))
    assert whole.end is not None
    if not measured:
        return whole
    times = times_of(job, DURATIONS)
    ranks = [msgspec.structs.replace(r, pipeline_times=t) for r, t in zip(whole.end.ranks, times, strict=True)]
    return msgspec.structs.replace(whole, end=msgspec.structs.replace(whole.end, ranks=ranks))


def test_every_pass_is_a_bar_of_its_kind_and_chunk(tmp_path: Path) -> None:
    job = pipelined_job("pp2,1f1b,interleave2")
    plot = schedule("key", recorded(tmp_path, job, measured=True))
    assert plot is not None
    waits, *bars = plot.traces
    second = ", chunk 2 of its rank"
    assert [trace["name"] for trace in bars] == ["forward", f"forward{second}", "backward", f"backward{second}"]
    drawn = {
        (side, lane, start, length, micro_batch)
        for trace in bars
        for side, lane, start, length, micro_batch in zip(
            *trace["y"], trace["base"], trace["x"], trace["text"], strict=True
        )
    }
    panels = launch_panels(job.workload, times_of(job, DURATIONS))
    wanted = {
        (panel.side, lane.name, float(f"{start:.5g}"), float(f"{end - start:.5g}"), str(done.micro_batch))
        for panel in panels
        for lane in panel.lanes
        for done, start, end in lane.passes
    }
    assert drawn == wanted
    assert waits["x"] == [float(f"{panel.end:.5g}") for panel in panels for _ in panel.lanes]
    assert [row[:3] for row in plot.rows[:4]] == [
        [0, "forward", 0],
        [0, "forward", 2],
        [0, "backward", 2],
        [0, "backward", 0],
    ]
    assert [float(str(row[3])) for row in plot.rows[:4]] == pytest.approx([10, 11, 20, 20])
    assert "Measured, step 7: a stage waits" in plot.says


def test_an_earlier_record_of_a_pipeline_has_the_prediction_and_one_stage_has_no_picture(tmp_path: Path) -> None:
    plot = schedule("key", recorded(tmp_path, pipelined_job("pp2,zero-bubble"), measured=False))
    assert plot is not None
    assert {side for trace in plot.traces for side in trace["y"][0]} == {"predicted"}
    assert plot.rows == []
    assert schedule("key", recorded(tmp_path, job_of("other"), measured=False)) is None
