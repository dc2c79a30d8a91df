"""Messages between the hosts of the ladder's last rung are timed, and predict its step."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest

from suite.calibration import calibrate
from suite.calibration.calibrate import CalibrationResult, between_hosts
from suite.job.events import Status
from suite.ladder import extra_profiles as timing
from suite.ladder.rung import RUNGS, RungSetting
from suite.launch import network_namespaces
from suite.launch.multi_host import HostAccess, Hosts
from suite.machine.reference_step import TimedReferenceStep, reference_step
from suite.machine.timing_tables import Subject
from suite.predict.simulation.step_correction import StepCorrection
from tests.support.ladder_machine import ladder_run
from tests.support.profiles import SPARSE, profile
from tests.support.profiles import timing as timing_of

ALL_REDUCE = Subject(operation="all_reduce", ranks=2)
OVER_HOSTS = RungSetting(hosts=2, data_parallel=2)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[CalibrationResult]:
    """Answers of calibrations between hosts; namespaces are permitted and none is made."""
    answers: list[CalibrationResult] = []
    monkeypatch.setattr("suite.launch.network_namespaces.why_not", lambda: None)
    monkeypatch.setattr(timing, "hosts_of", lambda _plan: nullcontext(Hosts(HostAccess.NAMESPACE, ("a", "b"))))
    monkeypatch.setattr(timing, "between_hosts", lambda *_args, **_options: answers.pop())
    return answers


def quiet(*_: object) -> None:
    pass


def test_only_what_runs_over_hosts_is_predicted_by_messages_between_them(timed: list[CalibrationResult]) -> None:
    other = msgspec.structs.replace(profile(), measured=5.0)
    timed.append(CalibrationResult(status=Status.OK, message="", profile=other))
    found = timing.with_messages(ladder_run("ddp-hosts"), quiet)
    assert found.profile_for(OVER_HOSTS) == (other, "stored, messages between hosts timed apart")
    assert found.profile_for(RungSetting(data_parallel=2)) == (profile(), "stored")


def test_a_ladder_without_that_rung_or_without_a_profile_times_no_messages(timed: list[CalibrationResult]) -> None:
    unknown = ladder_run("ddp-hosts", profile=None, profile_source="no profile")
    for one in (ladder_run(*(rung.name for rung in RUNGS if rung.name != "ddp-hosts")), unknown):
        assert timing.with_messages(one, quiet) == one
    assert unknown.profile_for(OVER_HOSTS) == (None, "no profile")
    assert timed == []


def test_messages_that_cannot_be_timed_leave_the_rung_unpredicted_and_say_why(timed: list[CalibrationResult]) -> None:
    timed.append(CalibrationResult(status=Status.CRASHED, message="rank 1: ConnectionError"))
    found = timing.with_messages(ladder_run("ddp-hosts"), quiet)
    why = "messages between hosts could not be timed: crashed: rank 1: ConnectionError"
    assert found.profile_for(OVER_HOSTS) == (None, why)
    assert found.profile_for(RungSetting()) == (profile(), "stored")


def test_an_interrupt_while_messages_are_timed_ends_the_command(timed: list[CalibrationResult]) -> None:
    timed.append(CalibrationResult(status=Status.INTERRUPTED, message="interrupted by the user"))
    with pytest.raises(KeyboardInterrupt):
        timing.with_messages(ladder_run("ddp-hosts"), quiet)


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_slow_link_between_namespaces_is_what_its_messages_are_timed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    if (why := network_namespaces.why_not()) is not None:
        pytest.skip(f"NOT RUN: {why}")
    monkeypatch.setattr(calibrate, "DENSITIES", {"cpu": SPARSE})
    bits = 8e8  # few enough for any processor: the link alone decides
    timed = TimedReferenceStep(step=reference_step(2, compiled=False, threads=1), timing=timing_of(3.0))
    here = msgspec.structs.replace(profile(), reference_steps=[timed])
    # the profile has too little to time the reference step by: so its operators take 2 s with messages of this machine
    monkeypatch.setattr(
        calibrate, "step_correction", lambda known, timed, **_: StepCorrection(timed, 2.0 * (known is here))
    )
    with network_namespaces.hosts(2) as names:
        network_namespaces.limit(names, bits)
        found = between_hosts(
            here, Hosts(HostAccess.NAMESPACE, tuple(names)), interface=network_namespaces.INTERFACE, on_event=quiet
        )
    assert found.status is Status.OK, found.message
    assert found.profile is not None
    assert found.profile.tables == profile().tables
    assert found.profile.reference_steps == [msgspec.structs.replace(timed, parts_seconds=2.0)]
    # a ring of two sends the payload once from each; headers of TCP and Ethernet take 4 % of a link
    line = found.profile.line(ALL_REDUCE)
    assert 0.7 * bits / 8 < line.sizes[-1] / line.timings[-1].seconds < bits / 8
    assert 0.7 * bits / 8 < line.units_per_second < 1.1 * bits / 8
