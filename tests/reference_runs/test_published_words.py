"""Files, columns, numbers and words of a table as people write them; odd_tables.toml has whole tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator, worded_accelerator
from reference_runs.errors import InputError
from reference_runs.published import load_table
from reference_runs.published_as_written import read_table_file
from reference_runs.published_cells import MEMORY, NEEDED, OPTIONAL, STEP, UnusableError
from reference_runs.published_readings import absent, named_columns, read_cells
from reference_runs.published_shape import named_run, tabled_shape
from reference_runs.published_words import dtype_named, worded_rate
from reference_runs.stack import stack_of

TOKENS, TOKENS_OF_ONE = "measured_tokens_per_s", "measured_tokens_per_s_per_gpu"
WORDS = tomllib.loads(Path(__file__).with_name("odd_words.toml").read_text(encoding="utf-8"))


def gigabytes_per_second(text: str) -> str | None:
    found = worded_rate(text, 8)
    return found and f"{found.bytes_per_second / 1e9:.6g}"


READERS: dict[str, Callable[[str], str | None]] = {
    "columns": lambda text: named_columns([text]).columns[0],
    "models": named_run,
    "frameworks": lambda text: stack_of(text).name,
    "accelerators": lambda text: accelerator(text).name,
    "gpus": lambda text: (found := worded_accelerator(text)) and found.name,
    "dtypes": dtype_named,
    "networks": gigabytes_per_second,
}
NUMBERS = [
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
    (TOKENS_OF_ONE, "11,000 tok/s/GPU", ",", "11000"),
    (MEMORY, "63.5 GiB", ",", "63.5"),
    ("zero_stage", "1.0", ",", "1"),
    ("tp", "08", ",", "08"),
]
NO_NUMBERS = ["2.048,5", "0,95", "1,23", "12,3456", "1,234,56", "950 ms", "8x", "-4", "fast"]
TWO_READINGS = [
    ("vocab", "50.000", ";", "50 or 50000"),
    ("vocab", "50.257", "\t", "50.257 or 50257"),
    ("vocab", "50,000", ";", "50000 or 50"),
    ("seq_len", "2.048", ";", "2.048 or 2048"),
    (TOKENS, "12,345", ";", "12345 or 12.345"),
    (TOKENS, "12.345", "\t", "12.345 or 12345"),
    (STEP, "1,234", ",", "1234 or 1.234"),
    (STEP, "1,234", "\t", "1234 or 1.234"),
]
PLAIN = f"model,gpu,gpus,dp,tp,pp,global_batch,micro_batch,{STEP}\nLlama-3.1-8B,h100,8,8,1,1,8,1,1\n"


def columns_of(header: list[str]) -> list[str]:
    return named_columns(header).columns


def said(column: str, text: str, separator: str = ",") -> str:
    return read_cells({column: text}, separator)[0][column]


def test_words_mean_what_people_mean_by_them() -> None:
    assert WORDS.keys() == READERS.keys()
    read = [
        (kind, text, READERS[kind](text), meaning or None)
        for kind, meanings in WORDS.items()
        for meaning, texts in meanings.items()
        for text in texts
    ]
    assert [each for each in read if each[2] != each[3]] == []
    upper = {text: dtype_named(text.upper()) for texts in WORDS["dtypes"].values() for text in texts}
    assert upper == {text: meaning or None for meaning, texts in WORDS["dtypes"].items() for text in texts}


def test_a_columns_own_name_means_itself_and_names_of_none_or_of_several_are_not_read() -> None:
    assert columns_of([*NEEDED, *OPTIONAL]) == [*NEEDED, *OPTIONAL]
    for name in ("Nodes", "MFU (%)", "batch size", "Throughput", "params", "GPU memory", "h", "colour"):
        assert named_columns([f" {name} ", "TP", ""]) == ([name, "tp", ""], [name], [])
    assert absent(columns_of(["num_layers", "Hidden Size", "n_head", "Vocab size", "GPUs", "GBS", "s/step"])) == [
        *("seq_len", "gpu", "micro_batch")
    ]


def test_another_name_counts_where_no_better_one_names_the_column() -> None:
    assert columns_of(["global_batch", "GBS"]) == ["global_batch", "GBS"]
    assert columns_of(["System", "gpu_type", "Network", "Step time"]) == ["System", "gpu", "inter_link", STEP]
    assert named_columns(["Hardware", "step_time", "Step time (s)"]) == (
        *(["gpu", "step_time", STEP], ["step_time"]),
        ["column Hardware = gpu"],
    )


def test_a_number_is_read_without_its_marks_and_unit_and_what_is_none_stays_as_it_is() -> None:
    cases = [*NUMBERS, *((STEP, text, ",", text) for text in NO_NUMBERS)]
    read = [(each, *read_cells({each[0]: each[1]}, each[2])) for each in cases]
    assert [each for each in read if (each[1][each[0][0]], each[2]) != (each[0][3], [])] == []


def test_a_number_of_two_readings_is_refused_with_both() -> None:
    for column, text, separator, readings in TWO_READINGS:
        words = f"{column}: expected a number with one reading; got '{text}', which is {readings}"
        with pytest.raises(UnusableError, match=f"^{re.escape(words)}$"):
            said(column, text, separator)


def test_three_digits_after_a_comma_are_decimals_of_a_time_between_semicolons_and_that_is_said() -> None:
    assert read_cells({STEP: "1,234"}, ";") == ({STEP: "1.234"}, [f"{STEP} 1,234 = 1.234"])


@given(st.integers(1, 10**8), st.sampled_from(["{:,}", "{}", "{}.0", "{} ", "{:_}"]))
def test_an_integer_in_a_file_of_commas_is_that_integer(number: int, form: str) -> None:
    assert said("vocab", form.format(number).strip()) == str(number)


@given(st.floats(1e-6, 1e6))
def test_a_decimal_comma_between_semicolons_says_the_same_as_a_point(number: float) -> None:
    text = f"{number:.6f}"
    assert float(said(STEP, text.replace(".", ","), ";")) == float(text)


def test_words_for_nothing_are_blank_in_any_column_and_not_noted() -> None:
    choices = ("recompute", "product_format")  # of which none is one
    for blank in ("n/a", "N/A", "NA", "-", "None", "null", "NaN", "?", "\u2013"):
        read, notes = read_cells(dict.fromkeys(OPTIONAL, blank), ",")
        assert notes == []
        assert {text for column, text in read.items() if column not in choices} == {""}
        assert [read[column] for column in choices] == [blank if blank == "None" else ""] * 2


def test_only_the_accelerators_of_one_host_of_several_become_all() -> None:
    for name in ("gb200", "gb300", "h100-sxm"):
        joined = {counted: accelerator(name).board.joined(counted) for counted in (1, 2, 4, 8, 36, 72)}
        assert joined == {counted: counted for counted in joined} | ({4: 72} if name != "h100-sxm" else {})


def test_models_that_no_shipped_table_names_have_no_shape() -> None:
    assert [tabled_shape(model) for model in ("", "MPT-8b", "7b", "GPT-18B", "GPT-18.4B")] == [None] * 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_is_read_however_its_file_is_encoded(tmp_path: Path, encoding: str, separator: str) -> None:
    data = PLAIN.replace(",", separator).encode(encoding)
    (tmp_path / "own.csv").write_bytes(b"\xfe\xff" * (encoding == "utf-16-be") + data)
    assert read_table_file(tmp_path / "own.csv") == (
        *(PLAIN.splitlines()[0].split(","), separator),
        [(2, PLAIN.splitlines()[1].split(","))],
    )


def test_a_file_is_kept_as_it_is_worded(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("# ours\nGBS; TP \n 1,5;2;;\n\n;;\n3;4;5\n", encoding="utf-8")
    assert read_table_file(tmp_path / "own.csv") == (
        *(["GBS", " TP "], ";"),
        [(3, [" 1,5", "2"]), (6, ["3", "4", "5"])],
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\x80", "expected a text file; got byte 0xff in line 1, allowed: UTF-8, or UTF-16 as Excel saves it"),
        (PLAIN.replace("Llama", "gr\u00fcn").encode("latin-1"), "expected a text file; got byte 0xfc in line 2, "),
        (",".join((*NEEDED, "tp")).encode(), "column given twice; got 'tp'"),
        (",".join(NEEDED).encode() + b'\n"' + b"x" * 200_000, "not a table of comma-separated values"),
        (b"TP\n" + b"1\n" * 10_001, "too many rows; allowed: 10,000"),
        (b"layers" + b",c" * 1000, "too many columns; got 1,001, allowed: 1,000"),
        (b"layers" + b";c" * 1000, "too many columns; got 1,001, allowed: 1,000"),
        (b"layers" + b",c" * 999, "missing column hidden"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {words}')}"):
        load_table(path)


def test_a_directory_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the table"):
        load_table(tmp_path)
