"""Two runs beside each other: the term of a step, or the size of a run, that makes one of them slower."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reference_runs.training_logs.formats import LogFormat
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog
from reference_runs.training_traces.kineto import kineto_traces
from suite.predict.diagnosis.compared import ComparedRun, ComparedRuns, compared, compared_traces, with_candidates
from suite.predict.diagnosis.pace import pace
from suite.predict.diagnosis.trace_terms import StepTerms, step_terms
from tests.support.gpu_traces import gpu_steps


def of_gpu(folder: Path, **changes: Any) -> StepTerms:
    [trace] = kineto_traces(gpu_steps(**changes).write(folder / "trace.json"))
    return step_terms(trace)


@pytest.mark.parametrize(
    ("changes", "term"),
    [
        ({"loading": 30_000.0}, "waiting for the input pipeline: "),
        ({"recomputes": True}, "recomputation: "),
        ({"norm": 600.0}, "memory-bound operators: "),
        ({"late": 3000.0}, "matrix multiplications: "),
    ],
)
def test_the_term_that_a_trace_has_more_of_is_the_first_cause(
    tmp_path: Path, changes: dict[str, Any], term: str
) -> None:
    usual = of_gpu(tmp_path)
    found = compared_traces([of_gpu(tmp_path, **changes)], [usual])
    assert found.causes[0].words.startswith(term)
    assert found.slowdown > 1.1
    assert compared_traces([usual], [usual]).causes == []


def test_a_slow_rank_comes_first_where_the_other_run_has_none(tmp_path: Path) -> None:
    usual = [of_gpu(tmp_path, rank=rank) for rank in range(2)]
    slow = [of_gpu(tmp_path, rank=0, others_late=3000.0), of_gpu(tmp_path, rank=1, late=3000.0)]
    assert compared_traces(slow, usual).causes[0].words.startswith("rank 1 comes last")
    assert "comes last" not in str(compared_traces(slow, slow).causes)


def by_logs(seconds: float, **sizes: int) -> ComparedRuns:
    """A run of 100 steps beside a run of one second a step with micro-batches of 8."""

    def run(each: float, **known: int) -> ComparedRun:
        steps = [PrintedStep(number=float(number), seconds=each) for number in range(100)]
        log = TrainingLog("x.log", LogFormat("X", re.compile("x"), {}), steps, {}, {}, Counter(), [])
        return ComparedRun(log, pace(steps), **{"gpus": 1, "batch": 8, "micro_batch": 8} | known)

    here, other = run(seconds, **sizes), run(1.0)
    return with_candidates(compared(here, other), here, other, None)


def test_smaller_micro_batches_and_a_third_more_work_are_candidates() -> None:
    assert [cause.words[:15] for cause in by_logs(2.0, micro_batch=1).causes] == ["micro-batches o"]
    assert [cause.words[:15] for cause in by_logs(1.3).causes] == ["activations tha"]
    assert by_logs(1.04, micro_batch=1).causes == by_logs(2.0).causes == []
