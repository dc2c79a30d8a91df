"""A check that goes on: it ends when it is decided or when the time is over, and says what would decide it."""

from __future__ import annotations

import json

import pytest

from suite.__main__ import main
from tests.support.regress_on_paper import NEW, STEP, Machine, in_turn, on_paper


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose launches spread by 4 %, ten of which are recorded and accepted."""
    here = Machine(tmp_path / "results")
    on_paper(here, monkeypatch)
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 100)
    here.spread = 0.04
    assert here.regress("--launches", "10", "--accept") == 0
    here.order.clear()
    here.commit = NEW
    return here


def compared(machine, capsys, *arguments):
    capsys.readouterr()
    code = machine.regress(*arguments, "--json")
    out, err = capsys.readouterr()
    (comparison,) = json.loads(out)["comparisons"]
    return code, comparison, {(one["quantity"], one["term"]): one for one in comparison["findings"]}, err


def test_an_undecided_check_says_how_many_launches_would_decide_it(machine, capsys):
    code, comparison, found, _ = compared(machine, capsys, "--baseline", NEW, "--limit", "0.1")
    assert (code, found[STEP]["change"]) == (3, "inconclusive")
    remedy = comparison["remedy"]
    assert remedy["launches"] in (10, 15, 20)
    assert remedy["words"].startswith(f"{remedy['launches']} launches of each would decide it, about 1 min: --launches")
    code, comparison, found, _ = compared(
        machine, capsys, "--baseline", NEW, "--limit", "0.1", "--launches", str(remedy["launches"])
    )
    assert (code, comparison["remedy"], found[STEP]["change"]) == (0, None, "noise")  # as it said


def test_unchanged_code_goes_on_to_the_look_that_decides_it(machine, capsys):
    code, comparison, found, err = compared(
        machine, capsys, "--baseline", NEW, "--limit", "0.1", "--until-decided", "30"
    )
    assert (code, found[STEP]["change"]) == (0, "noise")
    sizes = {1: 7, 2: 10, 3: 14, 4: 20}
    launches = sizes[comparison["looks"]]
    assert comparison["looks"] > 1
    assert machine.order == in_turn(launches, NEW, NEW)
    assert found[STEP]["after_launches"] == launches
    assert "gpt2-mini: not decided at look 1, with 7 launches: on to the next" in err


def test_a_slowdown_ends_the_check_at_the_look_that_finds_it(machine, capsys):
    machine.slower[NEW] = 1.4
    code, comparison, found, _ = compared(machine, capsys, "--baseline", "main", "--until-decided", "30")
    assert (code, found[STEP]["change"], comparison["looks"]) == (1, "regression", 1)
    assert len(comparison["again"]) == 14


def test_a_recorded_baseline_is_left_as_it_is_and_launches_of_now_go_on(machine, capsys):
    code, comparison, found, _ = compared(machine, capsys, "--limit", "0.12", "--until-decided", "30")
    assert {*machine.order} == {NEW}
    assert found[STEP]["before_launches"] == 10
    assert found[STEP]["after_launches"] == len(machine.order)
    assert (code, comparison["remedy"]) == (0, None)


def test_when_the_time_is_over_complete_pairs_count_and_nothing_begins(machine, capsys):
    machine.lasts = 17  # eight pairs, and one launch alone
    code, comparison, found, err = compared(
        machine, capsys, "--baseline", NEW, "--limit", "0.01", "--until-decided", "30"
    )
    assert code == 3
    assert len(machine.order) == 17
    assert (found[STEP]["before_launches"], found[STEP]["after_launches"], comparison["looks"]) == (8, 8, 2)
    assert err.count("the time is over: the launch that ran was ended and does not count") == 1
    assert "would find 1% on this machine: it has to be quieter" in comparison["remedy"]["words"]


def test_without_a_pair_of_launches_in_time_nothing_is_decided(machine, capsys):
    machine.lasts = 1
    assert machine.regress("--baseline", "main", "--steps", "20", "--until-decided", "30") == 3
    out = capsys.readouterr().out
    assert "gpt2-mini: not decided: the time was over before both sides had a launch" in " ".join(out.split())


def test_a_rerun_that_time_cuts_off_confirms_nothing(machine, capsys):
    machine.slower[NEW] = 1.4
    machine.lasts = 7
    code, comparison, found, _ = compared(machine, capsys, "--until-decided", "30")
    assert (code, found[STEP]["change"]) == (3, "inconclusive")
    assert found[STEP]["why"] == "the time was over before a re-run in turn could confirm it"
    assert comparison["again"] == []
    machine.order.clear()
    machine.lasts = 7 + 5
    code, comparison, found, _ = compared(machine, capsys, "--until-decided", "30")
    assert machine.order == 7 * [NEW] + in_turn(3)[:5]
    assert (code, found[STEP]["change"]) == (3, "inconclusive")
    assert len(comparison["again"]) == 4  # two pairs prove nothing


def test_a_family_shares_the_looks_and_decided_runs_are_launched_no_more(machine, capsys):
    machine.spread = 0.005
    machine.regress("--launches", "10", "--accept", run="bloom-mini")
    capsys.readouterr()
    machine.order.clear()
    options = ["--device", "cpu", "--results", str(machine.results), "--until-decided", "30", "--json"]
    main(["regress", "gpt2-mini", "bloom-mini", *options, "--limit", "0.12"])
    noisy, quiet = json.loads(capsys.readouterr().out)["comparisons"]
    assert quiet["looks"] <= noisy["looks"]
    assert len(quiet["after"]) == 7
    assert noisy["findings"][0]["family"] == quiet["findings"][0]["family"] == 2
