"""Records of launches with step times and their terms, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from suite.job.events import Status
from suite.job.training_job import Job
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.records import store
from suite.records.record import begin_record
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan
from tests.support.record_halves import end

PREDICTED = {StepTerm.FORWARD: 0.2, StepTerm.BACKWARD: 0.5, StepTerm.OPTIMIZER: 0.1, StepTerm.UNEXPLAINED: 0.0}


MEASURED = {StepTerm.FORWARD: 0.25, StepTerm.BACKWARD: 0.4, StepTerm.OPTIMIZER: 0.1, StepTerm.UNEXPLAINED: 0.05}


def figures(terms: dict[StepTerm, float]) -> list[Figure]:
    """A step and its terms, and of rank 0 others that must not count."""
    whole = Figure(quantity=Quantity.STEP_SECONDS, value=sum(terms.values()))
    of_job = [Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=value) for term, value in terms.items()]
    return [whole, *of_job, msgspec.structs.replace(of_job[0], value=99.0, rank=0)]


def record(results: Path, *, measured: dict[StepTerm, float], started: float, **changes: Any) -> None:
    job = msgspec.structs.replace(job_for(small_plan(ranks=2), CORPUS, "/none"), **changes.pop("job", {}))
    assert isinstance(job, Job)
    begin = msgspec.structs.replace(begin_record(job, CORPUS, store.new_identity()), started=started)
    if hardware := changes.pop("hardware", None):
        facts = begin.hardware | hardware
        begin = msgspec.structs.replace(begin, hardware=facts, hashes=begin.hashes | {"hardware": repr(facts)})
    closed = end(
        begin.id,
        status=changes.pop("status", Status.OK),
        finished=started + 9,
        figures=figures(measured),
        predicted=changes.pop("predicted", figures(PREDICTED)),
        others_share=0.12,
    )
    store.Opened(store.records_directory(results, "small"), begin).close(closed)


def scaled(factor: float) -> dict[StepTerm, float]:
    return {term: factor * value for term, value in MEASURED.items()}
