"""`first-hour` as it is typed: what it runs, prints and leaves, and how it goes on."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.commands import first_hour
from suite.first_hour.result import PartStatus
from suite.machine import packages

QUICK = ["--device", "cpu", "--short", "--no-page"]


@pytest.fixture
def run(capsys, tmp_path):
    """A function that runs `first-hour`: exit code, and what is on stdout and stderr."""

    def ran(*options):
        code = main(["first-hour", "--results", str(tmp_path), *QUICK, *options])
        return code, *capsys.readouterr()

    return ran


def test_parts_are_run_kept_and_not_run_again(tmp_path, run):
    code, out, _ = run("--parts", "environment,rates", "--minutes", "0.1", "--json")
    entry = json.loads(out)
    assert (code, entry["parts"], entry["left"]) == (3, [], ["environment", "rates"])
    code, out, err = run("--parts", "environment,rates")
    assert code in (0, 1)  # 1: this Python lacks a package, which disagrees
    assert [line.split()[1].rstrip(",") for line in out.splitlines()[:2]] == ["environment", "rates"]
    assert "rates: done in" in err
    assert {path.suffix for path in (tmp_path / "first_hour").iterdir()} == {".json", ".out", ".err", ".md"}
    assert "| rates" in (tmp_path / "first_hour" / "SUMMARY.md").read_text()
    assert run("--parts", "environment,rates") == (code, out, "")
    _, out, once_more = run("--parts", "environment,rates", "--again", "rates", "--json")
    assert "rates: done in" in once_more
    assert "environment: done in" not in once_more
    part = json.loads(out)["parts"][1]
    assert (part["part"], part["status"], part["exit_code"]) == ("rates", PartStatus.DONE, 0)
    assert part["says"].startswith("copy ")


def test_the_list_runs_nothing(tmp_path, run):
    code, out, _ = run("--list")
    assert code == 0
    assert all(line.startswith("not begun") for line in out.splitlines())
    assert not list(tmp_path.iterdir())


def test_without_pytorch_nothing_but_the_environment_is_begun(tmp_path, run, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda module: None if module == "torch" else find_spec(module))
    code, out, err = run()
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "lacks torch" in err
    assert len(err.splitlines()) == 1
    code, out, _ = run("--parts", "environment")
    assert (code, out.split()[:2]) == (1, ["done", "environment,"])


REFUSED = [
    ("--parts nothing", "error: --parts: unknown part; got 'nothing', allowed: environment, rates"),
    ("--again nothing", "error: --again: unknown part"),
    ("--minutes 0", "error: --minutes: minutes; got 0.0, allowed: more than 0"),
    ("--minutes nan", "error: --minutes: minutes; got nan, allowed: more than 0, up to 1,000,000"),
]


def test_bad_options_are_one_line(not_refused):
    assert not_refused("first-hour --device cpu", REFUSED, "--results RESULTS") == []


def test_a_page_that_cannot_be_written_is_said_and_changes_nothing_else(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(first_hour, "run_bounded", lambda *_: 4)
    (tmp_path / "first_hour").mkdir()
    (tmp_path / "first_hour" / "report.err").write_text("no room\n")
    code = main(["first-hour", "--results", str(tmp_path), *QUICK[:3], "--parts", "rates", "--minutes", "0.1"])
    assert code == 3
    assert "page not written: no room; summary " in capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.rare
@pytest.mark.timeout(1800)
def test_the_whole_in_its_short_form_ends_with_a_page(tmp_path, capsys):
    main(["first-hour", "--results", str(tmp_path), *QUICK[:3], "--json"])
    entry = json.loads(capsys.readouterr().out)
    assert {part["status"] for part in entry["parts"]} == {"done"}
    assert entry["left"] == []
    assert Path(entry["page"]).exists()
