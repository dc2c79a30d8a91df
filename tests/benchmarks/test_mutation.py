"""The gate of mutation testing can fail: it distinguishes assertions from crashes, time-outs and broken imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutation import areas
from benchmarks.mutation.__main__ import FAIL, INCONCLUSIVE, PASS, decided
from benchmarks.mutation.areas import modules_of
from benchmarks.mutation.mutants import LineChange, Mutant
from benchmarks.mutation.score import MutationScore, Tried, equivalents, problems, scored, unused
from benchmarks.mutation.trial import Trial, TrialOutcome
from reference_runs.errors import InputError
from suite.paths import ROOT

WAYS = """
import pathlib, sys
from benchmarks.mutation.trial import import_libraries, tried
place = pathlib.Path(sys.argv[1])
import_libraries(())
import msgspec
sys.path.insert(0, str(place))
for body in sys.argv[2:]:
    (place / "subject.py").write_text(body)
    trial = tried([str(place / "test_subject.py")], place / "log", limit_seconds=1 if "while True" in body else 60)
    print(msgspec.json.encode(trial).decode(), flush=True)
"""
TESTS = """
import pytest
def test_value():
    from subject import value
    assert value() == 1
def test_refusal():
    from subject import refused
    with pytest.raises(ValueError):
        refused()
"""
GOOD = "def value():\n    return 1\ndef refused():\n    raise ValueError\n"


def test_each_end_of_a_trial_is_told_from_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_subject.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    bodies = {
        GOOD: TrialOutcome.SURVIVED,
        GOOD.replace("return 1", "return 2"): TrialOutcome.ASSERTED,
        GOOD.replace("raise ValueError", "pass"): TrialOutcome.ASSERTED,
        GOOD.replace("return 1", "return 1 / 0"): TrialOutcome.RAISED,
        GOOD.replace("return 1", "return"): TrialOutcome.ASSERTED,
        "import nothing_of_this_name\n" + GOOD: TrialOutcome.BROKEN,
        "def value(:\n": TrialOutcome.BROKEN,
        GOOD.replace("return 1", "import os; os._exit(3)"): TrialOutcome.BROKEN,
        GOOD.replace("return 1", "\n    while True: pass"): TrialOutcome.TIMED_OUT,
    }
    command = [sys.executable, "-c", WAYS, str(tmp_path), *bodies]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    trials = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [trial["outcome"] for trial in trials] == [str(outcome) for outcome in bodies.values()]
    assert trials[0]["passed"] == 2
    assert "test_value" in trials[1]["test"]


def made(outcome: TrialOutcome, number: int = 0, why: str = "") -> Tried:
    return Tried(Mutant("suite/metrics/x.py", "operator", number, 1), LineChange("a", "b", "text"), Trial(outcome), why)


def score_of(**outcomes: int) -> MutationScore:
    return scored(
        "suite/metrics", [made(TrialOutcome[name]) for name, count in outcomes.items() for _ in range(count)], 10**6
    )


def test_a_score_counts_what_tests_found_and_missed_and_nothing_else() -> None:
    score = score_of(ASSERTED=80, RAISED=10, SURVIVED=10, TIMED_OUT=3, BROKEN=2)
    assert score.score == 0.9
    # Wilson 1927 for 90 of 100 at 95 %
    assert (score.low, score.high) == pytest.approx((0.8256, 0.9448), abs=5e-5)
    assert problems(score) == []
    outcomes = (*[TrialOutcome.ASSERTED] * 3, TrialOutcome.SURVIVED)
    tried = [*map(made, outcomes), made(TrialOutcome.SURVIVED, why="equivalent")]
    every = scored("suite/metrics", tried, len(tried))  # all mutants: no interval
    assert (every.score, every.low, every.high, every.equivalent) == (0.75, 0.75, 0.75, 1)


def test_an_area_that_no_time_was_left_for_leaves_the_gate_open() -> None:
    good = scored("suite/metrics", [made(TrialOutcome.ASSERTED) for _ in range(3)], 3)
    assert decided([good]) == PASS
    assert decided([good], ["kernels"]) == decided([score_of(ASSERTED=3)]) == INCONCLUSIVE
    assert decided([score_of(ASSERTED=3, SURVIVED=20)], ["kernels"]) == FAIL


@pytest.mark.parametrize(
    ("outcomes", "line"),
    [
        ({}, "no mutant ran"),
        ({"TIMED_OUT": 4}, "no mutant ran"),
        ({"ASSERTED": 20, "TIMED_OUT": 3}, "3 timed out and 0 broken of 23: at most 1 in 10 may"),
        ({"ASSERTED": 20, "BROKEN": 3}, "0 timed out and 3 broken of 23: at most 1 in 10 may"),
        ({"ASSERTED": 4, "RAISED": 6}, "only 4 of 10 were found by an assertion: at least half must be"),
    ],
)
def test_a_score_that_rests_on_something_else_than_assertions_is_none(outcomes: dict[str, int], line: str) -> None:
    assert f"suite/metrics: {line}" in problems(score_of(**outcomes))


def test_an_equivalent_mutant_that_a_test_found_is_said_to_be_none() -> None:
    known = {("suite/metrics/x.py", "a", "b"): "why"}
    assert unused(known, [made(TrialOutcome.ASSERTED)]) == ["suite/metrics/x.py: a -> b"]
    assert unused(known, [made(TrialOutcome.SURVIVED)]) == []


def test_every_known_equivalent_has_its_line_in_its_module_and_a_reason() -> None:
    for (module, before, after), why in equivalents().items():
        lines = [line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()]
        assert before in lines, (module, before)
        assert before != after
        assert len(why) > 10


def test_every_module_of_the_areas_has_tests_that_exist() -> None:
    assert [module for module in modules_of(ROOT, [*areas.AREAS]) if not areas.tests_of(ROOT, module)] == []


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no module of this checkout"):
        modules_of(ROOT, ["suite/nothing.py"])
