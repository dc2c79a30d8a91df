"""The page of a traced model, without a browser: what its controls ask of traces, and what it shows of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="the page with controls needs dash, of the extra `explore`")

from dash import no_update

from suite.job.trace_job import ModelSource, StepTrace, TraceJob
from suite.report.explore.content import content
from suite.report.explore.traced import PARTS, TracedPage, TracedState, controls
from suite.report.explore.traced_page import NAMES, answer, traced_application
from suite.report.explore.view import state_of_run
from suite.reproduce.traced import traced
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

SOURCE = ModelSource(module=f"{Path(models.__file__)}:build")
FIRST = TracedState(gpus=8, micro=2, sequence=128)
ADDRESS, CONTENT = len(NAMES), len(NAMES) + 1


class CountedPage:
    """A page, and the jobs that were traced for it."""

    def __init__(self) -> None:
        self.jobs: list[TraceJob] = []
        self.page = TracedPage(SOURCE, "model.py:build", "a module of your own", self._traced)

    def _traced(self, jobs: Sequence[TraceJob]) -> list[StepTrace]:
        self.jobs += jobs
        return traced(jobs)

    def asked(self, triggered: str | None, query: str = "", **changes: object) -> tuple[list[Any], dict[str, Any]]:
        """The answer to a change, and its content."""
        given = dict(zip(NAMES, (getattr(FIRST, name) for name in NAMES), strict=True)) | changes
        found = answer(query, given, triggered, self.page, FIRST)
        return found, json.loads(found[CONTENT])


@pytest.fixture(scope="module")
def counted() -> CountedPage:
    return CountedPage()


def test_every_field_of_the_state_has_a_control() -> None:
    named = [control.name for group in controls().values() for control in group]
    assert sorted(named) == sorted(NAMES)


def test_the_page_shows_the_step_in_the_form_of_a_run(counted: CountedPage) -> None:
    found, shown = counted.asked(None)
    assert found[: len(NAMES)] == [no_update] * len(NAMES)
    assert found[ADDRESS].startswith("?on=h100-sxm&precision=bf16&optimizer=adamw&gpus=8&sharing=FSDP2")
    (view,) = shown["views"]
    (of_run,) = content(state_of_run("bloom-176b"))["views"]
    assert of_run.keys() - view.keys() == {"micro_batches"}
    assert view["layout"] == "dp8,zero3,micro2"
    figures = {figure["quantity"]: figure for figure in view["figures"]}
    of_terms = sum(view["terms"].values())
    assert figures["step_seconds"]["value"] == pytest.approx(of_terms)
    at_peak = [number[1] for number in figures["peak_bytes"]["why"]["numbers"]]
    assert figures["peak_bytes"]["value"] == sum(at_peak) == max(map(sum, zip(*view["memory"].values(), strict=True)))
    assert sum(row["seconds"] for row in view["modules"]) <= of_terms
    assert {row["operation"] for row in view["traffic"]} == {"all_gather", "reduce_scatter"}
    assert all(view["products"]["peak"] > point["rate"] > 0 for point in view["products"]["points"])
    options = "--layout dp8,zero3,micro2 --on h100-sxm --precision bf16 --optimizer adamw --sequence 128"
    assert shown["command"].endswith(f"predict model.py:build {options}")


def test_another_accelerator_traces_nothing_and_another_layout_does_once(counted: CountedPage) -> None:
    counted.asked(None)
    before = len(counted.jobs)
    _, first = counted.asked(None)
    _, other = counted.asked("on", on="a100-sxm-80gb", network=100)
    assert len(counted.jobs) == before
    assert other["views"][0]["terms"] != first["views"][0]["terms"]
    found, kept = counted.asked("sharing", sharing="FSDP2, weights kept")
    _, again = counted.asked("url", query=found[ADDRESS])
    assert len(counted.jobs) == before + 1
    assert again == kept
    assert kept["views"][0]["layout"] == "dp8,zero3,noreshard,micro2"


def test_a_question_without_an_answer_changes_no_control(counted: CountedPage) -> None:
    wrong = {
        ("gpus", 0): "gpus",
        ("sharing", "none"): "sharing: unknown; got 'none', allowed: DistributedDataParallel",
        ("precision", "fp3"): "precision",
        ("on", "abacus"): "abacus",
        ("on", "board.toml"): "a file",
    }
    missed = {}
    for (name, value), words in wrong.items():
        found, shown = counted.asked(name, **{name: value})
        (line,) = shown["views"][0]["wrong"]
        if words not in line or found[: ADDRESS + 1] != [no_update] * (ADDRESS + 1):
            missed[name, value] = line
    assert missed == {}
    _, shown = counted.asked("url", query="?nothing=1")
    assert "unknown key" in shown["views"][0]["wrong"][0]


def test_the_application_has_every_part(counted: CountedPage) -> None:
    layout = str(traced_application(counted.page, FIRST).layout())
    assert [part.name for part in PARTS if f"id='{part.name}-part'" not in layout] == []
