"""--help lists options by group: each option once, no group without one, and no name of a field that is not there."""

from __future__ import annotations

import re

import msgspec
import pytest

from suite.__main__ import main
from suite.commands import accept, ladder
from suite.reproduce import request

STRUCTS = [
    ("reproduce", request.Request, request.GROUPS),
    ("accept", accept.AcceptOptions, accept.GROUPS),
    ("ladder", ladder.LadderOptions, ladder.GROUPS),
]


def sections(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, list[str]]:
    """Options by heading, as --help prints them."""
    assert main([command, "--help"]) == 0
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if heading := re.fullmatch(r"([A-Z].*):", line):
            found[heading[1]] = []
        elif found and (option := re.match(r"  (--[a-z-]+)", line)):
            found[[*found][-1]].append(option[1])
    return found


@pytest.mark.parametrize(("command", "options", "groups"), STRUCTS, ids=[name for name, *_ in STRUCTS])
def test_each_option_stands_once_under_its_heading(
    capsys: pytest.CaptureFixture[str], command: str, options: type[msgspec.Struct], groups: dict[str, tuple[str, ...]]
) -> None:
    fields = [field.name for field in msgspec.structs.fields(options)]
    named = [name for names in groups.values() for name in names]
    assert len(named) == len({*named})
    assert {*named} <= {*fields}
    found = sections(capsys, command)
    assert {heading: len(found[heading]) for heading in groups} == {
        heading: len(names) for heading, names in groups.items()
    }
    assert "--help" in found["Options"]
    assert sum(map(len, found.values())) == len(fields) + 1 - (command != "accept")  # --help; NAME is an argument


def test_a_shared_option_has_the_heading_of_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--device" in sections(capsys, "accept")["This node"]
    assert "--device" in sections(capsys, "reproduce")["Ranks and layout"]
    assert "--device" in sections(capsys, "calibrate")["Options"]


def test_options_of_commands_without_a_struct_are_in_groups_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = sections(capsys, "validate")
    assert found["Files to write"] == ["--plot", "--write", "--as-read", "--force"]
    assert found["Other comparisons"] == ["--proxies", "--layouts"]
