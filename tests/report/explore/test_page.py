"""The page's answers, without a browser."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("dash", reason="the page with controls needs dash, of the extra `explore`")

from reference_runs.errors import InputError
from reference_runs.layout import parse_layout
from suite.predict.plan.predicted_run import PredictionRequest, predicted_run
from suite.predict.recorded_run.figures import NO_PRICES
from suite.report.explore.page import LAYOUT_CONTROLS, OTHERS, answer, application
from suite.report.explore.state import controls_of, layout_of
from suite.report.explore.view import recorded_layout, state_of_run

NAMES = (*OTHERS, *LAYOUT_CONTROLS)
FIRST = state_of_run("bloom-176b")
RUNS = ("bloom-176b", "gpt-neox-20b", "gpt2-124m", "mixtral-8x7b", "llama3.1-405b")


def values(component: Any) -> dict[str, float]:
    """Every whole number behind what the page prints, by quantity."""
    if isinstance(component, (list, tuple)):
        found: dict[str, float] = {}
        for each in component:
            found |= values(each)
        return found
    own = getattr(component, "data-quantity", None)
    inside = values(getattr(component, "children", None) or [])
    return inside | ({own: float(getattr(component, "data-value"))} if own else {})


def controls(run: str, **changes: object) -> dict[str, Any]:
    absent = dict.fromkeys(OTHERS)
    return {**absent, "run": run, **controls_of(recorded_layout(run)), **changes}


def test_the_application_is_built_for_a_run() -> None:
    assert application(FIRST).layout is not None


def test_an_empty_address_shows_the_first_state_and_names_it() -> None:
    shown = answer("", {}, None, FIRST)
    assert shown[len(NAMES)].startswith("?run=bloom-176b&layout=dp8,tp4,pp12")
    again = answer(shown[len(NAMES)], {}, "url", FIRST)
    assert again[: len(NAMES) + 1] == shown[: len(NAMES) + 1]


def test_another_run_begins_as_it_was_recorded() -> None:
    shown = dict(zip(NAMES, answer("", controls("gpt-neox-20b", dp=1), "run", FIRST), strict=False))
    assert shown["dp"] == recorded_layout("gpt-neox-20b").data_parallel


def test_two_hundred_random_states_show_what_predict_says() -> None:
    """To 1e-9, or the same refusal."""
    chooser = random.Random(2026)
    compared = 0
    for _ in range(200):
        run = chooser.choice(RUNS)
        sizes = {word: chooser.choice([1, 2, 4, 8]) for word in ("dp", "tp", "pp", "micro")}
        chosen = controls(
            run,
            **sizes,
            zero=chooser.choice(["zero0", "zero1,all-reduce", "zero1,reduce-scatter"]),
            recompute=chooser.choice(["none", "selective", "full"]),
            on=chooser.choice([None, "h100-sxm"]),
            network=chooser.choice([None, 1600]),
        )
        shown = answer("", chosen, "tp", FIRST)
        layout = layout_of(chosen, recorded_layout(run))
        network = None if chosen["network"] is None else chosen["network"] * 1e9 / 8
        request = PredictionRequest(chosen["on"], None, _words(layout), network, NO_PRICES, None)
        refusal = ""
        try:
            expected = {row.quantity: row.left for row in predicted_run(run, request).rows if _is_whole(row)}
        except InputError as error:
            refusal = str(error).split(";")[0]
        assert refusal in str(shown[len(NAMES) + 1])
        if refusal:
            continue
        found = values(shown[len(NAMES) + 2])
        for quantity in ("step_seconds", "peak_bytes"):
            if quantity in expected:
                assert found[quantity] == pytest.approx(expected[quantity], rel=1e-9)
                compared += 1
    assert compared > 100


def _words(layout: Any) -> str:
    from suite.report.explore.state import complete_text

    assert parse_layout(complete_text(layout), base=layout) == layout
    return complete_text(layout)


def _is_whole(row: Any) -> bool:
    return row.stage is None and row.rank is None and row.axis is None and row.term is None and row.left is not None


def test_a_second_layout_stands_beside_the_first() -> None:
    shown = answer("", controls("bloom-176b", other="dp8,tp8,pp6,zero1"), "other", FIRST)
    memory = shown[len(NAMES) + 5]
    assert memory["data"][0]["x"] == [f"A {stage}" for stage in range(12)] + [f"B {stage}" for stage in range(6)]


@pytest.mark.parametrize("changes", [{"tp": 5}, {"dp": None}, {"on": "v100-sxm-32gb"}])
def test_what_is_wrong_is_said_and_the_page_stays(changes: dict[str, object]) -> None:
    shown = answer("", controls("bloom-176b", **changes), "tp", FIRST)
    assert "refused" in str(shown[len(NAMES) + 1])
