"""Reports of ranks become evidence, whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from suite.acceptance import measurements
from suite.acceptance.evidence import LaunchPurpose
from suite.acceptance.phases import exact_phases
from suite.acceptance.presets import EFFORTS, EXACT_STEPS
from suite.acceptance.starts import STATED
from suite.calibration import calibrate
from suite.calibration.calibrate import planned_calibration
from suite.calibration.plan import TABLE
from suite.job.calibration_job import TimedTask
from suite.job.events import Status
from suite.job.probe_job import Probed, Soaked
from suite.launch.launcher import LaunchOutcome
from suite.machine.cpu_contention import Shared
from suite.metrics.comparison import Verdict
from suite.metrics.figures import Figure, Quantity
from tests.support.batteries import planned_battery
from tests.support.launches import launch_result
from tests.support.profiles import SPARSE, profile


def probed(monkeypatch, events, device="cpu", profile="quick"):
    """The evidence of a probe whose ranks report these events, and its job."""
    jobs = []

    def launch(job, _identity, _on_event):
        jobs.append(job)
        return LaunchOutcome(status=Status.OK, message="", ranks_at_fault=[], events=events, log_tail="")

    monkeypatch.setattr(measurements, "launch", launch)
    options = {"replays": False, "exchanges": False, "soak": True, "on_event": lambda *_: None}
    return measurements.probe_result(device, len(events), EFFORTS[profile], **options), jobs[0]


def test_a_probe_says_who_shared_the_processors(monkeypatch):
    shared = Shared(own=3.0, busy=8.0, steal=1.0, whole=20.0)
    events = [
        [Soaked(bytes=8, passes=2, wrong=0, first="", time=0.0), Probed(environment={}, time=1.0, shared=shared)]
        for _rank in range(2)
    ]
    evidence, _ = probed(monkeypatch, events)
    assert evidence.others_share == pytest.approx(0.1)
    assert evidence.steal_share == pytest.approx(0.05)
    assert [one.passes for one in evidence.soaks] == [2, 2]
    untold, _ = probed(monkeypatch, [[Probed(environment={}, time=1.0)]])
    assert (untold.others_share, untold.steal_share) == (None, None)


def test_how_much_a_full_soak_fills_is_left_to_the_ranks(monkeypatch):
    for device, name, asked in (("cpu", "quick", 256 * 2**20), ("cpu", "accept", 0), ("cuda", "quick", 0)):
        _, job = probed(monkeypatch, [[Probed(environment={}, time=1.0)]], device, name)
        assert job.soak_bytes == asked


def test_a_calibration_that_hangs_says_which_rank_and_where(monkeypatch, tmp_path):
    hung = LaunchOutcome(
        status=Status.HANG, message="rank 1 is late", ranks_at_fault=[1], events=[[], []], log_tail="rank 0:\nThread 1"
    )
    monkeypatch.setattr(calibrate, "launch", lambda *_arguments, **_options: hung)
    evidence, profile = measurements.micro_measurements("cpu", 2, EFFORTS["quick"], tmp_path, lambda *_: None)
    assert profile is None
    assert (evidence.status, evidence.ranks_at_fault, evidence.stacks) == (Status.HANG, [1], "rank 0:\nThread 1")


@pytest.mark.ranks
def test_rates_again_are_of_the_products_and_copies_of_all_ranks_and_store_no_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurements, "MOMENTS", 2)
    effort = msgspec.structs.replace(EFFORTS["quick"], densities={"cpu": SPARSE._replace(dtypes=("bf16",))})
    planned = planned_calibration(tmp_path, device="cpu", ranks=2, density=effort.densities["cpu"]).planned
    products = [entry.task for entry in planned if (entry.kind, entry.task.subject.operation) == (TABLE, "product")]
    asked = []
    again = measurements.rates_again("cpu", 2, effort, lambda rank, event: asked.append((rank, event)))
    assert again.status == Status.OK, again.message
    assert again.points == sum(len(task.sizes) for task in products if task.subject.ranks == 2) > 0
    for rates in (again.matrix, again.copy, again.triad):
        assert len(rates) == 2
        assert min(rates) > 0
    assert [(len(rank.copy), len(rank.triad)) for rank in again.moments] == [(2, 2)] * 2
    assert len({rank.turns for rank in again.moments}) == 1  # one after another
    for rank in again.moments:
        kernels = zip(msgspec.structs.astuple(rank.fastest), msgspec.structs.astuple(rank.middle), strict=True)
        assert all(0 < fastest <= middle for fastest, middle in kernels)
        assert rank.product > 0
    timed = {event.task for _, event in asked if isinstance(event, TimedTask)}
    assert len(timed) < len(planned) / 2  # nothing that only predictions need
    assert (again.profile, list(tmp_path.rglob("*"))) == ("", [])


def test_a_launch_is_predicted_from_the_machine_profile_where_it_has_the_step(tmp_path, monkeypatch):
    run = planned_battery(tmp_path, selected=frozenset({7}), miniatures=("gpt2-mini",), timed=())
    monkeypatch.setattr(measurements, "is_tokenised", lambda *_arguments: True)
    (unknown,) = exact_phases(run)
    stated = STATED["cpu"]
    steps = EXACT_STEPS + stated.counting_steps
    assert unknown.predicted_seconds == stated.launch + steps * stated.step
    monkeypatch.setattr(measurements, "predicted_times", lambda _plan, profile: [step(profile)])
    for run.profile in (0.25, 4.0):
        (known,) = exact_phases(run)
        assert known.predicted_seconds == stated.launch + steps * run.profile
    monkeypatch.setattr(measurements, "is_tokenised", lambda name, *_arguments: name != "gpt2-mini")
    (anew,) = exact_phases(run)
    assert anew.predicted_seconds == known.predicted_seconds + stated.tokenising


def step(seconds):
    return Figure(quantity=Quantity.STEP_SECONDS, value=seconds, why="")


def test_a_profile_without_the_operations_predicts_no_step(tmp_path):
    assert measurements.predicted_step_seconds("gpt2-mini", "cpu", 2, tmp_path, profile(), compiled=False) is None
    assert measurements.predicted_step_seconds("gpt2-mini", "cpu", 2, tmp_path, None, compiled=False) is None


def test_a_launch_that_failed_is_stored_so_that_it_can_be_read(monkeypatch):
    failed = launch_result(run="gpt2-mini", status=Status.CRASHED, verdict=Verdict.FAIL, message="killed")
    for name in ("plan", "corpus_for"):
        monkeypatch.setattr(measurements, name, lambda *_arguments: None)
    monkeypatch.setattr(measurements, "reproduce", lambda *_arguments, **_options: failed)
    monkeypatch.setattr(measurements.store, "read", lambda _path: SimpleNamespace(end=None, begin=None))
    usual = {"device": "cpu", "ranks": 2, "steps": 6, "compiled": False, "results": Path(), "profile": None}
    launch = measurements.miniature_launch("gpt2-mini", LaunchPurpose.EXACT, on_event=print, **usual)
    assert msgspec.json.decode(msgspec.json.encode(launch), type=type(launch)) == launch
