"""Published results name no path of the machine that made them, and are read as before."""

from __future__ import annotations

import runpy
from pathlib import Path

import msgspec
import pytest

from suite.__main__ import main
from suite.paths import ROOT
from suite.records import store
from suite.records.private_paths import remove_private_paths, without_private_paths
from tests.support.record_halves import begin, end

DIRECTORIES = {
    Path("/home/ada/suite"): "",
    Path("/home/ada/.cache"): "~/.cache/",
    Path("/home/ada"): "~/",
    Path("/scratch"): "",
    Path("/"): "x",
}


def test_a_path_is_shown_from_the_innermost_private_directory_on() -> None:
    other = '"/home/ada2/1" "/mnt/home/ada/1" "~/home/ada/1" "/usr/lib"'
    expected = {
        '"/home/ada/.cache/llm/1.tokens"': '"~/.cache/llm/1.tokens"',
        '"/home/ada/suite/results/machines/1.json"': '"results/machines/1.json"',
        '"File \\"/home/ada/suite/a.py\\", in /home/ada/b.py"': '"File \\"a.py\\", in ~/b.py"',
        other: other,
        '"/scratch/1.json" "/scratch"': '"1.json" "/scratch"',  # right below the root
        '"https://example.com/home/ada/1"': '"https://example.com/home/ada/1"',  # a home that is the root
    }
    for text, public in expected.items():
        assert without_private_paths(text, DIRECTORIES) == public
        assert without_private_paths(public, DIRECTORIES) == public


def test_the_module_as_a_command_rewrites_each_directory_and_says_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "1.json").write_text(f'"{ROOT}/results/1.json"', encoding="utf-8")
    places = [str(tmp_path / name) for name in ("a", "b")]
    monkeypatch.setattr("sys.argv", ["private_paths.py", *places])
    runpy.run_path(str(ROOT / "suite" / "records" / "private_paths.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        f"{number} files without private paths in {place}" for number, place in enumerate(places)
    ]
    assert (tmp_path / "b" / "1.json").read_text(encoding="utf-8") == '"results/1.json"'


def test_a_record_without_private_paths_is_read_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/scratch")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = begin()
    corpus = msgspec.structs.replace(first.corpus, tokens_file=f"{tmp_path}/cache/llm-reference-runs/1.tokens")
    job = msgspec.structs.replace(first.job, directory="/scratch/suite-abc", tokens_file=corpus.tokens_file)
    first = msgspec.structs.replace(first, job=job, corpus=corpus)
    last = end(first.id, profile=f"{ROOT}/results/machines/1.json", log_tail='File "/home/ada/lib/a.py", line 1')
    written = store.Opened(store.records_directory(tmp_path, first.run), first)
    written.close(last)

    assert remove_private_paths(tmp_path) == [written.path, store.end_of(written.path)]
    assert remove_private_paths(tmp_path) == []
    record = store.read(written.path)
    tokens = "~/.cache/llm-reference-runs/1.tokens"
    assert record.begin == msgspec.structs.replace(
        first,
        job=msgspec.structs.replace(job, directory="suite-abc", tokens_file=tokens),
        corpus=msgspec.structs.replace(corpus, tokens_file=tokens),
    )
    assert record.end == msgspec.structs.replace(
        last, profile="results/machines/1.json", log_tail='File "~/lib/a.py", line 1'
    )
    assert main(["results", "show", "latest", "--results", str(tmp_path)]) == 0
    assert first.id in capsys.readouterr().out
