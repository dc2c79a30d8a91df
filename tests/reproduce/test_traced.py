"""Traces as a command gets them: of many micro-batches, of a GPU or a CPU, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_runs.errors import InputError
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


def of_type(kind: str, directory: Path, **job: Any) -> TraceJob:
    """A step of the miniature of a type of transformers."""
    path = directory / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind}))
    return TraceJob(source=ModelSource(configuration=str(path), mini=True), sequence=64, **job)


def test_kernels_of_other_packages_are_there_on_gpus_alone(tmp_path: Path) -> None:
    jobs = [of_type("mamba2", tmp_path, on_cpu=on_cpu) for on_cpu in (False, True, False)]
    scans = [{each.operator for each in step.operators if "scan" in each.operator} for step in traced(jobs)]
    assert scans[0] == scans[2] != set()
    assert scans[1] == set()


def test_shapes_that_depend_on_numbers_are_refused_with_the_line_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"its shapes depend on numbers.*modeling_longcat_flash\.py:\d+"):
        traced([of_type("longcat_flash", tmp_path)])


def without_seconds(step: StepTrace) -> object:
    values = msgspec.to_builtins(msgspec.structs.replace(step, seconds=0.0, operators=[]))
    return values, {msgspec.structs.replace(each, kept_bytes=0) for each in step.operators}


def test_three_of_many_micro_batches_say_what_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    few = traced(JOBS)
    monkeypatch.setattr(module, "MOST_MICRO_BATCHES", 6)
    for job, short, whole in zip(JOBS, few, traced(JOBS), strict=True):
        assert without_seconds(short) == without_seconds(whole), job.sharding
