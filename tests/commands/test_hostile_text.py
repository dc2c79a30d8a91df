"""Names, titles and keys of other people's files reach no terminal as commands, and no spreadsheet as formulas."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from suite.__main__ import COMMANDS, main
from suite.commands import exit_codes
from suite.paths import ROOT
from tests.support.configurations import PUBLISHED
from tests.support.refusals import RECORDED, only_line
from tests.support.short_run_files import short_run_file

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
TITLE = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202e"  # as TOML writes it


def hostile_run(directory: Path) -> Path:
    path = short_run_file(directory / "run.toml")
    path.write_text(path.read_text(encoding="utf-8").replace('title = "short"', f'title = "{TITLE}"'), encoding="utf-8")
    return path


def hostile_recorded(directory: Path) -> Path:
    """A whole run whose title, document and notes are hostile, in a file with a hostile name."""
    path = directory / f"x{HOSTILE}.toml"
    path.write_text(RECORDED.replace('note = "', f'note = "{TITLE}'), encoding="utf-8")
    return path


def hostile_table(directory: Path) -> Path:
    path = directory / "table.csv"
    columns = f"model,gpu,gpus,tp,pp,dp,micro_batch,global_batch,step_time_s,{HOSTILE}"
    path.write_text(f"{columns}\nllama2-7b,h100-sxm,8,1,1,8,1,128,10.0,=HYPERLINK(1){HOSTILE}\n", encoding="utf-8")
    return path


def hostile_configuration(directory: Path) -> Path:
    path = directory / "config.json"
    values, _ = next(iter(PUBLISHED.values()))
    path.write_text(json.dumps({**values, "_name_or_path": HOSTILE, f"key{HOSTILE}": 1}), encoding="utf-8")
    return path


def asked(directory: Path) -> list[list[str]]:
    run, recorded = str(hostile_run(directory)), str(hostile_recorded(directory))
    table, configuration = str(hostile_table(directory)), str(hostile_configuration(directory))
    return [
        ["show", run],
        ["show", run, "--json"],
        ["predict", recorded],
        ["show", recorded],
        ["predict", f"nothing{HOSTILE}"],
        ["predict", f"nothing{HOSTILE}.toml"],
        [f"nothing{HOSTILE}"],
        ["plan", "gpt2-124m", "--on", f"gpu{HOSTILE}"],
        ["fit", run, "--gpus", "1", "--on", "h100-sxm", "--fix", HOSTILE],
        ["import", configuration],
        ["import", configuration, "--output", str(directory / f"y{HOSTILE}.toml")],
        ["validate", table],
        ["validate", table, "--all"],
        ["results", "list", "--results", str(directory / HOSTILE)],
        ["results", "show", HOSTILE, "--results", str(directory)],
        ["runs", f"--{HOSTILE}"],
    ]


def test_no_command_passes_on_a_control_character(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words in asked(tmp_path):
        main(words)
        printed = "".join(capsys.readouterr())
        if any(letter in printed for letter in "\x1b\x07\x9b\u202e"):
            wrong.append((words[:2], [line for line in printed.splitlines() if "\x1b" in line or "\x9b" in line][:1]))
    assert wrong == []


def test_a_written_table_has_no_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = hostile_table(tmp_path)
    for option in ("--write", "--as-read"):
        written = tmp_path / f"out{option}.csv"
        assert main(["validate", str(table), option, str(written)]) in (0, 1, 3), capsys.readouterr()
        cells = [cell for line in csv.reader(written.read_text(encoding="utf-8").splitlines()) for cell in line]
        assert not [cell for cell in cells if cell.startswith("=")]
        assert any(cell.startswith("'=HYPERLINK") for cell in cells)


@pytest.mark.parametrize("words", [["runs"], ["predict", "gpt2-124m"], ["show", "gpt2-124m"], ["--help"]])
@pytest.mark.parametrize("columns", ["0", "1", "7", "99999999", "-3", "x"])
def test_any_number_of_columns_prints(
    words: list[str], columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 0
    assert capsys.readouterr().out


def test_a_name_that_is_not_utf_8_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.toml")
    shutil.copy(ROOT / "reference_runs/runs/gpt2_124m.toml", name)
    for command in COMMANDS:
        assert main([command, name]) == exit_codes.BAD_INPUT
        line = only_line(capsys.readouterr().err)
        assert line.startswith("command line: not UTF-8; got ")
        assert line.endswith("caf\\udce9.toml, allowed: names of files in UTF-8")
