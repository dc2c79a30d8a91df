"""`quick` ends within its limit, by the count of what it starts and the seconds that each is stated to take."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from suite.acceptance import measurements, phases
from suite.acceptance.check_table import MATRIX, SOAK, THROTTLE
from suite.acceptance.context import LaunchesPhase
from suite.acceptance.presets import EFFORTS
from suite.acceptance.starts import STATED, starts, stated_launches
from suite.calibration.density import Scope
from suite.calibration.plan import plan
from suite.machine import devices
from suite.machine.devices import CudaDevice
from tests.support.batteries import planned_battery


@pytest.fixture
def asked(monkeypatch):
    """Questions that torch was asked on a node with 8 H100."""
    questions = []

    def answer():
        questions.append("devices")
        listed = tuple(
            CudaDevice(name="NVIDIA H100 80GB HBM3", uuid=f"u{n}", pci=f"0000:{n:02x}:00.0", memory_bytes=85 * 10**9)
            for n in range(8)
        )
        return devices.CudaState(driver_devices=8, driver_error=0, devices=listed)

    monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=lambda _name: None))
    monkeypatch.setattr(devices, "_answer_of_torch", answer)
    # a simulated step of each miniature, whose memory is not this file's subject
    monkeypatch.setattr("suite.reproduce.plan.check_device_memory", lambda *_arguments, **_options: None)
    devices._state.cache_clear()
    yield questions
    devices._state.cache_clear()


@pytest.fixture(autouse=True)
def tokenised(monkeypatch):
    monkeypatch.setattr(measurements, "is_tokenised", lambda *_arguments: True)


def launches_of(planned):
    return [phase for phase in planned if isinstance(phase, LaunchesPhase)]


def test_quick_is_stated_to_end_in_5_minutes_on_2_cores(tmp_path):
    planned = phases.planned(planned_battery(tmp_path, device="cpu", ranks=2))
    assert len(planned) == 7
    assert sum(phase.predicted_seconds for phase in planned) <= EFFORTS["quick"].limit_seconds == 300.0


def test_quick_is_stated_to_end_in_5_minutes_on_8_gpus(tmp_path, asked):
    """1 question, 1 calibration, 8 launches, 1 probe, no compilation; in seconds:

    environment     6 + 3
    calibration     58
    3 x exact       12 + 10 x 0.1
    5 x times       12 + 14 x 0.1
    probe           12 + 3 x 3 x 0.15 + 1 + 5 x 2 + 13 + 45 + 4
    """
    planned = phases.planned(planned_battery(tmp_path, device="cuda", ranks=8))
    launches = launches_of(planned)
    counted = Counter("launches" if phase in launches else phase.name for phase in planned)
    assert counted == {"environment": 1, "micro-measurements": 1, "launches": 4, "probe": 1}
    assert [phase.launches for phase in launches] == [5, 1, 1, 1]
    assert not any(phase.compiled for phase in launches)
    assert len(asked) == 1
    seconds = (6 + 3) + 58 + 3 * 13.0 + 5 * 13.4 + (12 + 1.35 + 1 + 10 + 13 + 45 + 4)
    assert sum(phase.predicted_seconds for phase in planned) == pytest.approx(seconds)
    assert seconds <= EFFORTS["quick"].limit_seconds == 300.0
    words = "environment, micro-measurements, probe, 8 launches of 4 miniatures, 0 of them compiled: about 259 s"
    assert starts(planned) == words


def test_the_calibrations_of_8_gpus_end_as_stated_by_the_repetitions_that_they_plan():
    """Repetitions, as much again between them, compilations, and a start."""
    seconds = {}
    for name in ("quick", "accept"):
        density = EFFORTS[name].densities["cuda"]
        tasks = [one.task for one in plan(Scope("cuda", 8, 96, density))]
        compiled = sum(len(task.sizes) for task in tasks if task.subject.compiled)
        assert compiled == {"quick": 0, "accept": 48}[name]
        seconds[name] = density.rounds * sum(len(task.sizes) * task.point_seconds for task in tasks)
        assert 2 * seconds[name] + compiled * 1.5 + STATED["cuda"].launch <= EFFORTS[name].micro_seconds["cuda"]
    assert seconds["quick"] < 0.45 * seconds["accept"]


def test_accept_compiles_what_it_times_and_nothing_else(tmp_path, asked):
    launches = launches_of(phases.planned(planned_battery(tmp_path, device="cuda", ranks=8, profile="accept")))
    compiled = [phase.name for phase in launches if phase.compiled]
    assert compiled == ["bloom-mini times", "mt-nlg-mini times", "gpt2-mini times", "gpt2-mini jitter"]
    assert len(launches) == 8
    on_cpu = launches_of(phases.planned(planned_battery(tmp_path, device="cpu", ranks=2, profile="accept")))
    assert not any(phase.compiled for phase in on_cpu)


def test_only_the_first_launch_of_a_miniature_is_compiled_anew_and_waits_for_its_corpus():
    stated = STATED["cuda"]

    def seconds(*, compiled=False, tokenised=True):
        return stated_launches("cuda", 3, 10, 0.5, compiled=compiled, tokenised=tokenised)

    assert seconds() == 3 * (stated.launch + 14 * 0.5)
    assert seconds(compiled=True) == seconds() + stated.compilation + 2 * stated.compiled_again
    assert seconds(tokenised=False) == seconds() + stated.tokenising


@pytest.mark.parametrize(
    ("checks", "names"),
    [
        ({SOAK}, ["environment", "probe"]),
        ({THROTTLE}, ["environment", "probe"]),  # whose soak is a load
        ({THROTTLE, MATRIX}, ["environment", "micro-measurements"]),
        ({MATRIX, SOAK}, ["environment", "micro-measurements", "probe"]),
    ],
)
def test_only_what_is_selected_is_stated_and_a_soak_where_counters_have_no_other_load(tmp_path, asked, checks, names):
    one = planned_battery(tmp_path, device="cuda", ranks=8, selected=frozenset(checks))
    assert [phase.name for phase in phases.planned(one)] == names
