"""A recorded launch, judged as it was when it ended: what arithmetic expects and what was measured."""

from __future__ import annotations

from collections.abc import Callable

from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row
from suite.metrics.figures import Figure
from suite.predict.executed_run.figures import expected_figures, judged, memory_options
from suite.predict.executed_run.pipeline_bubble import LaunchSurroundings, with_measured_bubble
from suite.predict.executed_run.routing import given_routing
from suite.records.record import Record, recorded_kernels

Expected = Callable[[Job, Kernels, int], list[Figure]]


def expected_of_job(job: Job, kernels: Kernels, cores: int) -> list[Figure]:
    """Figures that this version of the suite expects of a job on so many cores."""
    return expected_figures(job, kernels=kernels, cores=cores)


def judged_rows(record: Record, expected: Expected = expected_of_job) -> list[Row]:
    """The rows of a launch; times are those that its profile predicted then. None without an end.

    Raises:
        ValueError: this version does not predict its layout or architecture.
    """
    if record.end is None:
        return []
    if record.begin.job.model is not None:  # what its trace expected is kept with it
        return judged([], record.end.predicted, record.end.figures)
    job, kernels = record.begin.job, recorded_kernels(record)
    cores = record.begin.hardware.get("cores", "")
    usable = int(cores) if cores.isdigit() else 1
    figures = expected(job, kernels, usable)
    options = memory_options(job.step_options(kernels), job.kernels)
    rows, places = [rank.computed_rows for rank in record.end.ranks], () if job.slice is None else job.slice.places
    figures = given_routing(job.workload, options, figures, rows, places=places)
    passes = [rank.pipeline_times for rank in record.end.ranks]
    surroundings = LaunchSurroundings(usable, record.end.others_share, record.end.steal_share)
    figures = with_measured_bubble(figures, job, passes, surroundings)
    return judged(figures, record.end.predicted, record.end.figures)
