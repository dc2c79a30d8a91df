"""The limit of a battery holds: probe and re-runs are counted before anything optional begins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from suite.acceptance import battery, context, measurements
from suite.acceptance import phases as planned_phases
from suite.acceptance.gpu_evidence import Health
from suite.acceptance.node_state import HostReading
from suite.acceptance.past_batteries import History
from suite.acceptance.presets import EFFORTS
from suite.acceptance.repetition import Rerun, affordable, launches_that_fit
from suite.acceptance.starts import STATED
from suite.machine import devices
from tests.support.node import LAUNCH_SECONDS, MICRO_SECONDS, accept


@pytest.mark.parametrize("profile", ["accept", "soak"])
def test_looks_and_re_runs_leave_the_probe_its_time(tmp_path, capsys, node, profile):
    for name in EFFORTS[profile].timed:
        node.slow[name] = [0.8, 1.8]  # no look decides
    node.stragglers = {"gpt2-mini"}
    _, _, found = accept(capsys, tmp_path, "--profile", profile, "--only", "7,8,10,11,14,15")
    assert node.now <= EFFORTS[profile].limit_seconds
    assert node.asked.count("bloom-mini") > 6  # with further looks, where there is time for them
    assert found[11, "gpt2-mini"]["verdict"] == "FAIL"
    assert "confirmed by a re-run" in found[11, "gpt2-mini"]["evidence"]


@pytest.mark.parametrize(
    ("slow", "verdict", "words"),
    [
        ([0.85, 1.25, 0.95, 1.2, 1.0, 1.0, 1.0, 1.0], "PASS", "8 launches"),
        ([1.3, 1.9, 1.5, 1.8, 1.35, 1.7, 1.7, 1.7], "INCONCLUSIVE", "no time was left for a re-run"),
    ],
)
def test_a_further_look_needs_no_time_for_a_re_run_of_its_own(
    tmp_path, capsys, node, monkeypatch, slow, verdict, words
):
    node.slow = {"bloom-mini": slow}
    end = MICRO_SECONDS + len(slow) * LAUNCH_SECONDS
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: end - node.now))
    found = accept(capsys, tmp_path, "--only", "8")[2][8, "bloom-mini"]
    assert node.asked.count("bloom-mini") == len(slow)
    assert found["verdict"] == verdict
    assert words in found["evidence"]


def test_a_short_re_run_of_one_miniature_leaves_the_full_one_of_another_its_looks(tmp_path, capsys, node, monkeypatch):
    node.slow = {"bloom-mini": [1.6], "opt-mini": [1.6]}
    first, again = MICRO_SECONDS + 10 * LAUNCH_SECONDS, 8 * LAUNCH_SECONDS
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: first + again - node.now))
    _, _, found = accept(capsys, tmp_path, "--only", "8", "--miniatures", "bloom-mini,opt-mini", "--minutes", "60")
    assert [node.asked.count(name) for name in ("micro", "bloom-mini", "opt-mini")] == [1, 10, 8]
    verdicts = {subject: finding["verdict"] for (_, subject), finding in found.items()}
    assert verdicts == {"bloom-mini": "FAIL", "opt-mini": "FAIL"}


def test_a_failure_that_was_not_run_again_is_not_confirmed_by_its_own_launches(tmp_path, capsys, node, monkeypatch):
    node.stragglers = {"bloom-mini", "opt-mini"}
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: 100.0))  # for one of the two
    _, _, found = accept(capsys, tmp_path, "--only", "11", "--miniatures", "bloom-mini,opt-mini")
    assert [node.asked.count(name) for name in ("bloom-mini", "opt-mini")] == [9, 5]
    verdicts = {subject: finding["verdict"] for (_, subject), finding in found.items()}
    assert verdicts == {"bloom-mini": "FAIL", "opt-mini": "INCONCLUSIVE"}


def test_rates_alone_confirm_no_step_time(tmp_path, capsys, node, monkeypatch):
    node.slow = {"bloom-mini": [1.6]}
    node.matrix = [[1.0, 1.0, spread] for spread in (0.87, 0.88)]
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: 74.0))  # not for 3 launches
    _, _, found = accept(capsys, tmp_path, "--only", "2,8", "--miniatures", "bloom-mini")
    assert [node.asked.count(name) for name in ("micro", "rates", "bloom-mini")] == [1, 1, 5]
    assert found[2, "matrix rate"]["verdict"] == "FAIL"
    assert found[8, "bloom-mini"]["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("spreads", "asked", "verdict"),
    [
        ([0.87, 0.99, 0.98], ["micro", "rates", "rates"], "WARN"),
        ([0.87, 0.99, 0.86], ["micro", "rates", "rates"], "FAIL"),
        ([0.87, 0.88], ["micro", "rates"], "FAIL"),
        ([0.99], ["micro"], "PASS"),
    ],
)
def test_a_failed_rate_is_measured_again_without_what_predictions_need(
    tmp_path, capsys, node, monkeypatch, spreads, asked, verdict
):
    node.matrix = [[1.0, 1.0, spread] for spread in spreads]
    monkeypatch.setattr(
        context.RunningBattery,
        "seconds_left",
        property(lambda _self: MICRO_SECONDS + 2 * STATED["cpu"].rates - node.now),
    )  # far too short for all micro-measurements again
    _, _, found = accept(capsys, tmp_path, "--only", "1,2")
    assert node.asked == asked
    assert found[2, "matrix rate"]["verdict"] == verdict


@pytest.mark.parametrize(
    ("virtual", "late", "minutes", "asked", "verdict"),
    [
        (False, 1.05, 60, ["rates"], "FAIL"),
        (True, 1.05, 60, ["rates", *["bloom-mini"] * 5], "FAIL"),
        (True, 1.05, 5, ["rates"], "INCONCLUSIVE"),  # no time for the launches
        (True, 1.0, 60, [], "WARN"),
    ],
)
def test_launches_that_bear_out_a_virtual_machine_s_slow_rank_are_made_again_with_its_products(
    tmp_path, capsys, node, virtual, late, minutes, asked, verdict
):
    node.matrix, node.virtual, node.stragglers, node.late = [[1.0, 0.8]] * 2, virtual, {"bloom-mini"}, late
    _, _, found = accept(capsys, tmp_path, "--only", "2,11", "--miniatures", "bloom-mini", "--minutes", str(minutes))
    assert node.asked == ["micro", *["bloom-mini"] * 5, *asked]
    assert found[2, "matrix rate"]["verdict"] == verdict


def test_a_re_run_that_others_disturb_counts_for_nothing_and_a_fourth_decides(tmp_path, capsys, node):
    node.matrix = [[1.0, 1.0, spread] for spread in (0.87, 0.99, 0.98, 0.99)]
    node.stolen = {"rates": [0.3]}
    _, _, found = accept(capsys, tmp_path, "--only", "0,1,2")
    assert node.asked == ["micro", "rates", "rates", "rates"]
    assert found[2, "matrix rate"]["verdict"] == "WARN"


def test_where_a_step_time_failed_the_prediction_is_made_anew(tmp_path, capsys, node):
    node.slow = {"bloom-mini": [1.6]}
    accept(capsys, tmp_path, "--only", "1,8", "--miniatures", "bloom-mini", "--minutes", "60")
    assert [node.asked.count(name) for name in ("micro", "rates")] == [2, 0]


def test_where_no_time_will_be_judged_figures_and_bits_come_before_all_clocks(tmp_path, capsys, node, monkeypatch):
    """Clocks may take all that is left: the exact figures of every miniature are judged, of the timed ones too."""
    monkeypatch.setattr(planned_phases, "competitors", lambda: ([], 0.5))
    micro = node.micro_measurements
    monkeypatch.setattr(
        measurements, "micro_measurements", lambda *given: (setattr(node, "now", 280.0), micro(*given))[1]
    )
    code, _, found = accept(capsys, tmp_path)
    exact = EFFORTS["quick"].miniatures
    assert node.asked[: len(exact) + 2] == [*exact, "probe", "micro"]
    assert {found[7, name]["verdict"] for name in exact} == {"PASS"}
    assert {finding["verdict"] for (check, _), finding in found.items() if check == 14} == {"PASS"}
    assert code == 3


def test_of_the_probe_only_the_failed_part_is_run_again(tmp_path, capsys, node):
    node.wrong = 1
    accept(capsys, tmp_path, "--profile", "soak", "--only", "14,15")
    assert node.probe_parts == [(True, False, True)]  # a second soak has no time, and bit errors stand
    node.probe_parts.clear()
    accept(capsys, tmp_path, "--only", "14")
    assert node.probe_parts == [(True, False, False)]  # INVALID: no replay agrees with another


@pytest.mark.parametrize(
    ("numbers", "made", "verdict", "words"),
    [({6}, 16, "WARN", "failed once, not in two more"), ({6, 7}, 7, "FAIL", "confirmed by a re-run")],
)
def test_a_slow_further_look_is_run_again(tmp_path, capsys, node, monkeypatch, numbers, made, verdict, words):
    node.slow["bloom-mini"] = [0.8, 1.8]  # no look decides

    def launched(name, purpose, *, on_event, **options):
        one = node.miniature_launch(name, purpose, **options)
        if node.asked.count(name) in numbers:
            node.now += 600.0
            on_event(0, None)
        return one

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    _, _, found = accept(capsys, tmp_path, "--profile", "accept", "--only", "8,17", "--miniatures", "bloom-mini")
    assert node.asked.count("bloom-mini") == made
    guard = found[17, "bloom-mini times"]
    assert guard["verdict"] == verdict
    assert words in guard["evidence"]


def test_another_attempt_is_recorded_apart_and_judged_as_the_phase_that_it_is(node):
    names = []
    opened = SimpleNamespace(kept=lambda _name: None, keep=lambda name, _evidence: names.append(name))
    run = context.RunningBattery(SimpleNamespace(device="cpu", effort=EFFORTS["quick"]), opened, History(), print)
    phase = context.BatteryPhase(
        name="micro-measurements", predicted_seconds=1.0, serves=frozenset(), run=lambda _on_event: []
    )
    assert [run.run(phase, attempt)[0].phase for attempt in ("", "anew", "again")] == ["micro-measurements"] * 3
    assert names == ["micro-measurements", "micro-measurements anew", "micro-measurements again"]


def test_gpus_are_watched_until_the_last_re_run(tmp_path, capsys, node, monkeypatch):
    read: list[tuple[str, int]] = []

    class Watch:
        addresses = ()
        host = HostReading()

        def since_last(self):
            return Health(gpus=[])

        def so_far(self):
            read.append(("so far", len(node.asked)))
            return Health(gpus=[])

        def finished(self):
            read.append(("finished", len(node.asked)))
            return Health(gpus=[])

    monkeypatch.setattr(battery, "HealthWatch", Watch)
    node.stragglers = {"gpt2-mini"}
    accept(capsys, tmp_path, "--only", "11,12", "--miniatures", "gpt2-mini")
    assert read[:2] == [("so far", 0), ("so far", 5)]  # whether the environment is invalid, and what failed
    assert read[-1] == ("finished", 10)


def due(name, seconds, *, launches=0, needed=True):
    return Rerun(name=name, seconds=seconds, launches=launches, needed=needed)


def test_needed_re_runs_come_before_others_and_short_ones_before_long_ones():
    micro, long, short = due("micro", 90.0, needed=False), due("a", 200.0, launches=5), due("b", 50.0)
    assert [one.name for one in affordable([micro, long, short], 300.0)] == ["micro", "a", "b"]
    assert [one.name for one in affordable([micro, long, short], 200.0)] == ["a", "b"]
    assert [one.name for one in affordable([micro, long, short], 100.0)] == ["b"]
    assert affordable([micro, long, short], 10.0) == []


@pytest.mark.parametrize(("left", "launches"), [(500.0, 5), (310.0, 5), (309.0, 4), (200.0, 3), (119.0, None)])
def test_launches_leave_later_re_runs_their_shortest_time(left, launches):
    later = [due("b", 150.0, launches=5), due("c", 20.0)]  # 90 and 20 s
    assert launches_that_fit(due("a", 200.0, launches=5), later, left) == launches
    assert launches_that_fit(due("a", 20.0), later, 20.0) == 0


def test_a_battery_asks_torch_for_its_devices_once(tmp_path, capsys, node, monkeypatch):
    """It plans three times as many launches as it makes, and each plan wants to know: seconds of a start of torch."""
    asked = []

    def answer():
        asked.append("torch")
        one = devices.CudaDevice(name="NVIDIA H100 80GB HBM3", uuid="u", pci="0000:1b:00.0", memory_bytes=85 * 10**9)
        return devices.CudaState(driver_devices=1, driver_error=0, devices=(one,))

    monkeypatch.setattr(devices, "ctypes", SimpleNamespace(CDLL=lambda _name: None))
    monkeypatch.setattr(devices, "_answer_of_torch", answer)
    # a simulated step of each miniature, whose memory is not this test's subject
    monkeypatch.setattr("suite.reproduce.plan.check_device_memory", lambda *_arguments, **_options: None)
    devices._state.cache_clear()
    try:
        accept(capsys, tmp_path, "--device", "cuda", "--profile", "quick")
    finally:
        devices._state.cache_clear()
    assert len(node.asked) > 7
    assert asked == ["torch"]
