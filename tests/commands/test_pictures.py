"""A picture of a pipeline's passes is written from a record, and refused where there is none or could be none."""

from __future__ import annotations

import pytest

from suite.commands import reproduce
from tests.support.page_records import job_of, record
from tests.support.pipeline_times import pipelined_job

REFUSED = [
    ("--layout dp2 --schedule a.png", "--schedule: a schedule is of pipeline stages; got dp2"),
    ("--layout pp2 --schedule a.pdf", "--schedule: not a picture's name; got a.pdf"),
    ("--layout pp2 --schedule /nowhere/a.png", "--schedule: cannot write: No such file or directory"),
    ("--layout pp2 --schedule a.png --launches 2", "--schedule: a picture is of one launch"),
]


def test_a_picture_that_cannot_be_is_refused_before_anything_is_launched(not_refused, monkeypatch):
    monkeypatch.setattr(reproduce, "reproduce", None)
    assert not_refused("reproduce gpt2-mini --device cpu", REFUSED) == []


def test_a_recorded_pipeline_is_drawn_and_a_record_without_pipeline_refused(tmp_path, said, refused):
    pytest.importorskip("matplotlib", reason="NOT RUN: pictures need matplotlib")
    record(tmp_path, pipelined_job("pp2,1f1b"), 1)
    record(tmp_path, job_of("whole"), 2)
    picture = tmp_path / "passes.png"
    show = ["results", "show", "--results", str(tmp_path), "--json", "--schedule", str(picture)]
    assert said(*show, "00000001").count("\n") == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "a schedule is of pipeline stages; got" in refused(*show, "--force", "00000002")
    assert "the file exists, and is not overwritten" in refused(*show, "00000001")
