"""Times that the ranks of a pipeline would measure if each pass took a given time and its messages some more."""

from __future__ import annotations

import msgspec

from reference_runs.catalog import accumulation
from reference_runs.layout import parse_layout
from reference_runs.placement import coordinates
from suite.job.pipeline_passes import MeasuredPass, PassMedian, PipelineTimes
from suite.job.training_job import Job
from suite.predict.simulation.pipeline_schedule import Durations, timed_passes
from tests.support.page_records import job_of

LATE = 1.25  # how much longer than simulated all of a measured step takes


def pipelined_job(words: str, *, layers: int = 4, ranks: int = 2, samples: int = 6) -> Job:
    """The small job over a pipeline; `ranks` of the layout."""
    job = job_of("small", ranks=1)
    layout = parse_layout(f"{words},micro1,zero0,recompute-none", base=job.layout)
    assert layout.ranks == ranks
    architecture = msgspec.structs.replace(job.architecture, layers=layers)
    recipe = msgspec.structs.replace(job.recipe, global_batch=samples)
    return msgspec.structs.replace(job, architecture=architecture, recipe=recipe, layout=layout)


def times_of(job: Job, durations: Durations) -> list[PipelineTimes]:
    """Times of every rank; `durations` in seconds."""
    stages = timed_passes(job.layout, durations, micro_batches=accumulation(job.recipe, job.layout))
    of_stages = []
    for done in stages:
        seconds = {(each.kind, each.chunk): end - start for each, start, end in done}
        passes = [
            MeasuredPass(*each, round(1e6 * LATE * start), round(1e6 * (LATE * start + end - start)))
            for each, start, end in done
        ]
        medians = [PassMedian(*key, taken) for key, taken in seconds.items()]
        of_stages.append(PipelineTimes(medians=medians, step=7, passes=passes))
    return [of_stages[coordinates(job.layout, rank)["pp"]] for rank in range(job.layout.ranks)]
