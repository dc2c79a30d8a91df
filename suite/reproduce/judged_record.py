"""A recorded launch, judged as it was when it ended: what arithmetic expects and what was measured."""

from __future__ import annotations

from collections.abc import Callable

from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row
from suite.metrics.figures import Figure
from suite.predict.executed_run.figures import expected_figures, judged
from suite.records.record import Record, recorded_kernels

Expected = Callable[[Job, Kernels, int], list[Figure]]


def expected_of_job(job: Job, kernels: Kernels, cores: int) -> list[Figure]:
    """What this version of the suite expects of a job on so many cores."""
    return expected_figures(job, kernels=kernels, cores=cores)


def judged_rows(record: Record, expected: Expected = expected_of_job) -> list[Row]:
    """The rows of a launch; times are those that its profile predicted then. None without an end.

    Raises:
        ValueError: this version does not predict its layout or architecture.
    """
    if record.end is None:
        return []
    cores = record.begin.hardware.get("cores", "")
    figures = expected(record.begin.job, recorded_kernels(record), int(cores) if cores.isdigit() else 1)
    return judged(figures, record.end.predicted, record.end.figures)
