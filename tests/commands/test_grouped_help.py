"""`--help` has a heading for each group of options, each option once; shared options have the same words in all."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest

from suite.__main__ import COMMANDS as ALL
from suite.commands import accept, fleet, ladder, results
from suite.reproduce import request

OF_OTHERS = {"results": results.NAMES, "fleet": tuple(fleet.NAMES)}

COMMANDS = ("import", "predict", "fit", "plan")
SHARED = (
    *("--on", "--gpus", "--network", "--stack"),
    *("--precision", "--batch", "--micro-batch", "--sequence", "--tokens"),
)


STRUCTS = [
    ("reproduce", request.Request, request.GROUPS),
    ("accept", accept.AcceptOptions, accept.GROUPS),
    ("ladder", ladder.LadderOptions, ladder.GROUPS),
]


@pytest.fixture
def groups(said, monkeypatch):
    """A function that returns the headings of a command's help at 80 columns, each with its lines."""
    monkeypatch.setenv("COLUMNS", "80")

    def found(command):
        parts = re.split(r"^(\w[\w ]*):\n", said(command, "--help"), flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    return found


def options(lines):
    """Options that stand in the lines of a heading."""
    return re.findall(r"^  (--[a-z-]+)", lines, re.MULTILINE)


@pytest.mark.parametrize(("command", "struct", "named"), STRUCTS)
def test_each_option_stands_once_under_its_heading(groups, command, struct, named):
    fields = [field.name for field in msgspec.structs.fields(struct)]
    names = [name for of_heading in named.values() for name in of_heading]
    assert len(names) == len({*names})
    assert {*names} <= {*fields}
    found = {heading: options(lines) for heading, lines in groups(command).items()}
    assert {heading: len(found[heading]) for heading in named} == {heading: len(own) for heading, own in named.items()}
    assert "--help" in found["Options"]
    assert sum(map(len, found.values())) == len(fields) + 1 - (command != "accept")  # --help; NAME is an argument


def test_a_shared_option_has_the_heading_of_each_command(groups):
    for command, heading in (("accept", "This node"), ("reproduce", "Ranks and layout"), ("calibrate", "Options")):
        assert "--device" in options(groups(command)[heading]), command


def test_options_of_commands_without_a_struct_are_in_groups_too(groups):
    found = groups("validate")
    assert options(found["Files to write"]) == ["--plot", "--write", "--as-read", "--force"]
    assert options(found["Other comparisons"]) == ["--proxies", "--layouts"]


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


@pytest.mark.parametrize("command", ["predict", "fit", "plan", "reproduce"])
def test_the_former_name_of_gemm_dtype_is_not_shown(command, groups):
    (line,) = (line for lines in groups(command).values() for line in lines.splitlines() if "--gemm-dtype" in line)
    assert "--products" not in line


def test_the_former_name_of_gemm_dtype_is_still_read(answered, refused):
    asked = ("predict", "llama3.1-8b", "--on", "h100", "--gpus", "8")
    by_name, plain = (answered(*asked, *words) for words in (("--gemm-dtype", "fp8-delayed"), ()))
    assert answered(*asked, "--products", "fp8-delayed") == by_name != plain
    line = refused("reproduce", "gpt2-mini", "--device", "cpu", "--products", "fp9")
    assert line.startswith("--gemm-dtype: unknown GEMM format; got 'fp9'")


EVERY = (
    *(name for name in ALL if name not in OF_OTHERS),
    *(f"{group} {name}" for group, names in OF_OTHERS.items() for name in names),
)


def test_no_help_breaks_a_name_or_cuts_a_line_and_examples_can_be_pasted(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    wrong = []
    for command in ("", *OF_OTHERS, *EVERY):
        lines = said(*command.split(), "--help").splitlines()
        wrong += [
            (command, line) for line in lines if len(line) > 80 or re.search(r"^ .*\w(-|\.\.\.)$|^Usage: .*[{}]", line)
        ]
    shown = said("plan", "--help").partition("  Examples:\n")[2].partition("\n\n")[0]
    pasted = [shlex.split(line) for line in shown.replace("\\\n", "").splitlines()]
    assert [pasted[2][4], *pasted[2][-2:]] == ["gpt-neox-20b", "2.5", "--numbers"]
    assert len(pasted) == 4
    assert wrong == []
