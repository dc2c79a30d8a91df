"""Files that commands are asked to write: none over another unasked, by one check of every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reference_runs.errors import InputError
from suite.commands.new_file import check_new, check_new_directory
from tests.support.configurations import PUBLISHED, written

COMMANDS = {
    "predict gpt2-124m --timeline": ".json",
    "predict gpt2-124m --memory-snapshot": ".pickle",
    "plan gpt2-124m --on h100-sxm --gpus 8 --picture": ".png",
    "dry-run bloom-mini --plot": ".png",
    "dry-run bloom-mini --layout pp2 --schedule": ".png",
    "reproduce bloom-mini --device cpu --layout pp2 --schedule": ".png",
    "reproduce bloom-mini --device cpu --trace": ".json",
    "results show latest --schedule": ".png",
    "results export --out": ".csv",
    "diagnose --run gpt2-124m --step-time 1 --html": ".html",
    "accept --junit": ".xml",
    "regress bloom-mini --junit": ".xml",
    "validate --plot": ".svg",
    "explore gpt2-124m --static": ".html",
    "import config.json --output": ".toml",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_that_exists_stays_and_is_refused_in_a_line(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "config.json", PUBLISHED["llama3.1-8b"][0])
    path = tmp_path / f"mine{COMMANDS[words]}"
    path.write_text("mine", encoding="utf-8")
    line = refused(*words.split(), str(path))
    assert "the file exists, and is not overwritten" in line
    assert line.rstrip().endswith("allowed: a new name, or --force")
    assert path.read_text(encoding="utf-8") == "mine"


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "none")
    for force in (False, True):
        for path in (tmp_path, tmp_path / "none" / "new", tmp_path / "file" / "new", tmp_path / ("a" * 300)):
            with pytest.raises(InputError, match="--here: cannot write: "):
                check_new(path, "--here", force=force)
    for path in (tmp_path / "file", dangling):
        with pytest.raises(InputError, match="exists, and is not overwritten"):
            check_new(path, "--here", force=False)
        check_new(path, "--here", force=True)
    check_new(tmp_path / "new", "--here", force=False)
    check_new(None, "--here", force=False)
    check_new(Path(os.devnull), "--here", force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_directory_with_files_is_refused_and_an_empty_one_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    check_new_directory(tmp_path / "empty", "--here", force=False)
    check_new_directory(tmp_path / "new", "--here", force=False)
    (tmp_path / "file").touch()
    for path, words in (
        (tmp_path, "the directory exists, and is not overwritten"),
        (tmp_path / "file", "no directory"),
        (tmp_path / "none" / "new", "cannot write: No such file"),
        (tmp_path / ("a" * 300), "cannot write: File name too long"),
        (Path("/proc/new"), "cannot write: "),  # of which the rights say that root may
        (Path("/proc/self/fdinfo"), "exists, and is not overwritten"),
    ):
        with pytest.raises(InputError, match=words):
            check_new_directory(path, "--here", force=False)
    with pytest.raises(InputError, match="cannot write: "):
        check_new_directory(Path("/proc/self/fdinfo"), "--here", force=True)
    check_new_directory(tmp_path, "--here", force=True)
    assert [*(tmp_path / "empty").iterdir()] == []
    assert not (tmp_path / "new").exists()
