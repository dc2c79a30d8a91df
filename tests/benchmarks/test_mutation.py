"""The gate of mutation testing can fail: it distinguishes assertions from crashes, time-outs and broken imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.mutation import areas
from benchmarks.mutation.__main__ import FAIL, INCONCLUSIVE, PASS, decided
from benchmarks.mutation.areas import files_of_area, modules_of, wanted_score
from benchmarks.mutation.mutants import LineChange, Mutant, _not_counted, change, mutants
from benchmarks.mutation.score import MutationScore, Tried, equivalents, problems, scored, unused
from benchmarks.mutation.select import MOST_SECONDS, chosen_tests, statement_lines
from benchmarks.mutation.swap import changed_functions, live_functions, swap
from benchmarks.mutation.trial import Trial, TrialOutcome, classified
from benchmarks.mutation.warm import CollectedTests, forget_results
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
    trial = tried([str(place / "test_subject.py")], place / "log", limit_seconds=3 if "while True" in body else 60)
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


OLD = """
LIMIT = 3
def double(x, times=2):
    def inner(y):
        return y * times
    return inner(x)
class Box:
    size = 4
    def held(self):
        return self.size + 1
PAIR = (lambda: 1), (lambda: 2)
"""


def swapped(old: str, new: str) -> tuple[int, int] | None:
    path = f"/{old}{new}.py"
    changed = changed_functions(path, OLD, OLD.replace(old, new))
    if changed is None:
        return None
    namespace: dict[str, Any] = {}
    exec(compile(OLD, path, "exec"), namespace)  # the text stands above
    swap(live_functions([path]), path, changed)
    return namespace["double"](7), namespace["Box"]().held()


def test_a_function_that_exists_gets_the_code_of_a_mutant() -> None:
    assert swapped("=", "=") == (14, 5)
    assert swapped("y * times", "y + times") == (9, 5)
    assert swapped("size + 1", "size - 1") == (14, 3)


@pytest.mark.parametrize(
    ("old", "new"), [("LIMIT = 3", "LIMIT = 4"), ("times=2", "times=3"), ("size = 4", "size = 5"), (": 2)", ": 3)")]
)
def test_what_a_swapped_function_does_not_show_needs_a_new_import(old: str, new: str) -> None:
    assert swapped(old, new) is None


def test_a_mutant_gets_the_tests_that_run_its_statement_those_of_its_module_first() -> None:
    text = "def f(x):\n    if (x >\n            0):\n        return (x +\n            1)\n    return 0\n"
    assert [statement_lines(text, line) for line in (2, 3, 5, 6)] == [
        range(2, 4),
        range(2, 4),
        range(4, 6),
        range(6, 7),
    ]
    names = ["tests/test_b.py::first", "tests/test_a.py::slow", "tests/test_a.py::quick", "tests/test_b.py::last"]
    seconds = [MOST_SECONDS / 2, MOST_SECONDS / 3, 0.1, MOST_SECONDS]
    collected = CollectedTests(names, seconds, {"a.py": {1: [0], 4: [1, 0, 3], 5: [0, 1], 6: [0]}}, {"a.py": [1]}, [])
    own = ["tests/test_a.py"]
    assert chosen_tests(collected, "a.py", range(4, 6), own, own_all=False) == [1, 0]
    assert chosen_tests(collected, "a.py", range(4, 6), own, own_all=True) == [2, 1, 0]
    assert chosen_tests(collected, "a.py", range(6, 7), own, own_all=False) == [0]
    assert chosen_tests(collected, "a.py", range(9, 10), own, own_all=False) == [1, 2]  # none is known: all of its own
    loaded = msgspec.structs.replace(collected, seconds=[9 * each for each in seconds], work=seconds)
    assert chosen_tests(loaded, "a.py", range(4, 6), own, own_all=True) == [2, 1, 0]
    failing = msgspec.structs.replace(collected, failed=[1])
    assert chosen_tests(failing, "a.py", range(4, 6), own, own_all=True) == [2, 0]
    imported = msgspec.structs.replace(collected, at_import={"a.py": [1, 4, 5, 6]})  # tests run them again
    for either in (collected, imported):
        # test 2 runs no function of the module, but may read a constant of it
        assert chosen_tests(either, "a.py", None, own, own_all=False) == [1, 2, 0]


def test_tests_of_each_file_come_before_more_of_one() -> None:
    names = ["tests/test_b.py::one", "tests/test_b.py::two", "tests/test_c.py::long", "tests/test_a.py::own"]
    seconds = [0.3 * MOST_SECONDS, 0.4 * MOST_SECONDS, 0.6 * MOST_SECONDS, 0.0]
    collected = CollectedTests(names, seconds, {"a.py": {1: [0, 1, 2, 3]}}, {"a.py": []}, [])
    assert chosen_tests(collected, "a.py", range(1, 2), ["tests/test_a.py"], own_all=False) == [3, 0, 2]


def test_what_one_test_has_cached_runs_again_in_the_next_one() -> None:
    from suite.metrics.change_points import penalty

    penalty(12)
    forget_results()
    assert penalty.cache_info().currsize == 0


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


def test_an_area_that_no_time_was_left_for_leaves_the_gate_open() -> None:
    good = scored("suite/metrics", [made(TrialOutcome.ASSERTED) for _ in range(3)], 3)
    assert decided([good]) == PASS
    assert decided([good], ["kernels"]) == decided([score_of(ASSERTED=3)]) == INCONCLUSIVE
    assert decided([score_of(ASSERTED=3, SURVIVED=20)], ["kernels"]) == FAIL


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (AssertionError(), TrialOutcome.ASSERTED),
        (ValueError(), TrialOutcome.RAISED),
        (TimeoutError(), TrialOutcome.TIMED_OUT),
        (subprocess.TimeoutExpired("ranks", 3), TrialOutcome.TIMED_OUT),
        (ModuleNotFoundError(), TrialOutcome.BROKEN),
        (ExceptionGroup("", [TimeoutError(), ImportError()]), TrialOutcome.TIMED_OUT),
        (ExceptionGroup("", [TimeoutError(), AssertionError()]), TrialOutcome.ASSERTED),
    ],
)
def test_a_test_that_waited_in_vain_has_found_nothing(error: Exception, outcome: TrialOutcome) -> None:
    assert classified(error) is outcome


def test_all_mutants_have_no_interval_and_known_equivalents_do_not_count() -> None:
    tried = [
        *(made(TrialOutcome.ASSERTED) for _ in range(3)),
        made(TrialOutcome.SURVIVED),
        made(TrialOutcome.SURVIVED, why="same"),
    ]
    score = scored("suite/metrics", tried, len(tried))
    assert (score.score, score.low, score.high, score.equivalent) == (0.75, 0.75, 0.75, 1)


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
    for module in modules_of(ROOT, ["suite/metrics", "suite/predict/analytic", "suite/regression", "suite/records"]):
        assert areas.tests_of(ROOT, module), module


def test_of_few_modules_their_own_tests_are_collected_and_of_many_those_of_the_area() -> None:
    one = files_of_area(ROOT, "suite/predict/analytic", ["suite/predict/analytic/limits.py"])
    assert one == ["tests/predict/analytic/test_limits.py"]
    modules = modules_of(ROOT, ["suite/predict/analytic"])
    of_all = files_of_area(ROOT, "suite/predict/analytic", modules)
    simulated = [f"tests/predict/simulation/test_{name}.py" for name in ("pipeline_schedule", "weight_versions")]
    assert of_all == ["tests/predict/analytic", *simulated]  # whose passes check formulas of pipelines
    elsewhere = files_of_area(ROOT, "suite/records", modules_of(ROOT, ["suite/records"]))
    assert "tests/regression/test_kernel_benchmarks.py" in elsewhere
    assert len(elsewhere) == len(set(elsewhere))


def test_of_two_modules_the_longer_name_has_the_tests() -> None:
    judge = "suite/acceptance/judge"
    assert areas.tests_of(ROOT, f"{judge}/step_time_margin.py") == ["tests/acceptance/judge/test_step_time_margin.py"]
    assert areas.tests_of(ROOT, f"{judge}/step_time.py") == ["tests/acceptance/judge/test_step_time.py"]
    assert wanted_score(f"{judge}/step_time.py") == 0.95


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="no module of this checkout"):
        modules_of(ROOT, ["suite/nothing.py"])


def test_a_star_before_named_parameters_is_no_product(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="installed by `nox -s mutation`")
    (tmp_path / "a.py").write_text("def f(x, *, y):\n    return x * y\n", encoding="utf-8")
    all_of_it = [change(tmp_path, Mutant("a.py", "core/ReplaceBinaryOperator_Mul_Div", place, 1)) for place in (0, 1)]
    assert [one.after for one in all_of_it if one is not None] == ["return x / y"]


def test_an_exception_whose_name_has_a_dot_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="installed by `nox -s mutation`")
    text = "try:\n    f()\nexcept (OSError, zlib.error, ValueError):\n    g()\n"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    found = [one for one in mutants(tmp_path, "a.py") if one.operator == "core/ExceptionReplacer"]
    changes = [change(tmp_path, one) for one in found]
    assert [one.after for one in changes if one is not None] == [
        "except (CosmicRayTestingException, zlib.error, ValueError):",
        "except (OSError, zlib.error, CosmicRayTestingException):",
    ]


def test_annotations_asserts_and_caches_are_not_mutated() -> None:
    text = "@cache\ndef f(x: int | None = 1) -> int | None:\n    assert x > 1\n    y: int | str = 2\n    return x | 1\n"
    lines = text.splitlines()
    spans = list(_not_counted(ast.parse(text)))
    covered = {lines[first[0] - 1][first[1] : last[1]] for first, last in spans if first[0] == last[0]}
    assert {"int | None", "assert x > 1", "int | str"} <= covered
    assert not any("x | 1" in each for each in covered)
    named = "_Pair = tuple[int, int | None]\nLIMIT = X[1]\nx = y[1]\n"
    assert list(_not_counted(ast.parse(named))) == [((1, 0), (1, 30))]
    joined = 'x = root / "c" / d + 1 + f(y + "e", z | {1: 2}, z | w)'
    operators = [joined[first[1] : last[1]] for first, last in _not_counted(ast.parse(joined))]
    assert sorted(operators) == [" + ", " / ", " / ", " | "]
    moved = "x = tl.load(x_ptr + row * 2 + column) + (a + b)"
    operators = [moved[first[1] : last[1]] for first, last in _not_counted(ast.parse(moved))]
    assert operators == [" + ", " + "]
    declared = "@overload\ndef f(x: int = 1) -> int: ...\n@g\ndef f(x=1): return x\n"
    assert [span for span in _not_counted(ast.parse(declared)) if span[0] == (2, 0)]


def test_powers_of_kernels_are_left_out_and_those_of_others_are_not(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="installed by `nox -s mutation`")
    text = "@triton.jit\ndef f(x):\n    return x * 2\ndef g(x):\n    return x * 2\n"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    found = [one for one in mutants(tmp_path, "a.py") if one.operator == "core/ReplaceBinaryOperator_Mul_Pow"]
    assert [one.line for one in found] == [5]
