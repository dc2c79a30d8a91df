"""Layouts that are not executed, or that a model cannot be divided by, are refused by their word."""

from __future__ import annotations

from reference_runs.catalog import RUNS
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.refusals import LAYOUT_NOT_EXECUTED, broken

ON_A_CPU = "--device cpu --results RESULTS"


# A run, a layout, and the word by which it is refused
NOT_EXECUTED = [
    (RUNS / "bloom_176b.toml", "dp1,zero0,fused,recompute-none", "fused attention with ALiBi"),
    (RUNS / "glm_130b.toml", "dp1,zero0,fused,recompute-none", "fused attention with a prefix mask"),
    ("bloom-mini", "cp2,fused", "fused attention with ALiBi"),
    ("bloom-mini", "sp", "sp with tp1"),
    ("bloom-mini", "dp2,sp", "sp with tp1"),
    ("bloom-mini", "pp2,zero2", "zero2 with pp2"),
    ("bloom-mini", "dp2,pp2,zero3", "zero3 with pp2"),
    ("bloom-mini", "recompute-from-input", "recompute-from-input"),
    # sequences that ranks cannot share out
    ("glm-mini", "cp2", "cp2 with a prefix mask"),
    ("codegeex-mini", "cp2", "cp2 with a top-query layer"),
    # what a backward pass in halves computes twice or leaves out
    ("bloom-mini", "pp2,zero-bubble,recompute-full", "zero-bubble with recompute-full"),
    ("mixtral-mini", "pp2,zero-bubble", "zero-bubble with experts"),
    (
        "gpt2-mini",
        "dp2,pp2,zero-bubble,zero1",
        "zero-bubble with 2 ranks with the same weights and no zero1,reduce-scatter",
    ),
    ("gpt2-mini", "pp2,zbv,recompute-full", "zbv with recompute-full"),
    (
        "gpt2-mini",
        "dp2,pp2,dualpipev,zero1,micro1",
        "dualpipev with 2 ranks with the same weights and no zero1,reduce-scatter",
    ),
    # what does not go without flush
    ("gpt2-mini", "dp2,pp2,pipedream,zero1", "pipedream with dp2 and zero1"),
    ("gpt2-mini", "tp2,pp2,pipedream-2bw", "pipedream-2bw with tp2"),
    ("gpt2-mini", "cp2,pp2,pipedream", "pipedream with cp2"),
    ("qwen3-moe-mini", "pp2,pipedream", "pipedream with experts"),
    ("gpt-neox-mini", "pp2,pipedream", "pipedream with the loss scale of fp16"),
    ("bloom-mini", "cp2,pp2,pipedream-vertical-sync", "pipedream-vertical-sync with cp2"),
    ("gpt2-mini", "replicas2-1,pipedream,zero1", "pipedream with replicas2-1 and zero1"),
    ("gpt2-mini", "replicas2-1,tp2,pipedream", "pipedream with tp2"),
]


def test_a_layout_that_is_described_but_not_executed_is_refused_by_its_word(not_refused, tmp_path):
    table = [*NOT_EXECUTED, (broken(tmp_path, "", ""), "recompute-from-input", "recompute-from-input")]
    lines = [
        (f"{run} --layout {layout}", f"error: --layout: {LAYOUT_NOT_EXECUTED.format(word)}\n")
        for run, layout, word in table
    ]
    assert not_refused("reproduce", lines, ON_A_CPU) == []


# A run, options, and all that is said after the option
IMPOSSIBLE = [
    ("bloom-mini", "tp4", "layout.tensor_parallel does not divide architecture.heads = 14; got 4"),
    ("gpt-neox-mini", "tp16", "layout.tensor_parallel does not divide architecture.padded_vocabulary = 1576; got 16"),
    ("bloom-mini", "pp6", "layout: more pipeline stages than layers; got 6, allowed: at most architecture.layers = 5"),
    (
        "bloom-mini",
        "pp2,interleave4",
        "layout: more pipeline stages than layers; got 8, "
        "allowed: at most architecture.layers = 5, and a chunk for each table",
    ),
    (
        "gpt2-mini",
        "dp4,pp2,interleave2,accumulate3",
        "layout: interleaving needs a multiple of 2 (pp) micro-batches; got 3",
    ),
    (
        "bloom-mini",
        "interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp1,1f1b",
    ),
    ("gpt2-mini", "pp2,zbv,interleave1", "layout: zbv has two chunks a stage; got interleave1, allowed: interleave2"),
    ("gpt2-mini", "pp2,dualpipev,accumulate3", "layout: dualpipev needs as many micro-batches as chunks, 4; got 3"),
    (
        "gpt2-mini",
        "pp2,gpipe,interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp2,gpipe",
    ),
    (
        "bloom-mini",
        "every2,recompute-selective",
        "layout.checkpoint_layers belongs to recompute-full; got every2 with recompute-selective",
    ),
    # replicas of each stage go with no other word
    ("gpt2-mini", "replicas2-1,pp3,pipedream", "replicas2-1: replicas of 2 stages; got pp3"),
    ("gpt2-mini", "replicas2-0,pipedream", "replicas of a stage; got replicas2-0, allowed: 1 or more"),
    (
        "gpt2-mini",
        "dp2,replicas2-1,pipedream",
        "replicas of each stage, and of all; got replicas2-1 with dp2, allowed: one of both",
    ),
    (
        "gpt2-mini",
        "replicas2-1,1f1b",
        "layout: stages with different numbers of replicas need a schedule without flush; "
        "got replicas2-1 with 1f1b, allowed: pipedream, pipedream-vertical-sync, pipedream-2bw",
    ),
    (
        "gpt2-mini",
        "replicas2-1,pipedream,accumulate4",
        "layout: ranks of such stages have different numbers of micro-batches; "
        "got replicas2-1 with accumulate4, allowed: --global-batch",
    ),
]
OTHERS = [
    (
        "gpt2-mini --layout replicas2-3,pipedream,micro2 --global-batch 8",
        "--global-batch: global batch: no multiple of replicas * micro_batch; got 8, allowed: multiples of 12\n",
    ),
    (
        "gpt2-mini --layout pp2,zero-bubble --kernels triton",
        "gradients of inputs without those of weights (zero-bubble)",
    ),
    (
        "gpt2-mini --layout cp2 --kernels triton",
        "--kernels: no Triton kernel computes this; got parts of a sequence (context parallelism), allowed: torch\n",
    ),
    *(
        (
            str(RUNS / f"{run}.toml"),
            f"error: runs/{run}.toml: this version does not execute that layout; got partitioned checkpoints",
        )
        for run in ("opt_175b", "glm_130b", "codegeex_13b")
    ),
]


def test_a_layout_that_the_model_the_batch_or_the_kernels_do_not_go_with_is_refused(not_refused):
    table = [(f"{run} --layout {layout}", f"error: --layout: {line}\n") for run, layout, line in IMPOSSIBLE]
    assert not_refused("reproduce", table + OTHERS, ON_A_CPU) == []


def test_fused_attention_with_dropout_is_refused_on_a_cpu_alone(tmp_path, reproduce_refused, monkeypatch):
    text = (RUNS / "gpt2_124m.toml").read_text(encoding="utf-8")
    path = tmp_path / "my_run.toml"
    path.write_text(text.replace("attention_dropout = { value = 0.0", "attention_dropout = { value = 0.1", 1))
    line = reproduce_refused(str(path), "--ranks", "1")
    assert line == (
        "--ranks: fused attention drops nothing on a CPU; got 0.1 recipe.attention_dropout, "
        "allowed: 0, unfused, or --device cuda"
    )
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    planned = plan(Request(name=str(path), ranks=1, device="cuda", results=tmp_path))
    assert (planned.layout.fused_attention, planned.recipe.attention_dropout) == (True, 0.1)


def test_all_reasons_against_an_execution_are_reported_at_once(reasons):
    recipe, layout = reasons(str(RUNS / "gpt3_175b.toml"), "--layout", "dp4,tp2,pp2,zero3")
    assert "fp16 is executed with a dynamic loss scale" in recipe
    assert layout == f"--layout: {LAYOUT_NOT_EXECUTED.format('zero3 with pp2 and scatter-gather')}"
