"""Phases that other processes or guests disturbed are repeated, whatever their clocks say."""

from __future__ import annotations

import pytest

from suite.__main__ import main
from suite.acceptance import context, measurements
from suite.acceptance import phases as planned_phases
from suite.acceptance.context import OverBudgetError
from suite.acceptance.presets import EFFORTS, JITTER_STEPS, TIMED_STEPS
from suite.acceptance.starts import stated_launches
from tests.support.node import LAUNCH_SECONDS, MICRO_SECONDS, Node, accept

ONE = ("--miniatures", "bloom-mini")
GUESTS = "other guests of the host used 30% of the processors: "


def test_disturbed_micro_measurements_are_repeated(tmp_path, capsys, node: Node) -> None:
    node.stolen = {"micro": [0.3]}
    _, report, found = accept(capsys, tmp_path, "--only", "0,1,3,8", *ONE)
    assert node.asked == ["micro", "micro", *["bloom-mini"] * 5]
    assert found[0, "other processes"]["verdict"] == "PASS"
    assert found[8, "bloom-mini"]["verdict"] == "PASS"
    assert report["notes"][-1] == f"micro-measurements: {GUESTS}all is repeated"
    assert "1 measurements at up to 30% were not judged, but repeated" in found[0, "other processes"]["evidence"]


def test_disturbed_launches_alone_are_repeated_and_their_figures_still_count(tmp_path, capsys, node) -> None:
    node.stolen = {"bloom-mini": [0.0, 0.3, 0.0, 0.06]}
    node.slow = {"bloom-mini": [1.0, 3.0, 1.0, 3.0, 1.0, 1.0, 1.0]}
    node.unequal = {"bloom-mini": 1}
    _, report, found = accept(capsys, tmp_path, "--only", "0,7,8", *ONE)
    assert report["notes"][-1] == f"bloom-mini times: {GUESTS}2 launches are repeated"
    assert "2 measurements at up to 30%" in found[0, "other processes"]["evidence"]
    assert found[8, "bloom-mini"]["verdict"] == "PASS"
    assert "5 launches" in found[8, "bloom-mini"]["evidence"]
    assert found[7, "bloom-mini"]["verdict"] == "FAIL"


def test_launches_are_repeated_twice_where_the_first_repetition_is_disturbed_too(tmp_path, capsys, node) -> None:
    node.stolen = {"bloom-mini": [0.3, 0.3, 0.0, 0.0, 0.0, 0.0, 0.3]}
    node.used = {"bloom-mini": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4]}
    _, report, found = accept(capsys, tmp_path, "--only", "0,8", *ONE)
    assert node.asked.count("bloom-mini") == 5 + 2 + 1
    assert [note for note in report["notes"] if "repeated" in note] == [
        f"bloom-mini times: {GUESTS}2 launches are repeated",
        "bloom-mini times: other processes used 40% of the processors: 1 launches are repeated",
    ]
    assert found[0, "other processes"]["verdict"] == "PASS"
    assert "5 launches" in found[8, "bloom-mini"]["evidence"]


@pytest.mark.parametrize(
    ("name", "stolen"), [("micro", [0.3, 0.3]), ("bloom-mini", [0.3, 0.0, 0.0, 0.0, 0.0, 0.3, 0.3])]
)
def test_what_is_disturbed_in_every_attempt_is_invalid(tmp_path, capsys, node, name, stolen) -> None:
    node.stolen = {name: stolen}
    _, _, found = accept(capsys, tmp_path, "--only", "0,1,3,8", *ONE)
    assert node.asked.count(name) == len(stolen)
    assert found[0, "other processes"]["verdict"] == "INVALID"
    assert found[8, "bloom-mini"]["verdict"] == "INVALID"


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_slow_launches_that_nobody_disturbed_are_not_repeated(tmp_path, capsys, node, share) -> None:
    node.stolen = {"bloom-mini": [share] * 20}
    node.slow = {"bloom-mini": [3.0]}
    _, report, found = accept(capsys, tmp_path, "--only", "0,8", *ONE)
    assert not [note for note in report["notes"] if "repeated" in note]
    assert found[8, "bloom-mini"]["verdict"] == "FAIL"


@pytest.mark.parametrize(("left", "asked"), [(2.0, 2), (-2.0, 1)])
def test_nothing_is_repeated_where_the_rest_would_lack_its_time(
    tmp_path, capsys, node, monkeypatch, left, asked
) -> None:
    node.stolen = {"micro": [0.3]}
    times = stated_launches("cpu", 5, TIMED_STEPS, None, compiled=False, tokenised=True)
    undisturbed = EFFORTS["quick"].micro_seconds["cpu"]
    assert undisturbed < MICRO_SECONDS
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: undisturbed + times + left))
    accept(capsys, tmp_path, "--only", "0,1,8", *ONE)
    assert node.asked.count("micro") == asked


def test_with_a_process_that_ran_before_nothing_is_repeated(tmp_path, capsys, node, monkeypatch) -> None:
    node.stolen = {"bloom-mini": [0.3]}
    monkeypatch.setattr(planned_phases, "competitors", lambda: ([], 0.4))
    _, _, found = accept(capsys, tmp_path, "--only", "0,8", *ONE)
    assert node.asked.count("bloom-mini") == 5
    assert found[0, "other processes"]["verdict"] == "INVALID"


def test_a_re_run_has_as_many_launches_as_were_judged(tmp_path, capsys, node) -> None:
    node.stolen = {"gpt2-mini": [0.3]}
    node.stragglers = {"gpt2-mini"}
    accept(capsys, tmp_path, "--only", "11", "--miniatures", "gpt2-mini")
    assert node.asked.count("gpt2-mini") == 5 + 1 + 5
    assert node.now == 11 * LAUNCH_SECONDS


def test_a_disturbed_launch_for_jitter_is_repeated_for_jitter(tmp_path, capsys, node, monkeypatch) -> None:
    node.stolen = {"gpt2-mini": [0.3]}
    asked = []

    def launched(name, purpose, *, steps, **options):
        asked.append((name, purpose, steps))
        return node.miniature_launch(name, purpose, **options)

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    accept(capsys, tmp_path, "--profile", "accept", "--only", "0,10")
    assert asked == [("gpt2-mini", "jitter", JITTER_STEPS)] * 2


@pytest.mark.parametrize("name", ["micro", "bloom-mini"])
def test_a_repeat_that_does_not_end_in_time_leaves_the_disturbance_to_be_seen(
    tmp_path, capsys, node, monkeypatch, name
) -> None:
    node.stolen = {name: [0.3]}
    honest = {"micro_measurements": node.micro_measurements, "miniature_launch": node.miniature_launch}

    def slow(kind, limit):
        def measured(*arguments, **options):
            if node.asked.count(name) >= limit:
                raise OverBudgetError
            return honest[kind](*arguments, **options)

        return measured

    kind, limit = ("micro_measurements", 1) if name == "micro" else ("miniature_launch", 5)
    monkeypatch.setattr(measurements, kind, slow(kind, limit))
    _, _, found = accept(capsys, tmp_path, "--only", "0,1,3,7,8", *ONE)
    assert found[0, "other processes"]["verdict"] == "INVALID"
    assert found[8, "bloom-mini"]["verdict"] == "INVALID"


def test_what_was_measured_is_judged_where_the_disk_fills_in_the_repeat(tmp_path, capsys, node, monkeypatch) -> None:
    node.stolen = {"bloom-mini": [0.3]}
    node.unequal = {"bloom-mini": 2}

    def launched(name, purpose, **options):
        if node.asked.count(name) == 5:
            raise OSError(28, "No space left on device")
        return node.miniature_launch(name, purpose, **options)

    monkeypatch.setattr(measurements, "miniature_launch", launched)
    _, _, found = accept(capsys, tmp_path, "--only", "0,7,8", *ONE)
    assert found[7, "bloom-mini"]["verdict"] == "FAIL"


@pytest.mark.parametrize(("repeated", "verdict"), [(True, "PASS"), (False, "INVALID")])
def test_a_resumed_battery_follows_what_the_interrupted_one_did(
    tmp_path, capsys, node, monkeypatch, repeated, verdict
) -> None:
    node.stolen = {"micro": [0.3]}
    left = [1000.0 if repeated else 100.0]
    monkeypatch.setattr(context.RunningBattery, "seconds_left", property(lambda _self: left[0]))

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measurements, "probe_result", interrupted)
        main(["accept", "--only", "0,1,8,14", *ONE, "--minutes", "60", "--results", str(tmp_path), "--json"])
    capsys.readouterr()
    left[0] = 100.0 if repeated else 1000.0
    before = node.asked.count("micro")
    _, _, found = accept(capsys, tmp_path, "--only", "0,1,8,14", *ONE, "--minutes", "60", "--resume")
    assert (before, node.asked.count("micro")) == ((2, 2) if repeated else (1, 1))
    assert found[8, "bloom-mini"]["verdict"] == verdict
