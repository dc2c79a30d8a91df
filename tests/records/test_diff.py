"""The facts in which two records differ."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from suite.job.events import Status
from suite.records.diff import DifferingFact, difference
from suite.records.record import RankOutcome, Record
from tests.support.record_halves import begin, end

FIRST = begin()


def record(*, environment: dict[str, str] | None = None, ended: dict[str, Any] | None = None, **job: Any) -> Record:
    half = msgspec.structs.replace(FIRST, job=msgspec.structs.replace(FIRST.job, **job))
    rank = RankOutcome(rank=1, steps=[], last="finished", environment=environment or {}, arithmetic="fp32")
    return Record(path="r", begin=half, end=end(half.id, ranks=[rank], **(ended or {})))


LAYOUT, RECIPE = FIRST.job.layout, FIRST.job.recipe


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, []),
        ({"seed": 4}, [("job.seed", "3", "4")]),
        ({"steps": 99}, [("job.steps", str(FIRST.job.steps), "99")]),
        ({"ended": {"status": Status.HANG}}, [("status", "ok", "hang")]),
        ({"environment": {"torch": "9.9"}}, [("rank 1.torch", None, "9.9")]),
        (
            {"layout": msgspec.structs.replace(LAYOUT, data_parallel=8)},
            [("layout.data_parallel", str(LAYOUT.data_parallel), "8")],
        ),
        (
            {"recipe": msgspec.structs.replace(RECIPE, global_batch=7)},
            [("recipe.global_batch", str(RECIPE.global_batch), "7")],
        ),
    ],
)
def test_facts_that_differ_are_named_with_both_sides(changes: dict[str, Any], facts: list[tuple[str, ...]]) -> None:
    assert difference(record(), record(**changes)).facts == [DifferingFact(*fact) for fact in facts]
    swapped = [DifferingFact(name, right, left) for name, left, right in facts]
    assert difference(record(**changes), record()).facts == swapped


def test_a_launch_that_has_not_ended_has_no_ranks_and_no_figures() -> None:
    ended = record()
    running = msgspec.structs.replace(ended, end=None)
    found = difference(ended, running)
    assert [fact.name for fact in found.facts] == ["status", "rank 1.arithmetic"]
    assert found.figures == []
