"""The page's answers, without a browser."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("dash", reason="the page with controls needs dash, of the extra `explore`")

from dash import no_update

from suite.__main__ import main
from suite.report.explore.controls import LAYOUT_CONTROLS, OTHERS
from suite.report.explore.page import answer, application, export_text, numbers_of
from suite.report.explore.presets import names
from suite.report.explore.state import controls_of
from suite.report.explore.view import recorded_layout, state_of_run

NAMES = (*OTHERS, *LAYOUT_CONTROLS)
ADDRESS, CONTENT, SOURCE, RUN_OPTIONS = range(len(NAMES), len(NAMES) + 4)
FIRST = state_of_run("bloom-176b")


def asked(given: dict[str, Any], triggered: str) -> list[Any]:
    return answer("", "runs", given, triggered, FIRST)


def controls(run: str, **changes: object) -> dict[str, Any]:
    absent = dict.fromkeys(OTHERS)
    return {**absent, "run": run, **controls_of(recorded_layout(run)), **changes}


def test_the_application_is_built_for_a_run() -> None:
    assert application(FIRST).layout is not None


def test_an_empty_address_shows_the_first_state_and_names_it() -> None:
    shown = answer("", "runs", {}, None, FIRST)
    assert shown[ADDRESS].startswith("?run=bloom-176b&layout=dp8,tp4,pp12")
    again = answer(shown[ADDRESS], "runs", {}, "url", FIRST)
    assert again[: len(NAMES) + 2] == shown[: len(NAMES) + 2]


def test_controls_of_an_address_without_layout_are_those_of_the_run() -> None:
    shown = dict(zip(NAMES, answer("?run=gpt-neox-20b&on=h100-sxm", "runs", {}, "url", FIRST), strict=False))
    assert [shown[name] for name in ("dp", "tp", "pp")] == [12, 2, 4]


def test_another_run_begins_as_it_was_recorded() -> None:
    shown = dict(zip(NAMES, asked(controls("gpt-neox-20b", dp=1), "run"), strict=False))
    assert shown["dp"] == recorded_layout("gpt-neox-20b").data_parallel


def test_another_source_shows_its_first_row_and_offers_the_others() -> None:
    shown = answer("", "korthikanti2022_table5", controls("bloom-176b"), "source", FIRST)
    offered = [each["value"] for each in shown[RUN_OPTIONS]]
    assert shown[0] == offered[0]
    assert offered == list(names("korthikanti2022_table5"))
    assert shown[SOURCE] == "korthikanti2022_table5"
    again = answer(shown[ADDRESS], "runs", {}, "url", FIRST)
    assert again[CONTENT] == shown[CONTENT]


def test_what_did_not_change_is_not_sent_again() -> None:
    shown = asked(controls("bloom-176b", tp=8, pp=6), "tp")
    assert [value for value in shown[: len(NAMES)] if value is not no_update] == []
    assert shown[SOURCE] is shown[RUN_OPTIONS] is no_update


def test_what_is_shown_is_exported_or_refused_in_words() -> None:
    text = export_text("?run=llama3.1-405b&layout=dp128,tp8,pp16,sp,zero1", "megatron", FIRST)
    assert "dp128,tp8,pp16" in text
    assert "--tensor-model-parallel-size 8" in text
    assert "no place for" in export_text("", "megatron", FIRST)
    assert "no run to start" in export_text("?run=korthikanti2022_table5:3&layout=", "slurm", FIRST)
    assert export_text("", None, FIRST) == ""


def test_other_numbers_of_accelerators_are_those_of_plan(capsys: pytest.CaptureFixture[str]) -> None:
    query = "?run=gpt-neox-20b&layout=dp12,tp2,pp4,zero1&on=h100-sxm&network=1600&price=2"
    shown = numbers_of(query, FIRST)
    options = ("--on", "h100-sxm", "--gpus", "96", "--network", "1600", "--price", "2", "--numbers", "--json")
    assert main(["plan", "gpt-neox-20b", *options]) == 0
    planned = {each["accelerators"]: each for each in json.loads(capsys.readouterr().out)["numbers"]}
    assert [row["accelerators"] for row in shown["rows"]] == list(planned)
    for row in shown["rows"]:
        expected = planned[row["accelerators"]]
        assert row["days"] == pytest.approx(expected["seconds"] / 86400, rel=1e-9)
        assert row["cost"] == pytest.approx(expected["cost"], rel=1e-9)
        assert expected["layout"] in answer(row["address"], "runs", {}, "url", FIRST)[ADDRESS]
    best = {row["accelerators"] for row in shown["rows"] if row["best"]}
    assert best == {
        number for number, each in planned.items() if not any(_is_better(o, each) for o in planned.values())
    }
    same = answer(query, "runs", {}, "url", FIRST)[CONTENT]["search"]
    other = answer(query.replace("dp12", "dp6"), "runs", {}, "url", FIRST)[CONTENT]["search"]
    assert shown["searched"] == same != other


def _is_better(one: dict[str, float], other: dict[str, float]) -> bool:
    return one["cost"] <= other["cost"] and one["seconds"] <= other["seconds"] and one is not other


def test_why_there_are_no_other_numbers_is_said() -> None:
    for query, words in (
        ("?run=megatron_sc21_table1:2&layout=", "not known how many tokens"),
        ("?run=bloom-176b&layout=dp1,tp1,pp1&on=v100-sxm-32gb", "no peak_flop_per_second for the dtype"),
        ("?run=bloom-176b&layout=dp1,tp1,pp1", "fits"),
        ("?run=bloom-176b&colour=red", "unknown key"),
    ):
        assert words in str(numbers_of(query, FIRST)["wrong"]), query


def test_a_layout_is_kept_and_stands_beside_the_next_one() -> None:
    kept = dict(zip(NAMES, asked(controls("bloom-176b", tp=8, pp=6), "keep"), strict=False))
    assert kept["other"].startswith("dp8,tp8,pp6,zero1")
    shown = asked(controls("bloom-176b", other="dp8,tp8,pp6,zero1"), "other")
    assert [len(view["instants"]) for view in shown[CONTENT]["views"]] == [12, 6]


def test_what_is_wrong_is_said_and_the_page_stays() -> None:
    for changes in ({"tp": 5}, {"dp": None}, {"on": "v100-sxm-32gb"}):
        shown = asked(controls("bloom-176b", **changes), "tp")
        assert shown[CONTENT]["views"][0]["wrong"], changes
