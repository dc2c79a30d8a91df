"""The table of parts: each has its own name and file, and asks commands for options that they have."""

from __future__ import annotations

import pytest

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.__main__ import main
from suite.first_hour.parts import RESULTS, chosen, parts
from suite.first_hour.result import path_of
from suite.paths import ROOT

ALL = [parts(device, short=short) for device in ("cuda", "cpu") for short in (True, False)]


def test_every_part_has_its_own_file_and_keeps_what_it_makes_in_the_results() -> None:
    for found in ALL:
        assert len({path_of(ROOT, part) for part in found}) == len(found)
        assert chosen(found, ",".join(part.name for part in found), "--parts") == found
        for part in found:
            if part.arguments[0] in ("suite", "benchmarks.kernels"):
                assert any(RESULTS in word for word in part.arguments)


def test_the_order_is_by_value_and_nothing_that_the_node_can_show_is_left_out() -> None:
    wanted = ["environment", "rates", "kernel tests", "kernel layer_norm", "calibrate", *miniatures()]
    wanted += ["gpt2-124m", "gpt2-1558m", "accept", "ladder gpt2-mini"]
    assert [part.name for part in parts("cuda") if part.name in wanted] == wanted
    assert not {"gpt2-124m", "kernel layer_norm", "layout tp2"} & {part.name for part in parts("cpu")}


def test_commands_have_the_options_that_parts_use(capsys: pytest.CaptureFixture[str]) -> None:
    used: dict[str, set[str]] = {}
    for part in (part for found in ALL for part in found if part.arguments[0] == "suite"):
        options = {word for word in part.arguments if word.startswith("--")}
        used[part.arguments[1]] = used.get(part.arguments[1], set()) | options
    assert used.keys() >= {"reproduce", "calibrate", "accept", "ladder"}
    for command, options in used.items():
        assert main([command, "--help"]) == 0
        known = capsys.readouterr().out
        assert {option for option in options if option not in known} == set()


def test_unknown_parts_are_refused() -> None:
    assert [part.name for part in chosen(parts("cpu"), "rates,environment", "--parts")] == ["environment", "rates"]
    with pytest.raises(InputError, match=r"--parts: unknown part; got 'rate', allowed: environment, rates"):
        chosen(parts("cpu"), "rate", "--parts")
