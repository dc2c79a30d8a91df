"""`plan` as a user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from reference_runs.catalog import reference_run
from reference_runs.layout import Layout, parse_layout
from reference_runs.run import FlopConvention
from suite.__main__ import main
from suite.paths import ROOT


def entry(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_plan_says_what_fits_what_binds_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bloom-176b", "--numbers", "--price", "2"]) == 0
    out = capsys.readouterr().out
    for words in (
        "bloom-176b on 384 a100-sxm-80gb",
        "searched, as deepspeed-pipeline executes it",
        "fits: ",
        "what binds the first: ",
        "what would help it  ",
        "accelerators",
        "cost",
        "more of the first: python -m suite predict bloom-176b --layout",
    ):
        assert words in out


def test_the_first_layout_predicts_as_it_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    planned = entry(capsys, "gpt-neox-20b", "--gpus", "96", "--top", "3")
    best = planned["best"][0]
    assert parse_layout(best["layout"], base=Layout()).ranks == 96
    assert [each["step_seconds"] for each in planned["best"]] == sorted(
        each["step_seconds"] for each in planned["best"]
    )
    assert main(["predict", "gpt-neox-20b", "--layout", best["layout"], "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    step = next(row["left"] for row in figures if row["quantity"] == "step_seconds" and row.get("term") is None)
    assert step == pytest.approx(best["step_seconds"], rel=1e-9)
    assert sum(planned["step_terms"].values()) == pytest.approx(step, rel=1e-9)


def test_a_named_layout_is_one_to_ask_for_next(capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own attention is fused and its gradients are reduce-scattered; what was asked for stays."""
    own = reference_run("nemotron4-15b").layout
    assert own.fused_attention
    assert own.reduce_scatter
    fixed = "tp8,zero1,all-reduce,recompute-full,unfused,micro1"
    for each in entry(capsys, "nemotron4-15b", "--fix", fixed, "--top", "2")["best"]:
        assert main(["predict", "nemotron4-15b", "--layout", each["layout"], "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["figures"]
        step = next(row["left"] for row in figures if row["quantity"] == "step_seconds" and row["left"])
        assert step == pytest.approx(each["step_seconds"], rel=1e-9)


def test_fixed_words_stay(capsys: pytest.CaptureFixture[str]) -> None:
    planned = entry(capsys, "bloom-176b", "--fix", "tp4,recompute-full", "--top", "20")
    for each in planned["best"]:
        assert ",tp4," in each["layout"]
        assert "recompute-full" in each["layout"]


def test_what_does_not_fit_is_the_first_result(capsys: pytest.CaptureFixture[str]) -> None:
    planned = entry(capsys, "bloom-176b", "--gpus", "8", code=1)
    assert planned["status"] == "does not fit"
    assert planned["best"] == []
    assert planned["smallest"]["peak_bytes"] > planned["memory_bytes"]
    assert main(["plan", "bloom-176b", "--gpus", "8"]) == 1
    out = capsys.readouterr().out
    assert "does not fit: the least is " in out
    assert "\n64 accelerators would do\n" in out


def test_failures_lengthen_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    planned = entry(capsys, "bloom-176b", "--goodput")
    assert planned["goodput"]["checkpoint_seconds"] == 40  # as BLOOM's chronicles have it
    assert planned["goodput"]["seconds"] > planned["best"][0]["seconds"]
    assert main(["plan", "bloom-176b", "--failures", "1e-4"]) == 0
    assert "with failures: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bloom-176b", "--gpus", "0"], "--gpus: not a usable number; got 0, allowed: a finite one above 0"),
        (["bloom-176b", "--tokens", "nan"], "--tokens: not a usable number; got nan"),
        (["bloom-176b", "--days", "30"], "--days: more days are needed; got 30, and 384 accelerators need"),
        (["bloom-176b", "--days", "1"], "and are the fastest here"),
        (["bloom-176b", "--budget", "1000"], "--budget: needs the price of an accelerator hour"),
        (["bloom-176b", "--budget", "1000", "--price", "2"], "allowed: the least is "),
        (["bloom-176b", "--on", "v100-sxm-32gb"], "bf16"),
        (["bloom-176b", "--failures", "0"], "--failures: not a usable number"),
        (["bloom-176b", "--fix", "tp0"], "--fix: number out of range"),
        (["bloom-176b", "--fix", "offload"], "--fix: no time is predicted of offloaded state"),
        (["bloom-mini"], "is for recorded runs and run files; got the miniature bloom-mini"),
        (["no-such-run"], "no-such-run"),
    ],
)
def test_wrong_input_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in refused(capsys, *arguments)


def test_a_plan_needs_no_torch() -> None:
    code = "import sys; from suite.__main__ import main; main('plan gpt2-124m --on a100-sxm-40gb --gpus 8'.split())"
    asked = [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"]
    assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("run", "gpus", "convention"),
    [
        ("gpt-neox-20b", 64, FlopConvention.MEGATRON_RECOMPUTED),
        ("grok-1", 256, FlopConvention.CAUSAL_HALF),
        ("llama2-70b", 64, FlopConvention.SIX_N),
        ("gpt2-774m", 64, FlopConvention.PALM),
        ("llama2-7b", 64, None),
    ],
)
def test_plan_and_fit_count_the_mfu_as_predict_does(
    capsys: pytest.CaptureFixture[str], run: str, gpus: int, convention: FlopConvention | None
) -> None:
    assert reference_run(run).reported.flop_convention is convention
    on = ("--on", "h100", "--network", "3200")
    words = ("--gpus", str(gpus), *on, "--fix", "1f1b,zero1,recompute-full,micro1,cp1,ep1,order-tp-cp-dp-pp,fused")
    planned = entry(capsys, run, *words, "--stack", "pytorch", "--top", "1")["best"][0]
    assert main(["fit", run, *words, "--json"]) == 0
    fitting = json.loads(capsys.readouterr().out)["fastest"]
    for found, stack in ((planned, ("--stack", "pytorch")), (fitting, ())):
        main(["predict", run, "--layout", found["layout"], *on, *stack, "--json"])
        figures = json.loads(capsys.readouterr().out)["figures"]
        predicted = {row["quantity"]: row["left"] for row in figures if row["term"] is None and row["stage"] is None}
        assert predicted["mfu"] == pytest.approx(found["mfu"], rel=1e-9)
        assert predicted["step_seconds"] == pytest.approx(found["step_seconds"], rel=1e-9)


def test_what_is_fixed_is_held_and_nothing_against_it(capsys: pytest.CaptureFixture[str]) -> None:
    fix = "zero1,fused,tp1,micro1,1f1b,layers-and-tables,order-dp-tp-cp-pp"
    main(["plan", "bloom-176b", "--stack", "deepspeed-pipeline", "--gpus", "384", "--fix", fix])
    out = capsys.readouterr().out.replace("\n    ", " ")
    (held,) = (line for line in out.splitlines() if line.startswith("held: "))
    assert held == f"held: the batch, {fix}"


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_offloaded_weights_are_refused_with_what_is_allowed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "gpt2-124m", "--fix", "zero3,offload"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "got offload, allowed: offload-optimizer, no-offload" in error


@pytest.mark.parametrize(
    ("fix", "code", "words"),
    [("micro1", 0, "fits with switches of other software"), ("micro1,no-offload", 1, "does not fit with any switch")],
)
def test_a_plan_that_does_not_fit_points_to_fit_and_fit_to_the_plan(
    capsys: pytest.CaptureFixture[str], fix: str, code: int, words: str
) -> None:
    arguments = ["llama2-70b", "--on", "h100-sxm", "--gpus", "8", "--fix", fix]
    assert main(["plan", *arguments]) == 1
    out = capsys.readouterr().out.splitlines()
    assert f"{words}, which `fit` searches: python -m suite fit {' '.join(arguments)}" in out
    assert main(["fit", *arguments]) == code
    assert f"what generic alone executes: python -m suite plan {' '.join(arguments)}" in capsys.readouterr().out
