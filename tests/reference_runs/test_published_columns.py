"""Columns as people call them, throughputs in place of the time of a step, and the columns of a mixture of experts."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.published import PublishedRow, load_table
from reference_runs.published_columns import (
    BATCH_TOKENS,
    MEMORY,
    MEMORY_GB,
    NEEDED,
    OPTIONAL,
    STEP,
    STEP_MS,
    absent,
    columns_of,
    named_columns,
)
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
    with pytest.raises(InputError, match="column given twice; got 'global_batch' as GBS, Global batch size"):
        load_table(written(tmp_path / "own.csv", less | {"GBS": "256", "Global batch size": "256"}))


def test_every_other_name_means_one_column_and_is_none_itself() -> None:
    names = [*NEEDED, *OPTIONAL]
    assert columns_of(names) == names
    assert columns_of(["colour", "Model TFLOP / sec / GPU"]) == ["colour", "Model TFLOP / sec / GPU"]
    assert absent(columns_of([NVIDIAS.get(column, column) for column in NEEDED])) == []


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("seq_len", "Seq. Length|SeqLen|SeqLen (T)|Sequence Length (tokens)|max_seq_len"),
        ("gpus", "# of GPUs|# GPUs|#GPU|n_gpu|number of GPUs|Num GPUs|Total GPUs"),
        ("gpu", "GPU|System|Hardware|GPU model"),
        ("model", "Model name|# model"),
        ("layers", "n_layer|# layers|number of layers|num layers"),
        ("hidden", "n_embd|hidden dim"),
        ("heads", "n_head|# attention heads"),
        ("tp", "TP size|TP degree|tensor parallelism|tensor-model-parallel-size|# TP"),
        ("pp", "PP size|pipeline_model_parallel_size|Pipeline Parallelism"),
        ("cp", "CP size|context parallelism"),
        ("vpp", "VP|vpp_size|virtual stages"),
        ("micro_batch", "MicroBatchSize|micro batch (size)|MBS"),
        ("global_batch", "GlobalBatchSize|Global batch size (sequences)|global_train_batch_size"),
        (BATCH_TOKENS, "Global batch (tokens)|global_batch_tokens|GlobalBatchSize (T)"),
        (STEP, "Step time (s)|Step Time [s]|step_time|sec/step|s/step|iteration_time|step time (seconds)"),
        (STEP_MS, "Step time (ms)|step_time_ms|iteration_time_ms"),
        ("measured_tokens_per_s", "Throughput (tokens/s)|Throughput (T/s)|tok/s|Tokens/sec"),
        ("measured_tokens_per_s_per_gpu", "tok/s/GPU|Tokens/s/GPU|Throughput (T/s/GPU)"),
        ("measured_samples_per_s", "Throughput (S/s)|Samples/sec"),
        (MEMORY, "peak memory (GiB)|memory_gib"),
        (MEMORY_GB, "Memory (GB)|Peak memory (GB)"),
        ("recompute", "recomputation|activation_checkpointing|activation recomputation|recompute_granularity"),
        ("zero_stage", "zero|ZeRO|zero_optimization_stage|Sharding Strategy"),
        ("sp", "sequence_parallel|Sequence Parallelism"),
        ("inter_link", "interconnect|Network"),
        ("dtype", "data_type|Data type"),
        ("framework_version", "framework version"),
    ],
)
def test_names_of_a_column_in_configurations_and_tables_are_understood(column: str, names: str) -> None:
    for name in names.split("|"):
        assert columns_of([name]) == [column], name


@pytest.mark.parametrize("name", ["Nodes", "etp", "MFU (%)", "batch size", "Throughput", "params", "GPU memory", "h"])
def test_names_of_no_column_or_of_several_are_not_read(name: str) -> None:
    named = named_columns([f" {name} ", "TP", ""])
    assert named == ([name, "tp", ""], [name], [])


def test_a_word_of_several_meanings_counts_where_no_other_names_the_column_and_is_said(tmp_path: Path) -> None:
    assert columns_of(["System", "gpu_type", "Network", "Step time"]) == ["System", "gpu", "inter_link", STEP]
    assert named_columns(["Hardware", "step_time", "Step time (s)"]) == (
        *(["gpu", "step_time", STEP], ["step_time"]),
        ["column Hardware = gpu"],
    )
    renamed = {{"gpu": "Hardware", STEP: "Step time"}.get(column, column): text for column, text in CELLS.items()}
    assert row(tmp_path, renamed).assumed[:2] == ("column Hardware = gpu", f"column Step time = {STEP}")
    with pytest.raises(InputError, match="column given twice; got 'gpu' as Hardware, System"):
        load_table(written(tmp_path / "own.csv", renamed | {"System": "h100"}))


def test_times_in_milliseconds_and_memory_in_units_of_1000_are_converted(tmp_path: Path) -> None:
    less = {name: text for name, text in CELLS.items() if name != STEP}
    found = row(tmp_path, less | {"Step time (ms)": "9,500 ms", "Peak memory (GB)": "64"})
    assert (found.step_seconds, found.peak_bytes) == (9.5, 64e9)
    found = row(tmp_path, CELLS | {STEP_MS: "9500", MEMORY: "60", MEMORY_GB: "64"})
    assert (found.step_seconds, found.peak_bytes) == (10, 60 * 2**30)


def test_tokens_of_a_batch_are_divided_by_the_sequence(tmp_path: Path) -> None:
    less = {name: text for name, text in CELLS.items() if name != "global_batch"}
    found = row(tmp_path, less | {"Global batch (tokens)": "1,048,576"})
    assert found.recipe.global_batch == 256
    assert f"global_batch = {BATCH_TOKENS} / seq_len = 256" in found.assumed
    words = f"{BATCH_TOKENS} = 1000000 is no multiple of seq_len = 4096"
    assert reason(tmp_path, less | {BATCH_TOKENS: "1000000"}) == words
    assert row(tmp_path, CELLS | {BATCH_TOKENS: "7"}).recipe.global_batch == 256
    assert reason(tmp_path, less | {BATCH_TOKENS: ""}) == "global_batch is blank"


def test_a_version_in_a_column_of_its_own_belongs_to_the_framework(tmp_path: Path) -> None:
    assert row(tmp_path, CELLS | {"framework": "NeMo", "framework version": "24.07"}).framework == "NeMo 24.07"
    assert row(tmp_path, CELLS | {"framework": "NeMo 24.07", "framework version": "24.07"}).framework == "NeMo 24.07"
    assert row(tmp_path, CELLS | {"framework": "NeMo", "framework version": "n/a"}).framework == "NeMo"


@pytest.mark.parametrize("blank", [("tp", "pp"), ("tp",), ("pp",)])
def test_a_table_without_tensor_or_pipeline_parallelism_is_not_split(tmp_path: Path, blank: tuple[str, ...]) -> None:
    cells = CELLS | {"tp": "1", "pp": "1", "dp": ""}
    expected = row(tmp_path, cells)
    for found in (
        row(tmp_path, {column: text for column, text in cells.items() if column not in blank}),
        row(tmp_path, cells | dict.fromkeys(blank, "")),
    ):
        assert found.layout == expected.layout
        assert set(found.assumed) - set(expected.assumed) == {f"{column} = 1" for column in blank}
    assert "dp * tp * pp * cp = 16, but gpus = 64" in reason(tmp_path, CELLS | {"tp": "", "pp": ""})


def test_a_blank_split_of_a_recorded_run_that_is_split_is_refused(tmp_path: Path) -> None:
    shape = dict.fromkeys(("layers", "hidden", "heads", "vocab", "seq_len"), "")
    assert reason(tmp_path, CELLS | shape | {"model": "grok-1", "tp": ""}) == "tp is blank, and grok-1 has 4"
    assert reason(tmp_path, CELLS | shape | {"model": "grok-1", "pp": ""}) == "pp is blank, and grok-1 has 8"


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    table = load_table(written(tmp_path / "own.csv", CELLS | {"ETP": "1", "GBS": "7", "nodes": "8"}))
    assert table.unread == ("ETP", "GBS", "nodes")


def test_a_table_of_llm_foundry_is_read(tmp_path: Path) -> None:
    cells = {
        **{"Model": "7b", "SeqLen (T)": "2048", "# GPUs": "8", "GPU": "h100_80gb", "MFU": "42.57", "HFU": "42.57"},
        **{"MicroBatchSize": "6", "GradAccum": "3", "GlobalBatchSize": "144", "Throughput (S/s)": "39"},
        **{"Throughput (T/s)": "80,000", "Throughput (T/s/GPU)": "10,000", "GlobalBatchSize (T)": "294912"},
        **{"Precision": "bf16", "MP Mode": "PURE", "Sharding Strategy": "FULL_SHARD"},
        **{"Activation Checkpointing": "False", "Activation CPUOffload": "False", "NumParams": "6658859008"},
        **{"n_layers": "32", "d_model": "4096", "n_heads": "32", "vocab_size": "50368"},
    }
    found = row(tmp_path, cells)
    assert (found.layout.zero_stage, found.layout.ranks, found.layout.recomputation) == (3, 8, "none")
    assert found.step_seconds == pytest.approx(144 * 2048 / 80_000)


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
        ({"experts_per_token": "8"}, "experts is blank, but experts_per_token is 8"),
        ({"expert_ffn_hidden": "1024"}, "experts is blank, but expert_ffn_hidden is 1024"),
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


@pytest.mark.parametrize("name", ["network_bytes_per_second", "Network_Bytes_Per_Second", "network bytes per second"])
def test_a_columns_own_name_is_read_in_any_case(tmp_path: Path, name: str) -> None:
    table = load_table(written(tmp_path / "own.csv", CELLS | {name: "1e11"}))
    assert table.rows[0].network_bytes_per_second == 1e11
    assert name not in table.unread
