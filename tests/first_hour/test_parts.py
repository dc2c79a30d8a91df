"""The table of parts: each has its own name and file, and asks commands for options that they have."""

from __future__ import annotations

import pytest

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.__main__ import main
from suite.first_hour.parts import RESULTS, chosen, parts
from suite.first_hour.result import path_of
from suite.paths import ROOT


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("short", [True, False])
def test_every_part_has_its_own_file_and_keeps_what_it_makes_in_the_results(device: str, short: bool) -> None:
    found = parts(device, short=short)
    assert len({path_of(ROOT, part) for part in found}) == len(found)
    assert chosen(found, ",".join(part.name for part in found), "--parts") == found
    for part in found:
        if part.arguments[0] in ("suite", "benchmarks.kernels"):
            assert any(RESULTS in word for word in part.arguments)


def test_the_order_is_by_value_and_nothing_that_the_node_can_show_is_left_out() -> None:
    names = [part.name for part in parts("cuda")]
    wanted = ["environment", "rates", "kernel tests", "kernel layer_norm", "calibrate", *miniatures()]
    wanted += ["gpt2-124m", "gpt2-1558m", "accept", "ladder gpt2-mini"]
    assert [name for name in names if name in wanted] == wanted


@pytest.mark.parametrize("short", [True, False])
def test_commands_have_the_options_that_parts_use(short: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for part in parts("cuda", short=short):
        if part.arguments[0] != "suite":
            continue
        assert main([part.arguments[1], "--help"]) == 0
        known = capsys.readouterr().out
        for word in part.arguments:
            assert not word.startswith("--") or word in known


def test_a_cpu_has_no_parts_of_a_gpu() -> None:
    assert not {"gpt2-124m", "kernel layer_norm", "layout tp2"} & {part.name for part in parts("cpu")}


def test_unknown_parts_are_refused() -> None:
    assert [part.name for part in chosen(parts("cpu"), "rates,environment", "--parts")] == ["environment", "rates"]
    with pytest.raises(InputError, match=r"--parts: unknown part; got 'rate', allowed: environment, rates"):
        chosen(parts("cpu"), "rate", "--parts")
