"""Launches whose terms take longer than predicted, by their records."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from suite.metrics.figures import Quantity, StepTerm
from suite.paths import ROOT
from suite.records.query import record_path
from suite.records.record import End, Record
from suite.records.store import read
from suite.reproduce.diagnosed_launch import TOLERANCE, diagnosed_launch

RECORD = "results/recorded/records/bloom-mini/20261125T142506Z__daa4ee97__2f72c428.end.json"


@pytest.fixture
def record() -> Record:
    return read(record_path(Path(), str(ROOT / RECORD)))


def longer(record: Record, term: StepTerm, seconds: float, *, rank: int | None = None) -> Record:
    """The record with this term longer, of one rank or of all, and timed steps as much longer."""
    end = record.end
    assert end is not None

    def figures(end: End) -> list[object]:
        changed = []
        for figure in end.figures:
            is_term = figure.quantity is Quantity.STEP_SECONDS and figure.term == term
            if is_term and (rank is None or figure.rank in (rank, None)):
                figure = msgspec.structs.replace(figure, value=figure.value + seconds)
            changed.append(figure)
        return changed

    ranks = [
        msgspec.structs.replace(
            each, steps=[msgspec.structs.replace(step, seconds=step.seconds + seconds) for step in each.steps]
        )
        for each in end.ranks
    ]
    return msgspec.structs.replace(record, end=msgspec.structs.replace(end, figures=figures(end), ranks=ranks))


def test_a_launch_as_long_as_predicted_has_no_cause(record: Record) -> None:
    found = diagnosed_launch(record)
    assert (found.outcome, found.causes) == ("as expected", [])
    assert found.predicted_seconds == pytest.approx(0.3408, abs=1e-4)
    assert found.interval == pytest.approx((0.3408 * (1 - TOLERANCE), 0.3408 * (1 + TOLERANCE)), abs=1e-3)
    assert (found.measured[0].name, found.measured[0].predicted_seconds) == (
        "backward",
        pytest.approx(0.1709, abs=1e-4),
    )


@pytest.mark.parametrize("term", [StepTerm.DATA_LOADING, StepTerm.EXPOSED_COMMUNICATION, StepTerm.OPTIMIZER])
def test_the_term_that_takes_longer_is_named_first(record: Record, term: StepTerm) -> None:
    found = diagnosed_launch(longer(record, term, 0.3))
    assert found.outcome == "slow"
    assert found.causes[0].words.startswith(f"{term} takes 0.3")
    assert found.causes[0].seconds == pytest.approx(0.3, abs=0.02)


def test_a_rank_that_computes_longer_is_named(record: Record) -> None:
    found = diagnosed_launch(longer(record, StepTerm.BACKWARD, 0.3, rank=1))
    assert any(cause.words.startswith("rank 1 computes 0.1") for cause in found.causes)


def test_other_load_is_a_cause(record: Record) -> None:
    slow = longer(record, StepTerm.OVERHEAD, 0.3)
    assert slow.end is not None
    shared = msgspec.structs.replace(slow, end=msgspec.structs.replace(slow.end, others_share=0.4))
    assert any("other processes took 40%" in cause.words for cause in diagnosed_launch(shared).causes)


def test_a_launch_that_has_not_ended_or_timed_nothing_is_refused(record: Record) -> None:
    with pytest.raises(InputError, match="the launch has not ended"):
        diagnosed_launch(msgspec.structs.replace(record, end=None))
    assert record.end is not None
    with pytest.raises(InputError, match="no step was timed"):
        diagnosed_launch(msgspec.structs.replace(record, end=msgspec.structs.replace(record.end, ranks=[])))
