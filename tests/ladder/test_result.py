"""A run of the ladder has one verdict: printed, in the JSON, and as the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from suite.__main__ import main
from suite.commands import exit_codes
from suite.commands import ladder as command
from suite.ladder.request import LadderRun
from suite.ladder.result import LadderResult, LadderVerdict, failures, verdict
from suite.ladder.rung import Track
from suite.report.terminal.ladder import as_json, print_ladder
from suite.report.terminal.tables import console
from tests.support.ladder_machine import CPU, TEXTS, Machine, ladder_of, of_track, results_of
from tests.support.launches import CORPUS


def reported(outcome: LadderResult, capsys: pytest.CaptureFixture[str]) -> tuple[str, int, str]:
    """The last printed line, the exit code, and the JSON's verdict."""
    print_ladder(console(), outcome)
    last = capsys.readouterr().out.splitlines()[-1]
    return last, command.EXIT_CODES[verdict(outcome)], json.loads(msgspec.json.encode(as_json(outcome)))["verdict"]


def test_a_ladder_passes_fails_breaks_off_or_is_interrupted_in_all_three_places_alike(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported(ladder_of(["compile"]), capsys) == ("gpt2-mini: pass, 3 rungs run, 0 not run", 0, "pass")
    machine.phases = {"speed/compile": [30.0] * 9}
    assert reported(ladder_of(["compile"]), capsys) == ("gpt2-mini: fail, 3 rungs run, 0 not run", 1, "fail")
    machine.wrong = {"speed/compile"}
    last = "gpt2-mini: execution failed, 2 rungs run, 0 not run"
    outcome = ladder_of(["compile"])
    assert reported(outcome, capsys) == (last, 4, "execution failed")
    print_ladder(console(), outcome)
    assert capsys.readouterr().out.count("crashed: made up") == 1
    machine.interrupts = "speed/compile"
    last = "gpt2-mini: interrupted, 2 rungs run, 0 not run"
    assert reported(ladder_of(["compile"]), capsys) == (last, exit_codes.INTERRUPTED, "interrupted")


def test_what_does_not_apply_is_inconclusive_and_nothing_is_read_or_calibrated_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenised_documents", "profile_for", "sample_seconds"):
        monkeypatch.delattr(command, name)
    line = ["ladder", "gpt2-mini", "--rungs", "pinned,fused-kernels", "--device", "cpu", "--results", str(tmp_path)]
    assert main(line) == exit_codes.INCONCLUSIVE
    printed = capsys.readouterr().out
    assert "pinned: NOT RUN: no CUDA device" in printed
    assert "gpt2-mini: inconclusive, 0 rungs run, 2 not run" in printed
    assert main([*line, "--json"]) == exit_codes.INCONCLUSIVE
    built = json.loads(capsys.readouterr().out)
    assert (built["verdict"], built["failures"], built["plot"]) == ("inconclusive", [], "none: nothing ran")
    assert [result["rung"]["name"] for result in built["rungs"]] == ["pinned", "fused-kernels"]
    assert list(tmp_path.iterdir()) == []


def test_what_stands_above_an_ablated_rung_is_predicted_as_it_is_launched(machine: Machine) -> None:
    """Without workers, tokens made offline take off all of the tokenising: as launched, and as predicted."""
    outcome = ladder_of(["workers", "offline"], ablated=("workers",))
    workers, offline = (rung_result for rung_result in outcome.rungs if rung_result.rung.name in ("workers", "offline"))
    assert workers.setting is not None
    assert (workers.setting.workers, offline.setting) == (0, msgspec.structs.replace(workers.setting, tokenises=False))
    assert workers.expected is not None
    assert offline.expected is not None
    assert workers.expected.step_seconds == pytest.approx(0.1 + 0.32 + 0.32 + 0.3)  # two workers, as promised
    assert offline.expected.step_seconds == pytest.approx(0.1 + 0.32 + 0.3)
    assert offline.gain is not None
    assert offline.gain.predicted == pytest.approx(offline.gain.measured, rel=1e-3)
    tokens = 32 * CPU.architecture.sequence
    assert offline.gain.predicted == pytest.approx(0.64 / tokens)
    assert failures(outcome) == ["workers: gain: gain lost: ablated"]
    lacking = results_of(ladder_of(["offline", "no-sync"], ablated=("offline",)))["no-sync"].expected
    assert lacking is not None
    assert lacking.step_seconds == pytest.approx(0.1 + 0.32 + 0.32)  # as launched: two workers tokenise


def test_with_an_ablated_rung_no_leave_one_out_run_is_launched_and_the_table_says_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    rungs = [rung.name for rung in of_track(Track.SPEED)]
    outcome = ladder_of(rungs, ablated=("offline",), leave_one_out=True)
    assert not any("without" in label for label in machine.launched)
    assert outcome.interactions == []
    print_ladder(console(), outcome)
    assert "with --ablate no top is launched without each rung" in capsys.readouterr().out
    print_ladder(console(), ladder_of(rungs))
    assert "--ablate" not in capsys.readouterr().out


def test_an_ablated_rung_whose_gain_noise_hides_is_inconclusive(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of a step's work, but launches that differ by as much as they take."""
    machine.spread = 1.0
    outcome = ladder_of(["compile"], ablated=("compile",))
    assert failures(outcome) == []
    assert verdict(outcome) is LadderVerdict.INCONCLUSIVE
    last = "gpt2-mini: inconclusive, 3 rungs run, 0 not run"
    assert reported(outcome, capsys) == (last, exit_codes.INCONCLUSIVE, "inconclusive")
    (says,) = (c.says for h in outcome.rungs if h.ablated for c in h.checks if c.name == "gain")
    assert says == "ablated: its gain is within noise, cannot be seen; --repeat"
    machine.spread = 1e-4
    assert verdict(ladder_of(["compile"], ablated=("compile",))) is LadderVerdict.FAIL


def test_options_by_their_names_before_do_what_those_of_today_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def ran(ladder_run: LadderRun, **_options: object) -> int:
        seen.append((ladder_run.chosen, ladder_run.ablated, ladder_run.leave_one_out))
        return 0

    def asked(*options: str) -> object:
        assert main(["ladder", "gpt2-mini", "--device", "cpu", *options]) == 0
        return seen[-1]

    monkeypatch.setattr(command, "nothing_applies", lambda *_: None)
    monkeypatch.setattr(command, "_fitted_with_corpus", lambda target, _: (target, CORPUS, TEXTS))
    monkeypatch.setattr(command, "_ran", ran)
    pinned = ("--rungs", "pinned")
    usual = asked(*pinned)
    assert usual != asked("--walk", "speed") == asked("--track", "speed")
    assert usual != asked(*pinned, "--break", "pinned") == asked(*pinned, "--ablate", "pinned")
    assert usual != asked(*pinned, "--no-twins") == asked(*pinned, "--no-leave-one-out")
