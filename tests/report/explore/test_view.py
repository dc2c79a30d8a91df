from __future__ import annotations

import json

import pytest

from reference_runs.catalog import run_names
from suite.__main__ import main
from suite.report.explore.state import ExploreState
from suite.report.explore.view import View, memory_parts, state_of_run, view


def shown(run: str) -> View:
    state = state_of_run(run)
    return view(state, state.layout)


@pytest.mark.parametrize("run", run_names())
def test_every_recorded_run_is_shown(run: str) -> None:
    found = shown(run)
    assert not found.wrong
    assert found.rows
    assert sum(found.terms.values()) == pytest.approx(
        next((r.left for r in found.rows if r.quantity == "step_seconds"), 0)
    )
    parts = memory_parts(found.stages)
    for number, stage in enumerate(found.stages):
        assert sum(values[number] for values in parts.values()) == pytest.approx(stage.peak)


def test_values_are_the_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "dp4,tp8,pp12,zero1,all-reduce,reshard,1f1b,recompute-none,every1,unfused,micro1"
    state = ExploreState(run="bloom-176b", layout=layout, on="h100-sxm", network=3200, price=2.5)
    options = ["--layout", layout, "--on", "h100-sxm", "--network", "3200", "--price", "2.5"]
    assert main(["predict", "bloom-176b", *options, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["figures"]
    printed = {(row["quantity"], row["term"], row["convention"]): row["left"] for row in rows if row["stage"] is None}
    found = view(state, layout).rows
    assert len(found) >= 9
    for row in found:
        assert row.left == pytest.approx(printed[row.quantity, row.term, row.convention], rel=1e-12)


def test_what_is_wrong_is_said_in_a_line() -> None:
    state = state_of_run("bloom-176b")
    assert view(state, "dp8,tp5,pp12").wrong[0].startswith("--layout: layout.tensor_parallel does not divide")
    assert "not a layout" in view(state, "dp8,tpp").wrong[0]
