"""A climb has one verdict: printed, in the JSON, and as the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from suite.__main__ import main
from suite.commands import exit_codes
from suite.commands import ladder as command
from suite.ladder.climb import Climb, Verdict, failures, verdict
from suite.ladder.rungs import Walk, of_walk
from suite.report.terminal.ladder import as_json, print_climb
from suite.report.terminal.tables import console
from tests.support.climbs import CPU, Machine, climbed, heights


def told(outcome: Climb, capsys: pytest.CaptureFixture[str]) -> tuple[str, int, str]:
    """What is printed last, the exit code, and the JSON's verdict."""
    print_climb(console(), outcome)
    last = capsys.readouterr().out.splitlines()[-1]
    return last, command._exit_code(outcome), json.loads(msgspec.json.encode(as_json(outcome)))["verdict"]


def test_a_climb_passes_fails_breaks_off_or_is_interrupted_in_all_three_places_alike(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(climbed(["compile"]), capsys) == ("gpt2-mini: pass, 3 rungs climbed, 0 not run", 0, "pass")
    machine.phases = {"speed/compile": [30.0] * 9}
    assert told(climbed(["compile"]), capsys) == ("gpt2-mini: fail, 3 rungs climbed, 0 not run", 1, "fail")
    machine.wrong = {"speed/compile"}
    last = "gpt2-mini: execution failed, 2 rungs climbed, 0 not run"
    assert told(climbed(["compile"]), capsys) == (last, 4, "execution failed")
    machine.interrupts = "speed/compile"
    last = "gpt2-mini: interrupted, 2 rungs climbed, 0 not run"
    assert told(climbed(["compile"]), capsys) == (last, exit_codes.INTERRUPTED, "interrupted")


def test_a_launch_that_failed_is_printed_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.wrong = {"speed/workers"}
    print_climb(console(), climbed(["workers", "offline"]))
    assert capsys.readouterr().out.count("crashed: made up") == 1


def test_what_does_not_apply_is_inconclusive_and_nothing_is_read_or_calibrated_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenised_documents", "profile_for", "sample_seconds"):
        monkeypatch.delattr(command, name)
    line = ["ladder", "gpt2-mini", "--rungs", "pinned,fused-kernels", "--device", "cpu", "--results", str(tmp_path)]
    assert main(line) == exit_codes.INCONCLUSIVE
    printed = capsys.readouterr().out
    assert "pinned: NOT RUN: no CUDA device" in printed
    assert "gpt2-mini: inconclusive, 0 rungs climbed, 2 not run" in printed
    assert main([*line, "--json"]) == exit_codes.INCONCLUSIVE
    built = json.loads(capsys.readouterr().out)
    assert (built["verdict"], built["failures"], built["plot"]) == ("inconclusive", [], "none: nothing ran")
    assert [height["rung"]["name"] for height in built["heights"]] == ["pinned", "fused-kernels"]
    assert list(tmp_path.iterdir()) == []


def test_what_stands_above_a_broken_rung_is_predicted_as_it_is_launched(machine: Machine) -> None:
    """Without workers, tokens made offline take off all of the tokenising: as launched, and as predicted."""
    outcome = climbed(["workers", "offline"], broken=("workers",))
    workers, offline = (height for height in outcome.heights if height.rung.name in ("workers", "offline"))
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
    assert failures(outcome) == ["workers: gain: gain lost: broken on purpose"]
    lacking = heights(climbed(["offline", "no-sync"], broken=("offline",)))["no-sync"].expected
    assert lacking is not None
    assert lacking.step_seconds == pytest.approx(0.1 + 0.32 + 0.32)  # as launched: two workers tokenise


def test_with_a_broken_rung_no_twin_is_launched_and_the_table_says_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    rungs = [rung.name for rung in of_walk(Walk.SPEED)]
    outcome = climbed(rungs, broken=("offline",), twins=True)
    assert not any("without" in label for label in machine.launched)
    assert outcome.interactions == []
    print_climb(console(), outcome)
    assert "with --break no top is launched without its rungs" in capsys.readouterr().out
    print_climb(console(), climbed(rungs))
    assert "--break" not in capsys.readouterr().out


def test_a_broken_rung_whose_gain_noise_hides_is_inconclusive(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of a step's work, but launches that differ by as much as they take."""
    machine.spread = 1.0
    outcome = climbed(["compile"], broken=("compile",))
    assert failures(outcome) == []
    assert verdict(outcome) is Verdict.INCONCLUSIVE
    last = "gpt2-mini: inconclusive, 3 rungs climbed, 0 not run"
    assert told(outcome, capsys) == (last, exit_codes.INCONCLUSIVE, "inconclusive")
    (says,) = (c.says for h in outcome.heights if h.broken for c in h.checks if c.name == "gain")
    assert says == "broken on purpose: its gain is within noise, cannot be seen; --repeat"
    machine.spread = 1e-4
    assert verdict(climbed(["compile"], broken=("compile",))) is Verdict.FAIL
