"""The facts in which two records differ."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from suite.job.events import Status
from suite.records.diff import DifferingFact, difference
from suite.records.record import RankOutcome, Record
from tests.support.record_halves import begin, end


@pytest.fixture
def first() -> Record:
    half = begin()
    rank = RankOutcome(rank=1, steps=[], last="finished", arithmetic="fp32")
    return Record(path="r", begin=half, end=end(half.id, ranks=[rank]))


def with_job(record: Record, **changes: Any) -> Record:
    begin = msgspec.structs.replace(record.begin, job=msgspec.structs.replace(record.begin.job, **changes))
    return msgspec.structs.replace(record, begin=begin)


def with_end(record: Record, **changes: Any) -> Record:
    assert record.end is not None
    return msgspec.structs.replace(record, end=msgspec.structs.replace(record.end, **changes))


def test_facts_that_differ_are_named_with_both_sides(first: Record) -> None:
    job, end = first.begin.job, first.end
    assert end is not None
    rank = msgspec.structs.replace(end.ranks[0], environment={"torch": "9.9"})
    layout = msgspec.structs.replace(job.layout, data_parallel=8)
    recipe = msgspec.structs.replace(job.recipe, global_batch=7)
    of_layout, of_recipe = (str(each) for each in (job.layout.data_parallel, job.recipe.global_batch))
    for other, facts in (
        (first, []),
        (with_job(first, seed=4), [("job.seed", "3", "4")]),
        (with_job(first, steps=99), [("job.steps", str(job.steps), "99")]),
        (with_job(first, layout=layout), [("layout.data_parallel", of_layout, "8")]),
        (with_job(first, recipe=recipe), [("recipe.global_batch", of_recipe, "7")]),
        (with_end(first, status=Status.HANG), [("status", "ok", "hang")]),
        (with_end(first, ranks=[rank]), [("rank 1.torch", None, "9.9")]),
    ):
        assert difference(first, other).facts == [DifferingFact(*fact) for fact in facts]
        swapped = [DifferingFact(name, right, left) for name, left, right in facts]
        assert difference(other, first).facts == swapped


def test_a_launch_that_has_not_ended_has_no_ranks_and_no_figures(first: Record) -> None:
    found = difference(first, msgspec.structs.replace(first, end=None))
    assert [fact.name for fact in found.facts] == ["status", "rank 1.arithmetic"]
    assert found.figures == []
