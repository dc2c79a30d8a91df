"""Pages for students: their commands are executed, and their numbers are what these print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from reference_runs.worked_examples import load
from suite.__main__ import main
from suite.paths import ROOT
from suite.predict.validation.lessons import LESSONS

PAGES = sorted(path for path in (ROOT / "docs" / "formulas").glob("*.md") if path.name != "README.md")
EXAMPLE = re.compile(r"^    refruns (formulas [\w ]+)\n\n```\n(.+?)\n```$", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"`refruns ((?:predict|show) [^`]+)`")
# numbers of four digits or more; identifiers of papers and years beside them are none
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*")


def texts() -> dict[str, str]:
    """Each page by its name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in PAGES}


def numbers(text: str) -> set[str]:
    """Numbers of four significant digits or more, without separators."""
    plain = re.sub(r"arXiv \d{4}\.\d{5}|\b(?:19|20)\d\d,? ", "", text)
    found = {match.replace(",", "").rstrip(".") for match in NUMBER.findall(plain)}
    return {number for number in found if len(number.replace(".", "").strip("0")) >= 4 or len(number) > 5}


def test_each_page_shows_what_its_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for page, text in texts().items():
        assert EXAMPLE.search(text), page
        for command, shown in EXAMPLE.findall(text):
            assert main(command.split()) == 0, command
            printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
            wrong += [f"{page}: {line}" for line in shown.splitlines() if line not in printed]
    assert wrong == []


def test_every_number_on_a_page_is_printed_by_one_of_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for page, text in texts().items():
        for command, _ in EXAMPLE.findall(text):
            main(command.split())
        for command in QUOTED.findall(text):
            assert main(shlex.split(command)) in (0, 1), command  # 1: it does not fit, which is an answer too
        printed = numbers(capsys.readouterr().out)
        wrong += [f"{page}: {number}" for number in sorted(numbers(text) - printed)]
    assert wrong == []
    assert numbers("It takes 1,868 tokens, 0.21875 of 2048; arXiv 2104.04473, 2021, 60 s") == {
        "1868",
        "0.21875",
        "2048",
    }


def test_every_lesson_has_its_page_and_every_page_its_source() -> None:
    shown = {name for text in texts().values() for command, _ in EXAMPLE.findall(text) for name in command.split()[1:]}
    assert set(LESSONS) - shown == set()
    assert shown <= {example.id for example in load()}
    assert [page for page, text in texts().items() if "\n**Source.** " not in text] == []


def test_the_pages_are_short() -> None:
    assert {path.stem: lines for path in PAGES if (lines := len(Path(path).read_text().splitlines())) > 50} == {}
