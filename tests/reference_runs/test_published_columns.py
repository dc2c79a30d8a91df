"""Columns as people call them, throughputs in place of the time of a step, and the columns of a mixture of experts."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_columns import NEEDED, OPTIONAL, STEP, absent, columns_of
from reference_runs.run import QueryKeyNorm

CELLS = {
    **{"model": "my own", "layers": "32", "hidden": "4096", "heads": "32", "vocab": "32000", "seq_len": "4096"},
    **{"gpu": "h100", "gpus": "64", "dp": "16", "tp": "4", "pp": "1"},
    **{"global_batch": "256", "micro_batch": "1", STEP: "10"},
}
# the header of a table of NVIDIA's
NVIDIAS = {
    **{"layers": "num_layers", "hidden": "Hidden Size", "heads": "num-attention-heads", "vocab": "Vocab size"},
    **{"gpus": "#-GPUs", "global_batch": "GBS", "micro_batch": "MBS", "seq_len": "Sequence Length"},
}
# Qwen3-30B-A3B as a configuration has it
QWEN = {
    **{"model": "mine", "layers": "48", "hidden": "2048", "heads": "32", "num_key_value_heads": "4", "head_dim": "128"},
    **{"num_experts": "128", "num_experts_per_tok": "8", "moe_intermediate_size": "768", "vocab_size": "151936"},
    **{"tp": "1", "dp": "64", "ep": "8"},
}


def written(path: Path, cells: dict[str, str]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(cells))
        writer.writeheader()
        writer.writerow(cells)
    return path


def row(tmp_path: Path, cells: dict[str, str]) -> PublishedRow:
    (found,) = load_table(written(tmp_path / "own.csv", cells)).rows
    return found


def reason(tmp_path: Path, cells: dict[str, str]) -> str:
    (found,) = load_table(written(tmp_path / "own.csv", cells)).skipped
    return found.reason


def test_a_column_is_found_in_any_case_and_whatever_stands_between_its_words(tmp_path: Path) -> None:
    as_written = {"seq_len": " Seq Len", "gpu": "GPU", "global_batch": "Global-Batch", "micro_batch": "MICRO batch"}
    renamed = {as_written.get(column, column): text for column, text in CELLS.items()}
    assert row(tmp_path, renamed) == row(tmp_path, CELLS)
    with pytest.raises(InputError, match="column given twice; got 'seq_len'"):
        load_table(written(tmp_path / "own.csv", CELLS | {"Seq-Len": "1"}))


def test_other_names_of_a_column_are_understood(tmp_path: Path) -> None:
    renamed = {NVIDIAS.get(column, column): text for column, text in CELLS.items()}
    assert row(tmp_path, renamed) == row(tmp_path, CELLS)


def test_another_name_beside_the_columns_own_is_no_column(tmp_path: Path) -> None:
    assert row(tmp_path, CELLS | {"GBS": "7", "tokens/s": "1"}) == row(tmp_path, CELLS)
    assert columns_of(["global_batch", "GBS"]) == ["global_batch", "GBS"]


def test_two_other_names_of_one_column_are_refused(tmp_path: Path) -> None:
    less = {column: text for column, text in CELLS.items() if column != "global_batch"}
    with pytest.raises(InputError, match="column given twice; got 'global_batch'"):
        load_table(written(tmp_path / "own.csv", less | {"GBS": "256", "Global batch size": "256"}))


def test_every_other_name_means_one_column_and_is_none_itself() -> None:
    names = [*NEEDED, *OPTIONAL]
    assert columns_of(names) == names
    assert columns_of(["colour", "Model TFLOP / sec / GPU"]) == ["colour", "Model TFLOP / sec / GPU"]
    assert absent(columns_of([NVIDIAS.get(column, column) for column in NEEDED])) == []


@pytest.mark.parametrize(
    ("column", "rate"),
    [
        ("measured_tokens_per_s", 256 * 4096 / 8),
        ("tokens/s", 256 * 4096 / 8),
        ("measured_tokens_per_s_per_gpu", 256 * 4096 / 8 / 64),
        ("Tokens / sec / GPU", 256 * 4096 / 8 / 64),
        ("tokens per second per gpu", 256 * 4096 / 8 / 64),
        ("samples/sec", 256 / 8),
    ],
)
def test_a_throughput_says_the_time_of_a_step(tmp_path: Path, column: str, rate: float) -> None:
    less = {name: text for name, text in CELLS.items() if name != STEP}
    assert row(tmp_path, less | {column: repr(rate)}).step_seconds == pytest.approx(8)
    assert row(tmp_path, CELLS | {STEP: "", column: repr(rate)}).step_seconds == pytest.approx(8)
    assert row(tmp_path, CELLS | {column: repr(rate)}).step_seconds == 10  # which is the time itself
    assert reason(tmp_path, less | {column: ""}).startswith(f"{STEP} and measured_mem_gib_per_gpu are blank")
    assert "expected a number" in reason(tmp_path, less | {column: "fast"})


def test_the_columns_of_a_mixture_of_experts_describe_a_recorded_one(tmp_path: Path) -> None:
    shared = {column: text for column, text in CELLS.items() if column not in ("vocab", *QWEN)}
    found = row(tmp_path, shared | QWEN)
    recorded = reference_run("qwen3-30b-a3b").architecture
    no_effect = ("gate", "balancing", "auxiliary_loss_weight", "rotary_base", "norm_epsilon")
    expected = {name: getattr(recorded, name) for name in recorded.__struct_fields__ if name not in no_effect}
    expected |= {"query_key_norm": QueryKeyNorm.NONE}  # for which there is no column
    assert {name: getattr(found.architecture, name) for name in expected} == expected
    assert (found.layout.data_parallel, found.layout.expert_parallel) == (8, 8)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ({"experts_per_token": "4"}, {"experts_per_token": 4}),
        ({"experts": "16"}, {"experts": 16}),
        ({"expert_ffn_hidden": "512", "shared_experts": "1"}, {"expert_ffn_hidden": 512, "shared_experts": 1}),
        ({"dense_layers": "2", "ffn_hidden": "9000"}, {"dense_layers": 2, "ffn_hidden": 9000}),
    ],
)
def test_columns_change_what_a_recorded_mixture_has(
    tmp_path: Path, cells: dict[str, str], names: dict[str, object]
) -> None:
    shape = ("layers", "hidden", "heads", "vocab", "seq_len")
    named = {column: text for column, text in CELLS.items() if column not in shape} | {"model": "mixtral-8x7b"}
    recorded = reference_run("mixtral-8x7b").architecture
    assert row(tmp_path, named | cells).architecture == msgspec.structs.replace(recorded, **names)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"experts": "8"}, "experts_per_token is blank"),
        (
            {"experts": "8", "experts_per_token": "9"},
            "architecture.experts_per_token; got 9, allowed: at most experts = 8",
        ),
        ({"experts": "-1"}, "experts: expected a number from 0 to 1e+18; got '-1'"),
        ({"model": "mixtral-8x7b", "experts": "1"}, "experts = 1, but mixtral-8x7b has 8"),
        (
            {"experts": "8", "experts_per_token": "2", "biases": "1"},
            "architecture.feed_forward_bias; got none, allowed: false with experts",
        ),
    ],
)
def test_what_is_no_mixture_is_refused(tmp_path: Path, cells: dict[str, str], words: str) -> None:
    assert words in reason(tmp_path, CELLS | {"ffn_hidden": "1024"} | cells)


@pytest.mark.parametrize("experts", ["", "0", "1"])
def test_no_experts_and_one_are_a_dense_model(tmp_path: Path, experts: str) -> None:
    dense = CELLS | {"experts": experts, "experts_per_token": "", "expert_ffn_hidden": ""}
    assert row(tmp_path, dense) == row(tmp_path, CELLS)
