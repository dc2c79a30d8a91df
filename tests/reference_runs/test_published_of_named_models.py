"""Rows that name a recorded run: its own shape where the row says none, and the row's own layout."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reference_runs.catalog import reference_run, run_names
from reference_runs.model_names import is_plain
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_columns import SHAPE, STEP

LAYOUT = {
    **{"gpu": "h100", "gpus": "64", "dp": "16", "tp": "4", "pp": "1", "cp": "1"},
    **{"global_batch": "256", "micro_batch": "1", STEP: "10"},
}
UNPUBLISHED = [name for name in run_names() if reference_run(name).unpublished]


def written(path: Path, cells: dict[str, str]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    return path


def row(tmp_path: Path, model: str, **cells: str) -> PublishedRow:
    (found,) = load_table(written(tmp_path / "own.csv", {"model": model} | LAYOUT | cells)).rows
    return found


def reason(tmp_path: Path, model: str, **cells: str) -> str:
    (found,) = load_table(written(tmp_path / "own.csv", {"model": model} | LAYOUT | cells)).skipped
    return found.reason


@pytest.mark.parametrize("name", ["mistralai/Mixtral-8x7B-v0.1", *UNPUBLISHED])
def test_a_row_states_the_layout_of_a_model_that_has_none_published(tmp_path: Path, name: str) -> None:
    assert {"mixtral-8x7b", "qwen3-30b-a3b", "llama2-7b"} <= set(UNPUBLISHED)
    found = row(tmp_path, name)
    layout = found.layout
    assert (layout.data_parallel, layout.tensor_parallel, layout.pipeline_stages, layout.micro_batch) == (16, 4, 1, 1)
    # the rest by the rules for a model that is not recorded
    other = row(tmp_path, "my own", layers="32", hidden="4096", heads="32", vocab="32000", seq_len="4096")
    assert layout == other.layout
    assert {words for words in other.assumed if words.startswith(("recompute", "vpp", "sp", "zero_stage"))} <= {
        *found.assumed
    }


@pytest.mark.parametrize(
    ("model", "cells", "name"),
    [
        ("Mixtral", {"layers": "32"}, "mixtral-8x7b"),
        ("mistralai/Mixtral", {"hidden": "6144", "heads": "48"}, "mixtral-8x22b"),
        ("Qwen3", {"layers": "94", "hidden": "4096"}, "qwen3-235b-a22b"),
        ("LLaMA-2", {"hidden": "8192"}, "llama2-70b"),
    ],
)
def test_the_stated_shape_tells_sizes_of_a_model_apart(
    tmp_path: Path, model: str, cells: dict[str, str], name: str
) -> None:
    assert row(tmp_path, model, **cells).architecture == reference_run(name).architecture


@pytest.mark.parametrize("cells", [{}, {"layers": "33"}, {"layers": "32", "hidden": "6144"}])
def test_a_name_of_several_sizes_needs_a_shape_that_one_of_them_has(tmp_path: Path, cells: dict[str, str]) -> None:
    blank = ", ".join(column for column in SHAPE if column not in cells)
    meant = "several recorded runs are called 'Mixtral'; did you mean mixtral-8x22b or mixtral-8x7b?"
    assert reason(tmp_path, "Mixtral", **cells) == f"{blank} are blank, and {meant}"


def test_a_model_that_is_not_recorded_is_none_of_the_sizes_of_its_family(tmp_path: Path) -> None:
    dense = {"layers": "36", "hidden": "4096", "heads": "32", "vocab": "151936", "seq_len": "4096"}
    found = row(tmp_path, "Qwen3", **dense, kv_heads="8", ffn_hidden="12288").architecture
    assert (found.layers, found.experts) == (36, None)


def test_experts_lie_within_the_stated_data_parallelism_of_a_model_without_a_layout(tmp_path: Path) -> None:
    found = row(tmp_path, "mixtral-8x7b", ep="8", recompute="full", zero_stage="1")
    assert (found.layout.data_parallel, found.layout.expert_parallel) == (2, 8)
    assert (found.layout.recomputation.value, found.layout.zero_stage) == ("full", 1)


@pytest.mark.parametrize("name", [name for name in UNPUBLISHED if not is_plain(reference_run(name))])
def test_what_a_row_does_not_state_of_a_layout_is_named(tmp_path: Path, name: str) -> None:
    assert reason(tmp_path, name, dp="", gpus="", micro_batch="") == "gpus, dp, micro_batch are blank"
    assert row(tmp_path, name, dp="").layout.data_parallel == 16
    assert row(tmp_path, name, dp="", cp="2").layout.data_parallel == 8
    assert row(tmp_path, name, gpus="").layout.ranks == 64


@pytest.mark.parametrize("name", run_names())
def test_a_row_that_names_a_run_and_no_shape_has_its_architecture(tmp_path: Path, name: str) -> None:
    recorded = reference_run(name).architecture
    for tp in (1, 2):
        dp = "64" if tp == 1 else "32"
        if recorded.heads % tp == recorded.ffn_hidden % tp == 0:
            assert row(tmp_path, name, tp=str(tp), dp=dp).architecture == recorded


@pytest.mark.parametrize(
    ("name", "head_dim"), [("palm-540b", 256), ("qwen3-30b-a3b", 128), ("qwen3-235b-a22b", 128), ("deepseek-v3", 192)]
)
def test_heads_of_a_width_of_their_own_keep_it_whatever_the_row_states_besides(
    tmp_path: Path, name: str, head_dim: int
) -> None:
    recorded = reference_run(name).architecture
    hidden, heads = str(recorded.hidden), str(recorded.heads)
    assert row(tmp_path, name, hidden=hidden, heads=heads).architecture == recorded
    small = row(tmp_path, name, hidden=str(recorded.hidden // 2)).architecture
    assert (small.hidden, small.heads, small.head_dim) == (recorded.hidden // 2, recorded.heads, head_dim)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "mixtral-8x22b", "llama2-7b", "gpt-neox-20b"])
def test_other_heads_are_as_wide_as_hidden_and_heads_say(tmp_path: Path, name: str) -> None:
    recorded = reference_run(name).architecture
    small = row(tmp_path, name, hidden=str(recorded.hidden // 2)).architecture
    assert small.head_dim == small.rotary_dim == recorded.head_dim // 2
    assert "does not divide hidden" in reason(tmp_path, name, hidden="4097")


def test_what_a_row_states_of_a_named_model_comes_first(tmp_path: Path) -> None:
    recorded = reference_run("llama3.1-8b").architecture
    assert recorded.rotary_scaling_factor
    learned = row(tmp_path, "Llama-3.1-8B", position="learned", biases="1", norm="pre-layer-norm").architecture
    assert (learned.position.value, learned.rotary_dim, learned.rotary_scaling_factor) == ("learned", None, None)
    assert learned.bias.attention
    packed = row(tmp_path, "Llama-3.1-8B", mean_document="300").architecture
    assert (packed.mask.value, packed.mean_document) == ("causal-documents", 300)
    other = row(tmp_path, "Llama-3.1-8B", vocab="32000", padded_vocab="32256").architecture
    assert (other.vocabulary, other.padded_vocabulary) == (32000, 32256)


def test_expert_parallelism_may_count_tensor_parallel_ranks_too(tmp_path: Path) -> None:
    """Of 256 accelerators with tp2 and pp8, 32 groups of experts need those of tp: each rank has 1 / 32 of them."""
    found = row(tmp_path, "qwen3-235b-a22b", gpus="256", dp="16", tp="2", pp="8", ep="32", global_batch="1024")
    assert (found.layout.data_parallel, found.layout.expert_parallel, found.layout.tensor_parallel) == (1, 16, 2)
    assert "ep 32 = 16 with each expert over tp" in found.assumed
    whole = row(tmp_path, "qwen3-235b-a22b", gpus="256", dp="16", tp="2", pp="8", ep="16", global_batch="1024")
    assert not any(words.startswith("ep ") for words in whole.assumed)
    words = "ep = 3 does not divide dp = 16, nor tp * dp"
    assert reason(tmp_path, "qwen3-235b-a22b", gpus="256", dp="16", tp="2", pp="8", ep="3") == words


def test_chunks_for_embedding_and_head_alone_say_how_layers_are_dealt(tmp_path: Path) -> None:
    cells = {"gpus": "1024", "dp": "8", "tp": "8", "pp": "16", "vpp": "8", "global_batch": "1024"}
    found = row(tmp_path, "Llama-3.1-405B", **cells)
    assert found.layout.stage_assignment.value == "layers-and-tables"
    assert "stage_assignment = layers-and-tables" in found.assumed
    assert "stage_assignment = layers" in row(tmp_path, "Llama-3.1-405B", **cells | {"vpp": "1"}).assumed
    assert "at most architecture.layers = 126" in reason(
        tmp_path, "Llama-3.1-405B", **cells | {"stage_assignment": "layers"}
    )


def test_latent_attention_has_heads_of_its_own(tmp_path: Path) -> None:
    assert row(tmp_path, "deepseek-v3", head_dim="192").architecture.head_dim == 192
    words = "head_dim: expected 192, 64 of them rotated, of latent attention; got '128'"
    assert reason(tmp_path, "deepseek-v3", head_dim="128") == words


@pytest.mark.parametrize(("vocab", "tokens"), [("1024", 1024), ("200000", 151936)])
def test_a_vocabulary_of_a_recorded_mixture_may_be_smaller_or_padded(tmp_path: Path, vocab: str, tokens: int) -> None:
    found = row(tmp_path, "qwen3-30b-a3b", vocab=vocab).architecture
    assert (found.padded_vocabulary, found.vocabulary) == (int(vocab), tokens)
