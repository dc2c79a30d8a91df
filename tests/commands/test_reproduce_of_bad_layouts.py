"""Layouts that are not executed, or that a model cannot be divided by, are refused by their word."""

from __future__ import annotations

import pytest

from reference_runs.catalog import RUNS
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.refusals import LAYOUT_NOT_EXECUTED, broken


def test_an_unbroken_run_is_refused_for_the_layout_that_is_asked_for_alone(tmp_path, reproduce_refused):
    path = broken(tmp_path, "", "")
    assert reproduce_refused(str(path), "--layout", "recompute-from-input") == (
        f"--layout: {LAYOUT_NOT_EXECUTED.format('recompute-from-input')}"
    )


@pytest.mark.parametrize(
    ("run", "word"),
    {
        "opt_175b": "layout; got partitioned checkpoints",
        "glm_130b": "layout; got partitioned checkpoints",
        "codegeex_13b": "layout; got partitioned checkpoints",
    }.items(),
)
def test_a_run_whose_layout_is_described_but_not_executed_is_refused(run, word, reproduce_refused):
    path = RUNS / f"{run}.toml"
    line = reproduce_refused(str(path))
    assert line.startswith(f"runs/{run}.toml: this version does not execute that {word}")


@pytest.mark.parametrize(("run", "word"), {"bloom_176b": "ALiBi", "glm_130b": "a prefix mask"}.items())
def test_fused_attention_of_scores_with_a_bias_is_refused(run, word, reproduce_refused):
    line = reproduce_refused(str(RUNS / f"{run}.toml"), "--layout", "dp1,zero0,fused,recompute-none")
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'fused attention with {word}')}"


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


@pytest.mark.parametrize(
    ("layout", "word"),
    {
        "cp2,fused": "fused attention with ALiBi",
        "sp": "sp with tp1",
        "dp2,sp": "sp with tp1",
        "pp2,zero2": "zero2 with pp2",
        "dp2,pp2,zero3": "zero3 with pp2",
        "recompute-from-input": "recompute-from-input",
    }.items(),
)
def test_a_layout_that_is_described_but_not_executed_is_refused_by_its_word(layout, word, reproduce_refused):
    line = reproduce_refused("bloom-mini", "--layout", layout)
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(word)}"


@pytest.mark.parametrize(
    ("run", "layout", "words"),
    [
        ("bloom-mini", "pp2,zero-bubble,recompute-full", "recompute-full"),
        ("mixtral-mini", "pp2,zero-bubble", "experts"),
        ("gpt2-mini", "dp2,pp2,zero-bubble,zero1", "2 ranks with the same weights and no zero1,reduce-scatter"),
        ("gpt2-mini", "pp2,zbv,recompute-full", "recompute-full"),
        ("gpt2-mini", "dp2,pp2,dualpipev,zero1,micro1", "2 ranks with the same weights and no zero1,reduce-scatter"),
    ],
)
def test_what_a_backward_pass_in_halves_computes_twice_or_leaves_out_is_refused(run, layout, words, reproduce_refused):
    (schedule,) = {"zero-bubble", "zbv", "dualpipev"} & set(layout.split(","))
    line = reproduce_refused(run, "--layout", layout)
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'{schedule} with {words}')}"


@pytest.mark.parametrize(
    ("run", "layout", "words"),
    [
        ("gpt2-mini", "dp2,pp2,pipedream,zero1", "dp2 and zero1"),
        ("gpt2-mini", "tp2,pp2,pipedream-2bw", "tp2"),
        ("gpt2-mini", "cp2,pp2,pipedream", "cp2"),
        ("qwen3-moe-mini", "pp2,pipedream", "experts"),
        ("gpt-neox-mini", "pp2,pipedream", "the loss scale of fp16"),
        ("bloom-mini", "cp2,pp2,pipedream-vertical-sync", "cp2"),
        ("gpt2-mini", "replicas2-1,pipedream,zero1", "replicas2-1 and zero1"),
        ("gpt2-mini", "replicas2-1,tp2,pipedream", "tp2"),
    ],
)
def test_what_does_not_go_without_flush_is_refused(run, layout, words, reproduce_refused):
    line = reproduce_refused(run, "--layout", layout)
    (schedule,) = [word for word in layout.split(",") if word.startswith("pipedream")]
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'{schedule} with {words}')}"


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ("replicas2-1,pp3,pipedream", "replicas2-1: replicas of 2 stages; got pp3"),
        ("replicas2-0,pipedream", "replicas of a stage; got replicas2-0, allowed: 1 or more"),
        (
            "dp2,replicas2-1,pipedream",
            "replicas of each stage, and of all; got replicas2-1 with dp2, allowed: one of both",
        ),
        (
            "replicas2-1,1f1b",
            "layout: stages with different numbers of replicas need a schedule without flush; "
            "got replicas2-1 with 1f1b, allowed: pipedream, pipedream-vertical-sync, pipedream-2bw",
        ),
        (
            "replicas2-1,pipedream,accumulate4",
            "layout: ranks of such stages have different numbers of micro-batches; "
            "got replicas2-1 with accumulate4, allowed: --global-batch",
        ),
    ],
)
def test_replicas_of_each_stage_that_go_with_no_other_word_are_refused(layout, line, reproduce_refused):
    assert reproduce_refused("gpt2-mini", "--layout", layout) == f"--layout: {line}"


def test_a_batch_that_replicas_of_all_stages_do_not_divide_is_refused(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "replicas2-3,pipedream,micro2", "--global-batch", "8")
    assert (
        line == "--global-batch: global batch: no multiple of replicas * micro_batch; got 8, allowed: multiples of 12"
    )


def test_kernels_that_find_all_gradients_at_once_are_refused_with_halves(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "pp2,zero-bubble", "--kernels", "triton")
    assert "gradients of inputs without those of weights (zero-bubble)" in line


@pytest.mark.parametrize(
    ("run", "word"), [("glm-mini", "cp2 with a prefix mask"), ("codegeex-mini", "cp2 with a top-query layer")]
)
def test_sequences_that_ranks_cannot_share_out_are_refused_by_name(run, word, reproduce_refused):
    assert reproduce_refused(run, "--layout", "cp2") == f"--layout: {LAYOUT_NOT_EXECUTED.format(word)}"


def test_no_triton_kernel_computes_a_part_of_a_sequence(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "cp2", "--kernels", "triton")
    assert line == (
        "--kernels: no Triton kernel computes this; got parts of a sequence (context parallelism), allowed: torch"
    )


IMPOSSIBLE = {
    "heads": ("bloom-mini", "tp4", "layout.tensor_parallel does not divide architecture.heads = 14; got 4"),
    "vocabulary": (
        "gpt-neox-mini",
        "tp16",
        "layout.tensor_parallel does not divide architecture.padded_vocabulary = 1576; got 16",
    ),
    "more-stages-than-layers": (
        "bloom-mini",
        "pp6",
        "layout: more pipeline stages than layers; got 6, allowed: at most architecture.layers = 5",
    ),
    "more-virtual-stages-than-layers": (
        "bloom-mini",
        "pp2,interleave4",
        "layout: more pipeline stages than layers; got 8, "
        "allowed: at most architecture.layers = 5, and a chunk for each table",
    ),
    "interleaved-micro-batches": (
        "gpt2-mini",
        "dp4,pp2,interleave2,accumulate3",
        "layout: interleaving needs a multiple of 2 (pp) micro-batches; got 3",
    ),
    "interleaved-without-stages": (
        "bloom-mini",
        "interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp1,1f1b",
    ),
    "v-of-one-chunk": (
        "gpt2-mini",
        "pp2,zbv,interleave1",
        "layout: zbv has two chunks a stage; got interleave1, allowed: interleave2",
    ),
    "v-of-few-micro-batches": (
        "gpt2-mini",
        "pp2,dualpipev,accumulate3",
        "layout: dualpipev needs as many micro-batches as chunks, 4; got 3",
    ),
    "interleaved-gpipe": (
        "gpt2-mini",
        "pp2,gpipe,interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp2,gpipe",
    ),
    "groups-that-are-not-recomputed": (
        "bloom-mini",
        "every2,recompute-selective",
        "layout.checkpoint_layers belongs to recompute-full; got every2 with recompute-selective",
    ),
}


@pytest.mark.parametrize(("run", "layout", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_layout_that_the_model_cannot_be_divided_by_is_refused(run, layout, reason, reproduce_refused):
    assert reproduce_refused(run, "--layout", layout) == f"--layout: {reason}"
