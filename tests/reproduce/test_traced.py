"""A step of many micro-batches is what executing all of them would say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from suite.job.trace_job import ModelSource, Sharding, StepTrace, TraceJob
from suite.reproduce import traced as module
from suite.reproduce.traced import traced
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

SOURCE = ModelSource(module=f"{Path(models.__file__)}:build")
JOBS = [
    TraceJob(source=SOURCE, ranks=4, sharding=sharding, synchronises_once=once, micro_batches=6, sequence=64)
    for sharding, once in ((Sharding.REPLICATED, True), (Sharding.RESHARDED, False), (Sharding.KEPT, True))
]


def without_seconds(step: StepTrace) -> object:
    values = msgspec.to_builtins(msgspec.structs.replace(step, seconds=0.0, operators=[]))
    return values, {msgspec.structs.replace(each, kept_bytes=0) for each in step.operators}


def test_three_of_many_micro_batches_say_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    few = traced(JOBS)
    monkeypatch.setattr(module, "MOST_MICRO_BATCHES", 6)
    for job, short, whole in zip(JOBS, few, traced(JOBS), strict=True):
        assert without_seconds(short) == without_seconds(whole), job.sharding
