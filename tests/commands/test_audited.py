"""`fit DIRECTORY` and `dry-run DIRECTORY`: one table, exit codes, JSON and CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from suite.__main__ import main

RUNS = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
[parallelism]
data_parallel_shard_degree = 8
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "configurations"
    place.mkdir()
    (place / "runs.toml").write_text(RUNS, encoding="utf-8")
    return place


def test_all_that_run_exit_with_0_and_one_that_cannot_with_1(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(directory)]) == 0
    assert "1 file on h100-sxm: 1 runs" in capsys.readouterr().out
    (directory / "alone.toml").write_text(RUNS.replace("= 8", "= 1"), encoding="utf-8")
    (directory / "notes.json").write_text("{}", encoding="utf-8")
    assert main(["fit", str(directory)]) == 1
    shown = capsys.readouterr().out
    assert "3 files on h100-sxm: 1 cannot run, 1 runs, 1 not a configuration" in shown
    assert shown.count("not a configuration") == 2  # the row's verdict, and the count
    assert shown.index("alone.toml") < shown.index("runs.toml") < shown.index("notes.json")


def test_a_misspelled_name_and_the_nearest_one_are_printed_in_full(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RUNS.replace("data_parallel_shard_degree", "data_parallel_shard_degre")
    (directory / "runs.toml").write_text(text, encoding="utf-8")
    assert main(["fit", str(directory)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "data_parallel_shard_degre;" in shown
    assert "data_parallel_shard_degree?" in shown


def test_what_is_not_judged_and_an_empty_directory_exit_with_3(directory: Path, tmp_path: Path) -> None:
    (directory / "unknown.toml").write_text(RUNS.replace("llama3", "nobodys"), encoding="utf-8")
    assert main(["fit", str(directory)]) == 3
    assert main(["fit", str(tmp_path / "configurations" / "..")]) == 3
    (tmp_path / "empty").mkdir()
    assert main(["fit", str(tmp_path / "empty")]) == 3


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_a_configuration_in_place_of_a_run_file_is_named_with_what_reads_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "llama3_8b.toml"
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n', encoding="utf-8")
    assert main([command, str(path)]) == 2
    words = "a configuration of torchtitan, not a run file; allowed: `fit` with its directory"
    assert capsys.readouterr().err == f"error: {path}: {words}\n"
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    assert main([command, str(deepspeed)]) == 2
    assert capsys.readouterr().err == f"error: {deepspeed}: {words.replace('torchtitan', 'DeepSpeed')}\n"
    path.write_text("[model]\n", encoding="utf-8")
    assert main([command, str(path)]) == 2
    assert "unknown key 'model'" in capsys.readouterr().err


def test_dry_run_of_a_directory_is_the_same_table(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(directory), "--json"]) == 0
    fit = capsys.readouterr().out
    assert main(["dry-run", str(directory), "--json"]) == 0
    assert capsys.readouterr().out == fit
    (row,) = map(json.loads, fit.splitlines())
    assert (row["file"], row["read_as"], row["verdict"], row["accelerators"]) == ("runs.toml", "torchtitan", "runs", 8)


def test_csv_has_a_line_a_file_and_no_formula(directory: Path, tmp_path: Path) -> None:
    (directory / "=x.json").write_text("[]", encoding="utf-8")
    assert main(["fit", str(directory), "--csv", str(tmp_path / "rows.csv")]) == 0
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["runs.toml", "'=x.json"]
    assert [row["verdict"] for row in rows] == ["runs", "not a configuration"]


def test_dry_run_of_a_directory_takes_the_options_that_fill_in(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "runs.toml").write_text(RUNS.replace("= 8", "= -1"), encoding="utf-8")
    options = ["--on", "h100-sxm", "--gpus", "16", "--network", "400", "--model", "gpt2-124m", "--json"]
    assert main(["fit", str(directory), *options]) == 0
    fit = capsys.readouterr().out
    assert json.loads(fit)["accelerators"] == 16
    assert main(["dry-run", str(directory), *options, "--csv", str(tmp_path / "rows.csv")]) == 0
    assert capsys.readouterr().out == fit
    assert (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "DIRECTORY", "--fix", "zero3"], "is of one run, not of a directory; got --fix"),
        (["fit", "DIRECTORY", "--on", "h1000"], "h1000"),
        (["fit", "DIRECTORY", "--model", "llama3.1-9b"], "--model: unknown model; got llama3.1-9b, did you mean"),
        (["fit", "DIRECTORY", "--model", "none/config.json"], "--model: no such file; got none/config.json"),
        (["dry-run", "DIRECTORY", "--model", "nobodys"], "--model: unknown model; got nobodys"),
        (["fit", "DIRECTORY/none"], "no such file or directory; got"),
        (["fit", "none/none"], "no such file or directory; got none/none"),
        (["fit", "meta-llama/Llama-3.1-8B"], "did you mean llama3.1-8b?"),
        (["fit", "Qwen/Qwen3-99"], "no such file or directory; got Qwen/Qwen3-99"),
        (["dry-run", "./none"], "no such file or directory; got ./none"),
        (["dry-run", "gpt2-124m", "--gpus", "8"], "--gpus: is of a directory"),
        (["dry-run", "DIRECTORY", "--mini"], "is of one run, not of a directory; got --mini"),
        (["fit", "gpt2-124m", "--model", "x"], "--model: is of a directory"),
        (["fit", "DIRECTORY", "--csv", "DIRECTORY/none/rows.csv"], "--csv"),
    ],
)
def test_options_of_one_run_and_of_directories_exclude_each_other(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main([each.replace("DIRECTORY", str(directory)) for each in arguments]) == 2
    assert words in capsys.readouterr().err
