"""What is known of a shipped table holds for rows of the same origin, whatever their file is called."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from reference_runs.published import PublishedTable, load_table
from reference_runs.published_columns import STEP
from reference_runs.published_tables import PUBLISHED, load_tables, same_origin, shipped_tables

CELLS = {
    **{"model": "GPT-h2048-L24", "layers": "24", "hidden": "2048", "heads": "16", "seq_len": "1024", "vocab": ""},
    **{"gpu": "A100-80GB-SXM", "gpus": "8", "dp": "8", "tp": "1", "pp": "1", "global_batch": "64", "micro_batch": "1"},
    **{"framework": "Megatron-DeepSpeed", "dtype": "fp16", STEP: "1"},
}


def own(tmp_path: Path, source: str, **cells: str) -> PublishedTable:
    stated = CELLS | {"source": source} | cells
    path = tmp_path / "own.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(stated))
        writer.writeheader()
        writer.writerow(stated)
    return load_table(path)


@pytest.mark.parametrize("path", shipped_tables(), ids=lambda path: path.stem)
def test_each_row_of_a_shipped_table_names_a_source_of_that_table(path: Path) -> None:
    with open(path, newline="", encoding="utf-8") as file:
        sources = {cells["source"] for cells in csv.DictReader(file)}
    assert sources
    for source in sources:
        origin = same_origin(source)
        assert origin is not None
        assert origin.name == path.stem


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("vTrain ground_truth_single.csv", "vtrain_single_h1024"),
        ("vTrain", "vtrain_multi_small"),
        ("VIA-Research/vTrain, several nodes", "vtrain_multi_small"),
        ("Megatron-LM SC21 Figure 13 (arXiv 2104.04473)", "megatron_sc21_table1"),
        ("Megatron-LM README Jan 2021", "megatron_readme_2021_01"),
        ("MosaicML llm-foundry benchmarking README: H100 80GB BF16", "mosaicml_a100_40gb"),
        ("MosaicML llm-foundry benchmarking README: H100 80GB FP8, several nodes", "mosaicml_h100_fp8"),
        ("HF ultrascale-playbook benchmarks_interactive.html, 80B", "playbook_h100_1b"),
        ("NVIDIA dgxc-benchmarking release 25.02 (llama3.1/README_405b.md)", "dgxc_24_11_bf16"),
        ("MLPerf Training v5.0 (NVIDIA/results/llama31_405b)", "mlperf_gpt3_h100_fp8"),
        ("NVIDIA NeMo performance_summary.md [NeMo25.02]", "nemo_24_07_fp8"),
        ("my own cluster", None),
        ("devtrain runs", None),
        ("", None),
    ],
)
def test_a_source_says_which_table_its_rows_are_like(source: str, name: str | None) -> None:
    origin = same_origin(source)
    assert (origin and origin.name) == name


def test_other_models_of_the_same_origin_are_read_as_the_shipped_ones(tmp_path: Path) -> None:
    source = "vTrain ground_truth_single.csv (VIA-Research/vTrain @f8dda84)"
    table = own(tmp_path, source)
    (row,) = table.rows
    assert (row.table, row.stack, row.composed) == ("own", "megatron-deepspeed", True)
    assert row.architecture.vocabulary == 50257
    assert f"source {source} = vtrain_single_h1024" in row.assumed
    said = "read as the rows of vtrain_single_h1024: source matches '*ground_truth_single*' (1 row)"
    assert table.facts.conventions == (said,)
    (row,) = own(tmp_path, "my cluster").rows
    assert (row.composed, row.architecture.vocabulary, row.origin) == (False, 51200, "")


def test_a_tables_stacks_hold_for_the_releases_that_they_are_for(tmp_path: Path) -> None:
    expected = {
        "NVIDIA NeMo performance_summary.md [NeMo24.07]": "megatron-core-nemo-1",
        "NVIDIA NeMo performance_summary.md [NeMo25.02]": "megatron-core-nemo-2",
        "NVIDIA dgxc-benchmarking release 25.02 (llama3.1/README_70b.md)": "megatron-core-nemo-2",
    }
    for source, stack in expected.items():
        (row,) = own(tmp_path, source, framework="NeMo/Megatron-Bridge", gpu="h100", dtype="fp8").rows
        assert row.stack == stack


def test_what_is_known_of_nemo_does_not_hold_for_other_software_of_the_same_publisher(tmp_path: Path) -> None:
    source = "NVIDIA dgxc-benchmarking release 25.05 (torchtitan)"
    (row,) = own(tmp_path, source, framework="torchtitan", gpu="h100", tp="2", dp="4", dtype="bf16").rows
    assert (row.stack, row.layout.zero_stage, row.layout.sequence_parallel) == ("pytorch", 3, False)


def test_a_name_gives_the_shape_that_a_row_of_the_same_origin_leaves_blank(tmp_path: Path) -> None:
    source = "NVIDIA dgxc-benchmarking release 25.02 (llama3.1/README_8b.md)"
    blank = dict.fromkeys(("layers", "hidden", "heads", "seq_len"), "")
    (row,) = own(tmp_path, source, model="Llama-3.1-8B", gpu="h100", framework="NeMo", dtype="bf16", **blank).rows
    assert (row.architecture.layers, row.architecture.padded_vocabulary) == (32, 128256)


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    {
        "GPT-39.1B": 51200,
        "gpt2-custom": 50304,
        "GPT-2.7B": 51200,
        "GPT-2B": 51200,
        "Llama-3-custom": 128256,
        "LLaMA-13B of ours": 32000,
        "mpt-custom": 50368,
        "Yi-9B": 64000,
        "my own": None,
        "Llama-4-17b": None,
    }.items(),
)
def test_a_blank_vocabulary_is_that_of_the_family(tmp_path: Path, model: str, vocabulary: int | None) -> None:
    table = own(tmp_path, "", model=model, framework="Megatron-LM", ffn_hidden="8192")
    if vocabulary is None:
        (skipped,) = table.skipped
        assert skipped.reason.startswith("vocab is blank")
        return
    (row,) = table.rows
    assert row.architecture.vocabulary == vocabulary
    assert f"vocab = {vocabulary}" in row.assumed


def test_every_table_says_of_which_sources_its_rows_are() -> None:
    assert all(table.sources for table in load_tables().tables)
    assert all(path.parent == PUBLISHED for path in shipped_tables())
