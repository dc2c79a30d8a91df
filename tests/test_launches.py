"""Launches in brief: what the whole record says, for the whole job, oldest first."""

from __future__ import annotations

from pathlib import Path

from reference_runs.layout import layout_text
from suite import store
from suite.figures import Quantity, StepTerm
from suite.launches import launches
from tests.test_step_tables import MEASURED, PREDICTED, record, scaled


def test_a_launch_in_brief_says_what_its_whole_record_says(tmp_path: Path) -> None:
    record(tmp_path, measured=scaled(2.0), started=2000.0)
    record(tmp_path, measured=MEASURED, started=1000.0)
    (first, second), bad = launches(tmp_path)
    assert not bad
    assert (first.started, second.started) == (1000.0, 2000.0)
    whole = store.read(Path(first.path))
    assert whole.end is not None
    begin, end = whole.begin, whole.end
    assert (first.id, first.run, first.node, first.status) == (begin.id, begin.run, begin.node, whole.status)
    assert (first.hardware, first.software, first.policy) == (begin.hardware, begin.software, begin.policy)
    assert (first.hashes, first.suite) == (begin.hashes, begin.software["suite"])
    assert (first.ranks, first.layout) == (2, layout_text(begin.job.layout))
    assert first.others_share == end.others_share
    own = {f.key: f.value for f in end.figures if f.rank is None}
    assert {(q, a, o, None, None, t): value for (q, a, o, t), value in first.measured.items()} == own
    assert first.predicted.of(Quantity.STEP_SECONDS, term="backward") == PREDICTED[StepTerm.BACKWARD]
    assert first.measured.of(Quantity.STEP_SECONDS, term="no such term") is None
