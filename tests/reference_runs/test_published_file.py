"""Files of tables as spreadsheets and people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_runs.errors import InputError
from reference_runs.published import load_table
from reference_runs.published_columns import STEP
from reference_runs.published_file import read_table_file

HEADER = f"model,layers,hidden,heads,seq_len,vocab,dtype,gpu,gpus,dp,tp,pp,global_batch,micro_batch,{STEP}"
ROW = "x,24,2048,16,2048,50304,bf16,h100-sxm,8,8,1,1,64,4,0.95"
PLAIN = f"{HEADER}\n{ROW}\n"


def written(tmp_path: Path, data: str | bytes) -> Path:
    path = tmp_path / "own.csv"
    path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (PLAIN, 2),
        (PLAIN.replace("\n", "\r\n"), 2),
        ("sep=;\n" + PLAIN.replace(",", ";"), 3),
        ("sep=,\r\n" + PLAIN, 3),
        ("SEP=\t\n" + PLAIN.replace(",", "\t"), 3),
        ("# measured in May, on 8 GPUs\n\n# of one node\n" + PLAIN, 5),
        ("# model of ours\n" + PLAIN.replace(",", ";"), 3),
        ("sep=;\n# ours\n" + PLAIN.replace(",", ";"), 4),
        (",,,\n" + PLAIN, 3),
        (PLAIN.replace(",", ";").replace("model", '"Model, as named"'), 2),
        (PLAIN.replace(",", ";").replace(STEP, f"{STEP};notes, and sources").replace("0.95", "0.95;"), 2),
        (PLAIN.replace("model", '"model\nof ours"'), 3),
        (PLAIN.replace("gpus,", "# GPUs,"), 2),
        ("# GPUs," + HEADER.replace("gpus,", "") + "\n8," + ROW.replace("sxm,8,", "sxm,") + "\n", 2),
        (PLAIN.encode("utf-16"), 2),
        (PLAIN.replace(",", "\t").encode("utf-16"), 2),
        (b"\xfe\xff" + PLAIN.encode("utf-16-be"), 2),
        (b"\xef\xbb\xbf" + PLAIN.encode(), 2),
        (PLAIN.replace("0.95", "0.95,"), 2),
        (PLAIN.replace("0.95", "0.95, ,,"), 2),
        (PLAIN.replace(STEP, f"{STEP},").replace("0.95", "0.95,"), 2),
    ],
)
def test_a_table_is_read_however_its_file_is_written(tmp_path: Path, data: str | bytes, line: int) -> None:
    (row,) = load_table(written(tmp_path, data)).rows
    assert (row.line, row.layout.ranks, row.step_seconds, row.architecture.layers) == (line, 8, 0.95, 24)


def test_cells_beyond_the_header_that_say_something_are_refused(tmp_path: Path) -> None:
    (skipped,) = load_table(written(tmp_path, PLAIN.replace("0.95", "0.95,a note"))).skipped
    assert skipped == (2, "16 cells under a header of 15 columns", None, False)


def test_bytes_of_another_encoding_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN.replace("x,", "gr\u00fcn,").encode("latin-1"))
    words = f"^{path}: expected a text file; got byte 0xfc in line 2, allowed: UTF-8, or UTF-16 as Excel saves it$"
    with pytest.raises(InputError, match=words):
        load_table(path)


@pytest.mark.parametrize("data", ["", "\n\n", "# nothing\n", "sep=;\n", "sep=x\n", "a,b\n"])
def test_a_file_without_a_header_lacks_columns(tmp_path: Path, data: str) -> None:
    with pytest.raises(InputError, match="missing column layers, hidden"):
        load_table(written(tmp_path, data))


def test_the_file_is_kept_as_it_is_worded(tmp_path: Path) -> None:
    file = read_table_file(written(tmp_path, "# ours\nGBS; TP \n 1,5;2;;\n\n;;\n3;4;5\n"))
    assert file == (["GBS", " TP "], ";", [(3, [" 1,5", "2"]), (6, ["3", "4", "5"])])


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too many rows; allowed: 10,000"):
        read_table_file(written(tmp_path, "TP\n" + "1\n" * 10_001))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_header_of_a_thousand_columns_is_read_and_a_longer_one_refused(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(separator.join(["layers", *(f"c{number}" for number in range(999))]) + "\n", encoding="utf-8")
    assert len(read_table_file(path).header) == 1000
    path.write_text(separator.join(["layers", *(f"c{number}" for number in range(1000))]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="too many columns; got 1,001, allowed: 1,000"):
        read_table_file(path)
