"""One reproduction: what is predicted when, and a record that ends whatever happens; no ranks are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from suite.job.events import Status
from suite.launch.launcher import LaunchOutcome
from suite.machine.cpu_speed import SpeedSample
from suite.machine.profile import Profile
from suite.machine.reference_step import TimedReferenceStep
from suite.metrics.figures import Figure, Quantity
from suite.records.record import Record
from suite.reproduce import reproduce as reproduction
from suite.reproduce import step_time
from suite.reproduce.plan import corpus_for
from suite.reproduce.reproduce import reproduce
from tests.support.launches import TEXT, small_plan
from tests.support.record_halves import stored_records
from tests.support.step_machine import Machine

PLAN = small_plan(ranks=1)


class Measured(Machine, frozen=True):
    """A machine that answers what shares of peaks and CPU speed need too, without reference steps."""

    reference_steps: tuple[TimedReferenceStep, ...] = ()

    def achievable_flop_per_second(self, *_: object, **__: object) -> float:
        return 1e9

    def cpu_speed(self, **_: object) -> SpeedSample | None:
        return None

    @property
    def fingerprint(self) -> Any:
        return type("Fingerprint", (), {"device": "cpu"})


PROFILE = cast("Profile", Measured(fixed=1e-6, per_unit=1e-12, host=1e-7))


def records(results: Path) -> list[Record]:
    found, errors = stored_records(results, PLAN.name)
    assert errors == []
    return found


def reproduced(results: Path) -> None:
    reproduce(PLAN, corpus_for(PLAN, TEXT), results, lambda *_: None, profile=PROFILE, profile_source="profile.json")


def test_a_prediction_that_fails_unexpectedly_ends_before_anything_is_launched(tmp_path, monkeypatch):
    launched: list[object] = []
    monkeypatch.setattr(reproduction, "launch", lambda *_, **__: launched.append(1))
    monkeypatch.setattr(step_time, "time_figures", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reproduced(tmp_path)
    assert launched == records(tmp_path) == []


@pytest.mark.parametrize(("raised", "status"), [(ValueError, "crashed"), (KeyboardInterrupt, "interrupted")])
def test_what_fails_behind_the_launch_still_ends_the_record(raised, status, tmp_path, monkeypatch):
    outcome = LaunchOutcome(status=Status.OK, message="", ranks_at_fault=[], events=[[]], log_tail="the log")
    monkeypatch.setattr(reproduction, "launch", lambda *_, **__: outcome)

    def fails(*_: object) -> list[Figure]:
        raise raised("broken")

    monkeypatch.setattr(reproduction, "counted_figures", fails)
    with pytest.raises(raised):
        reproduced(tmp_path)
    (record,) = records(tmp_path)
    assert record.end is not None
    assert (record.end.status, record.end.log_tail) == (status, "the log")
    assert record.end.message == f"the launcher ended: {raised.__name__}"


def test_a_launch_that_crashes_has_a_record_without_predicted_times(tmp_path, monkeypatch):
    outcome = LaunchOutcome(status=Status.CRASHED, message="rank 0", ranks_at_fault=[0], events=[[]], log_tail="")
    monkeypatch.setattr(reproduction, "launch", lambda *_, **__: outcome)
    reproduced(tmp_path)
    (record,) = records(tmp_path)
    assert record.end is not None
    assert (record.end.status, record.end.predicted, record.end.profile) == ("crashed", [], "profile.json")


def test_times_are_predicted_before_the_launch_and_recorded_behind_it(tmp_path, monkeypatch):
    done: list[str] = []
    figures = step_time.time_figures

    def predicted(*arguments: Any, **named: Any) -> list[Figure]:
        done.append("predicted")
        return figures(*arguments, **named)

    def launch(*_: object, **__: object) -> LaunchOutcome:
        done.append("launched")
        return LaunchOutcome(status=Status.OK, message="", ranks_at_fault=[], events=[[]], log_tail="")

    rate = Figure(quantity=Quantity.MODEL_FLOP_PER_SECOND, value=5e8)
    monkeypatch.setattr(step_time, "time_figures", predicted)
    monkeypatch.setattr(reproduction, "launch", launch)
    monkeypatch.setattr(reproduction, "counted_figures", lambda *_: [rate])
    monkeypatch.setattr(reproduction, "judged", lambda *_: [])
    monkeypatch.setattr(reproduction, "loss_fell", lambda *_: True)
    reproduced(tmp_path)
    assert done == ["predicted", "launched"]
    (record,) = records(tmp_path)
    assert record.end is not None
    assert Quantity.STEP_SECONDS in {figure.quantity for figure in record.end.predicted}
    assert {figure.quantity for figure in record.end.predicted} >= {Quantity.MFU, Quantity.HFU}
    shares = [figure.value for figure in record.end.figures if figure.quantity is Quantity.MFU]
    assert shares == [0.5]
