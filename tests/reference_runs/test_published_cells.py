"""Numbers, blanks and words of a table's cells as people write them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.published import PublishedTable, load_table
from reference_runs.published_cells import read_cells
from reference_runs.published_columns import MEMORY, OPTIONAL, STEP
from reference_runs.published_run import UnusableError

CELLS = {
    **{"model": "my own", "layers": "32", "hidden": "4096", "heads": "32", "vocab": "32000", "seq_len": "4096"},
    **{"gpu": "h100-sxm", "gpus": "64", "dp": "16", "tp": "4", "pp": "1"},
    **{"global_batch": "256", "micro_batch": "1", STEP: "10"},
}
TOKENS = "measured_tokens_per_s"


def table(tmp_path: Path, cells: dict[str, str], separator: str = ",") -> PublishedTable:
    path = tmp_path / "own.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(cells), delimiter=separator)
        writer.writeheader()
        writer.writerow(cells)
    return load_table(path)


def said(column: str, text: str, separator: str = ",") -> str:
    return read_cells({column: text}, separator)[0][column]


def noted(column: str, text: str, separator: str = ",") -> list[str]:
    return read_cells({column: text}, separator)[1]


@pytest.mark.parametrize(
    ("column", "text", "separator", "number"),
    [
        ("seq_len", "2,048", ",", "2048"),
        ("seq_len", "2,048", ";", "2048"),
        ("vocab", "1,234,567", ",", "1234567"),
        ("vocab", "1,234,567", "\t", "1234567"),
        ("vocab", "1.234.567", ",", "1234567"),
        ("hidden", "11 000", ",", "11000"),
        ("hidden", "11\u202f000", ";", "11000"),
        ("hidden", "11'264", ",", "11264"),
        ("hidden", "8.0", ",", "8"),
        ("hidden", "8,0", ";", "8"),
        ("gpus", "8 GPUs", ",", "8"),
        ("gpus", "1,024 GPUs", ",", "1024"),
        ("global_batch", "256 sequences", ",", "256"),
        (STEP, "0.95s", ",", "0.95"),
        (STEP, "0,95 sec", ";", "0.95"),
        (STEP, "0,95", "\t", "0.95"),
        (STEP, "0,950", ";", "0.95"),
        (STEP, "1.234", ";", "1.234"),
        (STEP, "1e-3", ",", "1e-3"),
        (TOKENS, "12,345.5", ",", "12345.5"),
        (TOKENS, "12.345,5", ";", "12345.5"),
        (TOKENS, "12,345 tokens/s", ",", "12345"),
        (TOKENS, "11 000", ",", "11000"),
        ("measured_tokens_per_s_per_gpu", "11,000 tok/s/GPU", ",", "11000"),
        (MEMORY, "63.5 GiB", ",", "63.5"),
        ("zero_stage", "1.0", ",", "1"),
        ("tp", "08", ",", "08"),
    ],
)
def test_a_number_is_read_without_its_marks_and_unit(column: str, text: str, separator: str, number: str) -> None:
    assert said(column, text, separator) == number
    assert noted(column, text, separator) == []


@pytest.mark.parametrize(
    ("column", "text", "separator", "readings"),
    [
        ("vocab", "50.000", ";", "50 or 50000"),
        ("vocab", "50.257", "\t", "50.257 or 50257"),
        ("vocab", "50,000", ";", "50000 or 50"),
        ("seq_len", "2.048", ";", "2.048 or 2048"),
        (TOKENS, "12,345", ";", "12345 or 12.345"),
        (TOKENS, "12.345", "\t", "12.345 or 12345"),
        (STEP, "1,234", ",", "1234 or 1.234"),
        (STEP, "1,234", "\t", "1234 or 1.234"),
    ],
)
def test_a_number_of_two_readings_is_refused_with_both(column: str, text: str, separator: str, readings: str) -> None:
    with pytest.raises(UnusableError, match=f"^{column}: expected a number with one reading; got '{text}', which is"):
        said(column, text, separator)
    with pytest.raises(UnusableError, match=f"which is {readings}$"):
        said(column, text, separator)


def test_three_digits_after_a_comma_are_decimals_of_a_time_between_semicolons_and_that_is_said() -> None:
    assert said(STEP, "1,234", ";") == "1.234"
    assert noted(STEP, "1,234", ";") == [f"{STEP} 1,234 = 1.234"]


@pytest.mark.parametrize("text", ["2.048,5", "0,95", "1,23", "12,3456", "1,234,56", "950 ms", "8x", "-4", "fast"])
def test_what_is_no_number_stays_as_it_is(text: str) -> None:
    assert said(STEP, text) == text


def test_a_comma_in_what_is_no_number_is_explained(tmp_path: Path) -> None:
    (skipped,) = table(tmp_path, CELLS | {STEP: "2.048,5"}).skipped
    assert skipped.reason == (
        f"{STEP}: expected a number from 0 to 1e+18; got '2.048,5', allowed: a decimal point, or a comma between "
        "semicolons or tabs"
    )


@given(st.integers(1, 10**8), st.sampled_from(["{:,}", "{}", "{}.0", "{} ", "{:_}"]))
def test_an_integer_in_a_file_of_commas_is_that_integer(number: int, form: str) -> None:
    assert said("vocab", form.format(number).strip()) == str(number)


@given(st.floats(1e-6, 1e6))
def test_a_decimal_comma_between_semicolons_says_the_same_as_a_point(number: float) -> None:
    text = f"{number:.6f}"
    assert float(said(STEP, text.replace(".", ","), ";")) == float(text)


@pytest.mark.parametrize("blank", ["n/a", "N/A", "NA", "-", "None", "null", "NaN", "?", "\u2013"])
def test_words_for_nothing_are_blank_in_any_column_and_not_noted(blank: str) -> None:
    columns = [column for column in OPTIONAL if column not in ("recompute", "product_format")]
    read, notes = read_cells(dict.fromkeys(columns, blank), ",")
    assert (set(read.values()), notes) == ({""}, [])
    read, notes = read_cells({"recompute": blank, "product_format": blank}, ",")
    none = blank if blank == "None" else ""
    assert (read, notes) == ({"recompute": none, "product_format": none}, [])


@pytest.mark.parametrize(
    ("column", "texts", "meaning"),
    [
        ("recompute", "1|True|yes|on|block|uniform|full/uniform|enabled|activation checkpointing|Full", "full"),
        ("recompute", "attn|core_attn|selective (core_attn)|attention|sel|Selective", "selective"),
        ("recompute", "0|False|no|off|None", "none"),
        ("zero_stage", "ZeRO-1|zero1|stage 1|1.0|distributed optimizer|ZeRO stage 1", "1"),
        ("zero_stage", "ZeRO-2|Stage2|SHARD_GRAD_OP", "2"),
        ("zero_stage", "FSDP|ZeRO 3|FULL_SHARD", "3"),
        ("norm", "RMSNorm|rms_norm|RMS norm", "pre-rms-norm"),
        ("norm", "LayerNorm|layer_norm", "pre-layer-norm"),
        ("position", "RoPE|Rotary|rotary embeddings", "rotary"),
        ("activation", "silu|SwiGLU", "swiglu"),
        ("activation", "GeGLU", "geglu"),
        ("activation", "gelu_new|gelu_tanh", "gelu-tanh"),
        ("sp", "1.0|on|Y|True", "1"),
        ("sp", "0.0|off|N|False", "0"),
        ("vpp", "0|None|n/a|-|NA|1", "1"),
        ("cp", "0|None|1.0", "1"),
    ],
)
def test_words_mean_what_the_tables_own_do(tmp_path: Path, column: str, texts: str, meaning: str) -> None:
    gated = {"ffn_hidden": "11008"} if column == "activation" else {}
    (expected,) = table(tmp_path, CELLS | gated | {column: meaning}).rows
    for text in texts.split("|"):
        (row,) = table(tmp_path, CELLS | gated | {column: text}).rows
        assert (row.architecture, row.layout) == (expected.architecture, expected.layout), text


def test_words_that_stand_for_others_are_said(tmp_path: Path) -> None:
    words = {"recompute": "core_attn", "zero_stage": "FSDP", "norm": "RMSNorm", "vpp": "0", "sp": "on"}
    (row,) = table(tmp_path, CELLS | words).rows
    assert row.assumed[:4] == (
        "recompute core_attn = selective",
        "zero_stage FSDP = 3",
        "norm RMSNorm = pre-rms-norm",
        "vpp 0 = 1",
    )


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"recompute": "some layers"}, "recompute: 'some layers' is not known; allowed: none, selective, full"),
        ({"zero_stage": "ZeRO-4"}, "zero_stage: expected a number from 0"),
        ({"zero_stage": "HYBRID_SHARD"}, "zero_stage: expected a number from 0"),
        ({"sp": "auto"}, "sp: 'auto' is not known"),
        ({"gpus": "8 nodes"}, "gpus: expected a number from 0 to 1e+18; got '8 nodes'"),
        ({"dp": "0"}, "dp: expected an integer from 1"),
    ],
)
def test_other_words_are_refused(tmp_path: Path, cells: dict[str, str], words: str) -> None:
    (skipped,) = table(tmp_path, CELLS | cells).skipped
    assert words in skipped.reason


def test_a_row_with_every_mark_is_the_row_without(tmp_path: Path) -> None:
    marked = CELLS | {"vocab": "32,000", "hidden": "4 096", "gpus": "64 GPUs", STEP: "10.0 s", "dp": "16.0"}
    (row,), (plain,) = table(tmp_path, marked).rows, table(tmp_path, CELLS).rows
    assert row == plain
    (row,) = table(tmp_path, CELLS | {STEP: "10,0", "seq_len": "4,096"}, ";").rows
    assert row == plain
