"""What stands for blank cells by a model's family, and by the software that trains it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.published import PublishedRow, load_table
from reference_runs.published_columns import STEP
from reference_runs.run import Activation, Norm, Position, Residual

CELLS = {
    **{"layers": "24", "hidden": "4096", "heads": "32", "vocab": "50304", "seq_len": "2048", "ffn_hidden": "16384"},
    **{"gpu": "h100", "gpus": "8", "dp": "4", "tp": "2", "pp": "1", "global_batch": "8", "micro_batch": "1", STEP: "1"},
}
LLAMA = (Activation.SWIGLU, Position.ROTARY, Norm.PRE_RMS_NORM, Residual.SEQUENTIAL, False, False)
GPT = (Activation.GELU_TANH, Position.LEARNED, Norm.PRE_LAYER_NORM, Residual.SEQUENTIAL, True, True)


def row(tmp_path: Path, model: str, framework: str = "", **cells: str) -> PublishedRow:
    stated = CELLS | {"model": model, "framework": framework} | cells
    path = tmp_path / "own.csv"
    path.write_text(f"{','.join(stated)}\n{','.join(stated.values())}\n", encoding="utf-8")
    (found,) = load_table(path).rows
    return found


@pytest.mark.parametrize(
    ("model", "expected"),
    {
        **dict.fromkeys(("internlm2-20b", "Yi-34B", "01-ai/Yi-9B", "Phi-3-medium", "deepseek-llm-67b"), LLAMA),
        **dict.fromkeys(("Falcon3-10B", "Llama-3.1-Nemotron-51B"), LLAMA),
        **dict.fromkeys(("my own", "MPT-3b", "starcoderbase", "GPT-3B"), GPT),
        "gemma-7b": (Activation.GEGLU_TANH, Position.ROTARY, Norm.PRE_RMS_NORM, Residual.SEQUENTIAL, False, True),
        "OLMo-7B": (Activation.SWIGLU, Position.ROTARY, Norm.PRE_LAYER_NORM, Residual.SEQUENTIAL, False, False),
        "OLMo-2-13B": (Activation.SWIGLU, Position.ROTARY, Norm.OUTPUT_RMS_NORM, Residual.SEQUENTIAL, False, False),
        "falcon-40b": (Activation.GELU_TANH, Position.ROTARY, Norm.PRE_LAYER_NORM, Residual.PARALLEL, False, True),
        "pythia-6.9b": (Activation.GELU_TANH, Position.ROTARY, Norm.PRE_LAYER_NORM, Residual.PARALLEL, True, False),
        "starcoder2-7b": (Activation.GELU_TANH, Position.ROTARY, Norm.PRE_LAYER_NORM, Residual.SEQUENTIAL, True, True),
        "Nemotron-8B": (
            *(Activation.RELU_SQUARED, Position.ROTARY, Norm.PRE_LAYER_NORM, Residual.SEQUENTIAL, False, False),
        ),
        "bloom-7b1": (Activation.GELU_TANH, Position.ALIBI, Norm.PRE_LAYER_NORM, Residual.SEQUENTIAL, True, True),
    }.items(),
)
def test_a_blank_cell_is_as_the_family_has_it(tmp_path: Path, model: str, expected: tuple[object, ...]) -> None:
    shape = row(tmp_path, model).architecture
    found = (shape.activation, shape.position, shape.norm, shape.residual, shape.biases, shape.tied_embeddings)
    assert found == expected


@pytest.mark.parametrize(
    ("model", "kv_heads"),
    [
        ("falcon-7b", 1),
        ("falcon-40b", 8),
        ("starcoder", 1),
        ("starcoder2-3b", 2),
        ("llama 3 custom", 8),
        ("Yi", 32),
        ("Mistral-7B-v0.1", 8),
        ("01-ai/Yi-34B", 8),
        ("Yi-6B", 4),
        ("Qwen2-7B", 4),
        ("Qwen2.5-7B", 4),
        ("Qwen2.5-72B", 8),
        ("Qwen3-8B", 8),
    ],
)
def test_grouped_queries_are_those_of_the_family(tmp_path: Path, model: str, kv_heads: int) -> None:
    found = row(tmp_path, model)
    assert found.architecture.kv_heads == kv_heads
    assert f"kv_heads = {kv_heads}" in found.assumed


@pytest.mark.parametrize(
    ("model", "cells", "width"),
    [
        ("llama 3 custom", {}, 14336),
        ("my Llama-3 of 12 layers", {"hidden": "8192", "heads": "64"}, 28672),
        ("Llama3-custom", {"hidden": "16384", "heads": "128"}, 53248),
        ("Llama-3.2 1B", {"hidden": "2048"}, 8192),
        ("Llama-8B", {"kv_heads": "8", "vocab": "128256"}, 14336),
        ("Llama-8B", {"kv_heads": "8", "vocab": "32000"}, 11008),
        ("Llama-8B", {"vocab": "128256"}, 11008),
        ("Llama-7B", {}, 11008),
        ("Nemotron-8B", {}, 16384),
        ("Mistral-7B", {}, 14336),
    ],
)
def test_a_blank_width_is_that_of_the_generation(tmp_path: Path, model: str, cells: dict[str, str], width: int) -> None:
    found = row(tmp_path, model, **({"ffn_hidden": ""} | cells))
    assert found.architecture.ffn_hidden == width
    assert f"ffn_hidden = {width}" in found.assumed


@pytest.mark.parametrize(("hidden", "width"), [("2048", 8192), ("4096", 14336), ("8192", 28672)])
def test_a_model_of_nanotron_is_a_llama_whatever_its_name(tmp_path: Path, hidden: str, width: int) -> None:
    found = row(tmp_path, "3B", "nanotron v0.5", hidden=hidden, ffn_hidden="")
    shape = found.architecture
    assert (shape.activation, shape.position, shape.norm, shape.residual, shape.biases) == LLAMA[:5]
    assert shape.ffn_hidden == width
    assert found.layout.sequence_parallel
    assert "sp = 1" in found.assumed
    assert not row(tmp_path, "3B", "nanotron", tp="1", dp="8").layout.sequence_parallel
    assert not row(tmp_path, "3B", "nanotron", sp="0").layout.sequence_parallel


def test_a_width_that_no_llama_has_is_not_assumed(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    stated = CELLS | {"model": "3B", "framework": "nanotron", "hidden": "2560", "ffn_hidden": ""}
    path.write_text(f"{','.join(stated)}\n{','.join(stated.values())}\n", encoding="utf-8")
    assert [each.reason for each in load_table(path).skipped] == ["ffn_hidden is blank"]


@pytest.mark.parametrize(
    "model", ["LLaMA-30B", "llama-33b", "CodeLlama-34B", "OpenLLaMA-3B", "llama-350m", "llama-7b-8bit"]
)
def test_a_size_that_begins_with_3_or_8_is_no_generation(tmp_path: Path, model: str) -> None:
    other = row(tmp_path, "llama-13b", ffn_hidden="", vocab="32000").architecture
    found = row(tmp_path, model, ffn_hidden="", vocab="32000").architecture
    assert (found.ffn_hidden, found.kv_heads) == (other.ffn_hidden, other.kv_heads)
    assert row(tmp_path, "my llama-3-8b", ffn_hidden="", vocab="").architecture.ffn_hidden == 14336


@pytest.mark.parametrize(
    ("model", "vocab"), [("llama-7b-8bit", 32000), ("LLaMA-30B", 32000), ("my Llama-3-8B", 128256)]
)
def test_a_blank_vocabulary_is_that_of_the_generation(tmp_path: Path, model: str, vocab: int) -> None:
    assert row(tmp_path, model, vocab="").architecture.padded_vocabulary == vocab
