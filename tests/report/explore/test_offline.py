from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the file needs jinja2, of the group `report`")

from suite.__main__ import main
from suite.report.explore import grid, offline


def test_a_file_is_written_whole_and_its_size_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid.computed_grid, "__kwdefaults__", {"most": 12})
    path = tmp_path / "neox.html"
    assert main(["explore", "gpt-neox-20b", "--static", str(path)]) == 0
    said = capsys.readouterr().out
    size = path.stat().st_size
    assert f"12 states, {size / 1e6:,.1f} MB of at most 10" in said
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=", text)
    assert "default-src 'none'" in text
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_too_large_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid.computed_grid, "__kwdefaults__", {"most": 2})
    monkeypatch.setattr(offline, "MOST_BYTES", 1000)
    assert main(["explore", "gpt-neox-20b", "--static", str(tmp_path / "a.html")]) == 2
    assert "the file would be too large" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, path, words in (
        ("gpt-neox-20b", "page.txt", "expected a file ending in .html"),
        ("gpt-neox-20b", "nowhere/page.html", "cannot write: No such file or directory"),
        ("mixtral-8x7b", "page.html", "no layout and machine are recorded"),
        ("bloom-mini", "page.html", "is for recorded runs"),
    ):
        assert main(["explore", run, "--static", str(tmp_path / path)]) == 2
        assert words in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
