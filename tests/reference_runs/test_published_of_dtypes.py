"""What the columns `dtype` and `precision` say: words for a dtype or a run file's precision, in either."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.catalog import reference_run
from reference_runs.dtype_words import DTYPES
from reference_runs.published import STEP, PublishedTable, load_table
from reference_runs.run import Precision

CELLS = {
    **{"model": "Llama-3.1-8B", "gpu": "h100", "gpus": "8", "dp": "8", "tp": "1", "pp": "1", "cp": "1"},
    **{"global_batch": "8", "micro_batch": "1", STEP: "1"},
}


def table(tmp_path: Path, cells: dict[str, str]) -> PublishedTable:
    stated = CELLS | cells
    path = tmp_path / "own.csv"
    path.write_text(f"{';'.join(stated)}\n{';'.join(stated.values())}\n", encoding="utf-8")
    return load_table(path)


def formats(tmp_path: Path, **cells: str) -> tuple[str, str]:
    (row,) = table(tmp_path, cells).rows
    return row.recipe.precision.value, row.recipe.product_format.value


def reason(tmp_path: Path, **cells: str) -> str:
    (skipped,) = table(tmp_path, cells).skipped
    return skipped.reason


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "mixtral-8x7b"])
@pytest.mark.parametrize("column", ["dtype", "precision"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("amp_bf16", ("bf16", "none")),
        ("bfloat16", ("bf16", "none")),
        ("BF16", ("bf16", "none")),
        ("bf16 (fp32 grad accum)", ("bf16", "none")),
        ("16-mixed", ("fp16", "none")),
        ("float32", ("fp32", "none")),
        ("FP8", ("bf16", "fp8-delayed")),
        ("bf16 with fp8 current scaling", ("bf16", "fp8-current")),
        *((precision.value, (precision.value, "none")) for precision in Precision),
        ("FP16 gradient copy", ("fp16-gradient-copy", "none")),
    ],
)
def test_both_columns_take_words_and_names(
    tmp_path: Path, model: str, column: str, words: str, expected: tuple[str, str]
) -> None:
    assert formats(tmp_path, **{"model": model, column: words}) == expected


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        ("FP8", "amp_bf16", ("bf16", "fp8-delayed")),
        ("bf16", "fp8", ("bf16", "fp8-delayed")),
        ("fp8-current", "fp8", ("bf16", "fp8-current")),
        ("float16", "fp16-no-master", ("fp16-no-master", "none")),
        ("amp_bf16", "bfloat16", ("bf16", "none")),
    ],
)
def test_both_columns_together_say_products_and_weights(
    tmp_path: Path, dtype: str, precision: str, expected: tuple[str, str]
) -> None:
    assert formats(tmp_path, dtype=dtype, precision=precision) == expected


def test_unknown_and_contradicting_words_are_named(tmp_path: Path) -> None:
    assert reason(tmp_path, dtype="amp_fp9") == f"dtype: 'amp_fp9' is not known; allowed: {', '.join(DTYPES)}"
    unknown = reason(tmp_path, precision="amp_fp9", model="mixtral-8x7b")
    assert unknown.startswith("precision: 'amp_fp9' is not known; allowed: fp32, bf16, fp16, fp16-gradient-copy, ")
    assert "fp8-delayed" in unknown
    assert reason(tmp_path, dtype="fp16", precision="FP8") == "precision: 'FP8' is not what dtype says, fp16"


def test_a_recorded_recipe_keeps_what_the_row_says_nothing_against(tmp_path: Path) -> None:
    recorded = reference_run("deepseek-v3").recipe
    assert (recorded.precision.value, recorded.product_format.value) == ("bf16", "fp8-blockwise")
    row = {"model": "deepseek-v3", "gpus": "8", "ep": "8"}
    assert formats(tmp_path, **row) == ("bf16", "fp8-blockwise")
    assert formats(tmp_path, **row, dtype="amp_bf16") == ("bf16", "none")
    assert formats(tmp_path, **row, dtype="fp8-blockwise") == ("bf16", "fp8-blockwise")
