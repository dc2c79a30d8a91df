"""`--help` has a heading for each group of options, and options that commands share have the same words in all."""

from __future__ import annotations

import re

import pytest

COMMANDS = ("import", "predict", "fit", "plan")
SHARED = (
    *("--on", "--gpus", "--network", "--stack"),
    *("--precision", "--batch", "--micro-batch", "--sequence", "--tokens"),
)


@pytest.fixture
def groups(said, monkeypatch):
    """A function that returns the headings of a command's help at 80 columns, each with its lines."""
    monkeypatch.setenv("COLUMNS", "80")

    def found(command):
        parts = re.split(r"^(\w[\w ]*):\n", said(command, "--help"), flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_under_a_heading_that_says_what_it_is_about(command, groups):
    found = groups(command)
    assert next(iter(found)) == "Arguments"
    assert [*found][-1] == "Options"
    assert re.findall(r"--[\w-]+", found["Options"]) == ["--help"]
    assert {"Machine and software", "Training"} < found.keys()
    for lines in found.values():
        assert max(map(len, lines.splitlines())) <= 80


def test_shared_options_have_the_same_heading_and_words_in_every_command(groups):
    helps = {command: groups(command) for command in COMMANDS}
    for option in SHARED:
        said = set()
        for found in helps.values():
            ((heading, lines),) = ((h, lines) for h, lines in found.items() if re.search(rf"^  {option} ", lines, re.M))
            (words,) = re.findall(rf"^  {option} (.*?)(?=^  --|\Z)", lines, re.DOTALL | re.MULTILINE)
            said.add((heading, " ".join(words.split())))
        assert len(said) == 1, said
