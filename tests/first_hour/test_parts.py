"""The table of parts: each has its own name and file, and asks commands for options that they have."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels.registry import cases
from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.__main__ import main
from suite.first_hour.measurements import expected_steps, measurements, possible
from suite.first_hour.part import RESULTS
from suite.first_hour.parts import chosen, parts
from suite.first_hour.result import path_of
from suite.job.options import Optimization
from suite.job.training_job import LEAST_PROFILED, LEAST_STEPS
from suite.machine.packages import PACKAGES, Package
from suite.paths import ROOT
from suite.predict.simulation.optimizations import OptimizationRule
from suite.records.kernel_runs import STEP_PART

ALL = [parts(device, short=short) for device in ("cuda", "cpu") for short in (True, False)]


def test_every_part_has_its_own_file_and_keeps_what_it_makes_in_the_results() -> None:
    for found in ALL:
        assert len({path_of(ROOT, part) for part in found}) == len(found)
        assert chosen(found, ",".join(part.name for part in found), "--parts") == found
        for part in found:
            if part.arguments[0] in ("suite", "benchmarks.kernels"):
                assert any(RESULTS in word for word in part.arguments)


def test_the_order_is_by_value_and_nothing_that_the_node_can_show_is_left_out() -> None:
    first = ["environment", "rates", "gpt2-124m plain", "gpt2-124m", "gpt2-124m all", "parts of a step"]
    first += ["gpt2-1558m-b64 plain", "gpt2-1558m-b64", "gpt2-1558m-b64 all", "gpt2-1558m"]
    first += [*(f"gpt2-124m {name.value}" for name in possible("gpt2-124m"))]
    first += ["gpt2-124m triton", "gpt2-1558m-b64 triton", "gpt2-1558m-b64 fp8-current", "llama3.1-8b slice"]
    first += ["gpt2-1558m all", "gpt2-1558m plain", "kernel tests"]
    names = [part.name for part in parts("cuda")]
    assert names[: len(first)] == first
    wanted = ["kernel tests", "kernel layer_norm", "calibrate", *miniatures(), "accept", "ladder gpt2-mini"]
    assert [name for name in names if name in wanted] == wanted
    assert not {"gpt2-124m", "kernel layer_norm", "layout tp2"} & {part.name for part in parts("cpu")}


def test_a_part_of_a_kernel_has_cases_to_time() -> None:
    timed = {case.kernel for case in cases(torch.device("cuda"))}
    named = {part.name.split()[1] for part in parts("cuda") if part.name.startswith("kernel ")}
    assert named - {"tests"} == timed - {"sign_pack", STEP_PART}


@pytest.mark.parametrize("short", [False, True])
def test_parts_of_a_step_follow_the_first_three_steps_and_have_cases_to_time(short: bool) -> None:
    found = parts("cuda", short=short)
    (place,) = [place for place, part in enumerate(found) if part.name == "parts of a step"]
    assert [part.name for part in found[place - 3 : place]] == ["gpt2-124m plain", "gpt2-124m", "gpt2-124m all"]
    selected = found[place].arguments[found[place].arguments.index("-k") + 1]
    names = [f"[{case.name}-" for case in cases(torch.device("cuda"))]
    chosen_names = [name for name in names if selected in name]
    assert chosen_names == ([f"{selected}-"] if short else [name for name in names if name.startswith("[gpt2_step-")])
    assert found[place].seconds == 300


def test_measurements_are_bounded_and_what_is_asked_is_asked_of_bf16_by_default_alone() -> None:
    for short in (False, True):
        found = measurements(short=short)
        assert all(part.needs_cuda and 60 <= part.seconds <= 480 for part in found)
        assert {part.name: part.asked_mfu for part in found if part.asked_mfu} == {
            **{"gpt2-124m": 0.50, "gpt2-124m all": 0.50},
            **({} if short else {"gpt2-1558m": 0.58, "gpt2-1558m all": 0.58}),
        }
    by_name = {part.name: part for part in measurements(short=False)}
    assert "--global-batch" not in by_name["gpt2-1558m"].arguments
    assert "--global-batch" in by_name["gpt2-1558m-b64"].arguments
    assert by_name["gpt2-1558m-b64 fp8-current"].asked_mfu is None
    steps = int(by_name["gpt2-1558m"].arguments[by_name["gpt2-1558m"].arguments.index("--steps") + 1])
    assert LEAST_STEPS < steps < LEAST_PROFILED  # two are timed, and no profile of 64 micro-batches is made
    assert set(expected_steps()) <= set(by_name)


def test_an_optimization_without_its_package_or_not_possible_is_left_out_without_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = {Optimization.FLASH_ATTENTION_3: OptimizationRule(lambda _: "", package="absent_kernels")}
    monkeypatch.setattr("suite.first_hour.measurements.RULES", rules)
    monkeypatch.setitem(PACKAGES, "absent_kernels", Package("absent_kernels", "absent-kernels", "nothing"))
    (alone,) = [part for part in measurements(short=False) if part.name == "gpt2-124m flash-attention-3"]
    assert alone.modules == ("absent_kernels",)
    assert alone.may_be_refused
    assert [part.arguments[-3] for part in measurements(short=False) if part.name == "gpt2-124m all"] == ["none"]
    refusable = {part.name for part in parts("cuda") if part.may_be_refused}
    assert refusable == {alone.name, "gpt2-124m all", "gpt2-1558m-b64 all", "gpt2-1558m all"}


def test_commands_have_the_options_that_parts_use(capsys: pytest.CaptureFixture[str]) -> None:
    used: dict[str, set[str]] = {}
    for part in (part for found in ALL for part in found if part.arguments[0] == "suite"):
        options = {word for word in part.arguments if word.startswith("--")}
        used[part.arguments[1]] = used.get(part.arguments[1], set()) | options
    assert used.keys() >= {"reproduce", "calibrate", "accept", "ladder"}
    for command, options in used.items():
        assert main([command, "--help"]) == 0
        known = capsys.readouterr().out
        assert {option for option in options if option not in known} == set()


def test_unknown_parts_are_refused() -> None:
    assert [part.name for part in chosen(parts("cpu"), "rates,environment", "--parts")] == ["environment", "rates"]
    with pytest.raises(InputError, match=r"--parts: unknown part; got 'rate', allowed: environment, rates"):
        chosen(parts("cpu"), "rate", "--parts")
