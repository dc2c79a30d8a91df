"""Words of a traced layout, and the fields that they name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from reference_runs.errors import InputError
from suite.job.trace_job import ModelSource, Sharding, TraceJob
from suite.job.trace_layout import TraceLayout, layout_words, trace_layout

SHARDED = TraceLayout(ranks=8, sharding=Sharding.RESHARDED)


def test_words_name_fields() -> None:
    expected = {
        "dp1": TraceLayout(synchronises_once=True),
        "dp8,zero0,sync": TraceLayout(ranks=8),
        "dp8,zero3": SHARDED,
        "dp8,zero3,no-sync,accumulate4": SHARDED._replace(synchronises_once=True, accumulation=4),
        "dp8,zero3,noreshard,micro2": SHARDED._replace(sharding=Sharding.KEPT, micro_batch=2),
        "dp8,zero3,recompute-full": SHARDED._replace(recompute=True),
        "dp8, zero3, selective-op": SHARDED._replace(recompute=True, saves_products=True),
        "selective-layer2,dp8,zero3": SHARDED._replace(recompute=True, recompute_every=2),
    }
    wrong = {text: found for text, layout in expected.items() if (found := trace_layout(text)) != layout}
    assert wrong == {}


def test_words_of_a_job_are_read_as_it() -> None:
    source = ModelSource(module="model.py:build")
    expected = {
        "dp1,micro1": TraceJob(source=source, synchronises_once=True),
        "dp8,zero3,noreshard,micro2": TraceJob(source=source, ranks=8, sharding=Sharding.KEPT, micro_batch=2),
    }
    assert {words: layout_words(job) for words, job in expected.items()} == {words: words for words in expected}
    named = ("ranks", "sharding", "recompute", "recompute_every", "saves_products", "synchronises_once", "micro_batch")
    wrong = []
    again: tuple[dict[str, Any], ...] = ({}, {"recompute": True}, {"recompute": True, "saves_products": True})
    again += ({"recompute": True, "recompute_every": 3},)
    for sharding, fields, once in itertools.product(Sharding, again, (False, True)):
        more = fields | {"micro_batches": 2, "synchronises_once": once}
        job = TraceJob(source=source, ranks=4, sharding=sharding, **more)
        found = trace_layout(layout_words(job))
        fields_of = [[getattr(each, name) for name in named] for each in (job, found)]
        if fields_of[0] != fields_of[1] or found.accumulation != 2:
            wrong.append(layout_words(job))
    assert wrong == []


def test_other_words_are_refused_with_those_there_are() -> None:
    expected = {
        "dp2,tp2": "a trace splits neither tensors nor layers",
        "dp2,zero1": "is not traced",
        "dp2,recompute-selective": "is not traced",
        "dp2,sync,no-sync": "exclude each other",
        "recompute-full,selective-op": "exclude each other",
        "selective-layer0": "not a layout",
    }
    wrong = {}
    for text, words in expected.items():
        with pytest.raises(InputError) as refused:
            trace_layout(text)
        if words not in str(refused.value):
            wrong[text] = str(refused.value)
    assert wrong == {}
