"""`fit` as a user sees it."""

from __future__ import annotations

import shlex

import pytest

from suite.report.explore.content import content
from suite.report.explore.state import state_of
from suite.report.explore.view import settled, state_of_run
from tests.support.answers import whole
from tests.support.short_run_files import short_run_file


def test_the_first_line_is_the_answer(said):
    lines = said("fit", "gpt2-1558m", "--on", "a100-sxm-80gb", "--gpus", "1", "--fix", "1f1b,micro1").splitlines()
    assert lines[0].startswith("fits (over 99 % likely): gpt2-1558m on 1 a100-sxm-80gb with llm-c; ")
    assert lines[1].startswith("fastest: dp1,tp1,pp1,zero0")
    on = ("fit", "gpt2-1558m", "--on", "rtx-4090", "--gpus", "1", "--fix")
    first, *rest = said(*on, "no-offload", code=1).splitlines()
    assert first == "does not fit (15 % likely to): gpt2-1558m on 1 rtx-4090 with llm-c"
    assert rest[0] == "2 accelerators would do (--gpus 2)"
    assert any("no offloading, as was asked for" in line for line in rest)
    lines = said(*on, "1f1b,micro1", "--any-software").splitlines()
    assert "offload-optimizer" in lines[1]
    assert any(line.startswith("the fastest keeps ") for line in lines)


def test_a_model_by_name_says_where_its_sizes_were_read(said, answered):
    asked = ("Qwen/Qwen3-32B", "--on", "h100-sxm", "--gpus", "16", "--fix", "tp8,dp2,zero1,micro1,1f1b")
    assert "qwen3-32b (sizes of megatron-bridge 0.3.1), by formula on 16 h100-sxm" in said("fit", *asked)
    assert answered("fit", *asked)["answered_by"] == "formula"
    assert said("predict", *asked[:-2], "--layout", "tp8,pp2,sp").startswith("by formula: qwen3-32b (sizes of ")


def test_samples_are_counted_in_words(said):
    for batch, words in (("1", "1 sample"), ("3", "3 samples")):
        asked = ["gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "1", "--batch", batch]
        out = said("fit", *asked, "--fix", "1f1b")
        assert f"largest micro-batch that fits: {words} of 1,024 tokens\n" in out
        assert f"held: {words} of 1,024 tokens a step" in out
        assert f"\n{words} of 1,024 tokens a step" in said("plan", *asked, "--top", "1")


def test_a_longer_sequence_needs_more_memory(answered):
    asked = ("fit", "gpt2-124m", "--on", "a100-sxm-80gb", "--gpus", "1", "--sequence")
    short, long = (answered(*asked, sequence)["smallest"]["peak_bytes"] for sequence in ("1024", "4096"))
    assert short < long


def test_a_short_run_file_is_enough(tmp_path, said):
    path = tmp_path / "short.toml"
    short_run_file(path, recipe={"precision": "bf16"})
    on = ("fit", str(path), "--on", "h100-sxm", "--gpus", "8")
    assert said(*on, "--batch", "64", "--fix", "1f1b,fused").startswith("fits (")
    assert "assumed: batch of 2,048 samples: 4.2 million tokens a step (--batch)" in said(*on, "--fix", "1f1b,fused")


@pytest.mark.parametrize(
    ("run", "gpus", "options"),
    [
        ("llama3.1-8b", "8", ("--on", "rtx-4090", "--fix", "zbv,micro1,dp1,tp4")),
        ("llama3.1-8b", "8", ("--on", "rtx-4090", "--fix", "zbv,layers-and-tables,order-pp-tp-cp-dp,micro1")),
        ("llama2-7b", "16", ("--on", "h100", "--network", "3200", "--fix", "unfused,zero1,all-reduce,1f1b")),
        ("bloom-176b", "384", ("--fix", "layers,1f1b,tp4,micro1,order-dp-tp-cp-pp,unfused")),
        ("nemotron4-15b", "64", ("--fix", "zero1,all-reduce,micro1,1f1b,cp1", "--network", "3200")),
    ],
)
def test_predict_reads_what_is_printed_as_the_same_layout(run, gpus, options, said, answered):
    fastest = answered("fit", run, "--gpus", gpus, *options, "--any-software")["fastest"]
    out = said("fit", run, "--gpus", gpus, *options, "--any-software").replace("\n    ", " ")
    (words,) = (line.split()[1].rstrip(",") for line in out.splitlines() if line.startswith("fastest: "))
    (command,) = (line for line in out.splitlines() if line.startswith("more of the first: "))
    machine = [part for n, part in enumerate(options) if {"--on", "--network"} & set(options[max(0, n - 1) : n + 1])]
    for arguments in ([run, "--layout", words, *machine], command.partition(" predict ")[2].split()):
        predicted = whole(answered("predict", *arguments))
        assert predicted["step_seconds"] == pytest.approx(fastest["step_seconds"], rel=1e-9)
        assert predicted["peak_bytes"] == pytest.approx(fastest["peak_bytes"], rel=1e-9)


@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("gpt2-124m", ("--on", "h100", "--gpus", "1", "--batch", "8", "--sequence", "512")),
        ("llama3.1-8b", ("--on", "h100-sxm", "--gpus", "64", "--stack", "megatron-core", "--precision", "bf16-pure")),
        ("qwen3-30b-a3b", ("--on", "h100-sxm", "--gpus", "16", "--stack", "pytorch", "--micro-batch", "2")),
        ("llama2-7b", ("--on", "a100-sxm-80gb", "--gpus", "16", "--tokens", "1e12")),
    ],
)
def test_fit_and_plan_and_the_command_that_they_print_agree(run, options, answered, said):
    fastest = answered("fit", run, *options)["fastest"]
    layouts = set()
    for command in ("fit", "plan"):
        (printed,) = (line for line in said(command, run, *options).splitlines() if " suite predict " in line)
        words = shlex.split(printed.partition(" suite ")[2])
        layouts.add(words[words.index("--layout") + 1])
        predicted = whole(answered(*words))
        for quantity in ("step_seconds", "peak_bytes", "mfu"):
            assert predicted[quantity] == pytest.approx(fastest[quantity], rel=1e-9), (command, quantity)
    assert len(layouts) == 1


def shown(query):
    """The first layout that the page with controls shows of an address, and its figures."""
    (view,) = content(settled(state_of(f"?{query}", state_of_run("bloom-176b"))))["views"]
    return view, {figure["quantity"]: figure["value"] for figure in view["figures"]}


def test_fit_plan_predict_and_explore_give_one_verdict_on_a_layout(answered):
    expected = {
        "dp8,zero3,recompute-full": "fits",
        "dp8,zero1,all-reduce,recompute-full": "fits",
        "dp8,zero1,all-reduce,recompute-none": "likely to fit",
        "dp8,zero0,recompute-none": "does not fit",
    }
    on, wrong = ("llama2-7b", "--on", "h100-sxm", "--batch", "1024"), []
    for words, verdict in expected.items():
        layout = f"{words},micro1,fused,1f1b"
        asked = (*on, "--gpus", "8", "--fix", f"{layout},tp1,pp1,cp1,no-offload")
        code = int(verdict != "fits")
        fitted, planned = (answered(command, *asked, code=code) for command in ("fit", "plan"))
        predicted = answered("predict", *on, "--layout", layout, code=int(verdict == "does not fit"))
        (best,) = planned["best"] or [planned["smallest"]]
        each_one = [fitted["fastest"] or fitted["smallest"], best, predicted]
        view = shown(f"run=llama2-7b&on=h100-sxm&batch=1024&layout={layout}")[0]
        found = [each["memory_verdict"] for each in each_one] + [view["verdict"]]
        probabilities = {f"{each['probability_fits']:.9g}" for each in (*each_one, view)}
        if found != 4 * [verdict] or len(probabilities) > 1 or fitted["fits"] == bool(code):
            wrong.append((layout, verdict, found, probabilities))
    assert wrong == []


def test_fit_plan_and_explore_find_one_layout_for_a_number_of_accelerators(answered):
    wrong = []
    for run, gpus, code in (
        ("llama3.1-8b", 64, 0),
        ("qwen3-30b-a3b", 64, 0),
        ("llama2-70b", 8, 1),
        ("gpt2-1558m", 1, 0),
    ):
        asked = (run, "--on", "h100-sxm", "--gpus", str(gpus), "--stack", "megatron-core")
        fitted, planned = (answered(command, *asked, code=code) for command in ("fit", "plan"))
        view, figures = shown(f"run={run}&on=h100-sxm&gpus={gpus}&stack=megatron-core")
        one = fitted["fastest"] or fitted["smallest"]
        two = planned["best"][0] if planned["best"] else planned["smallest"]
        three = {**figures, "memory_verdict": view["verdict"]}
        keys = ("step_seconds", "peak_bytes", "memory_verdict")
        answers = [
            tuple(f"{each[key]:.9g}" if key != keys[2] else each[key] for key in keys) for each in (one, two, three)
        ]
        if len({*answers}) > 1:
            wrong.append((run, answers))
    assert wrong == []


def test_what_is_likely_to_fit_is_said_with_its_probability(said):
    asked = ("llama2-7b", "--on", "h100-sxm", "--gpus", "8", "--batch", "1024")
    fixed = ("--fix", "dp8,zero1,all-reduce,recompute-none,micro1,fused,1f1b,no-offload")
    assert said("fit", *asked, *fixed, code=1).startswith("70 % likely to fit: llama2-7b on 8 h100-sxm")
    assert "70 % likely to fit: the least is 66.7 GiB" in said("plan", *asked, *fixed, code=1)
