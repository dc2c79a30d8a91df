"""Throughput of workers at a parameter store: measured, and as it follows from their steps and the rule of waiting."""

from __future__ import annotations

from statistics import fmean

from suite.job.events import Finished, Step, StepKind
from suite.job.training_job import Job
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.staleness import steady_iterations_per_second

FROM_OWN_STEPS = "from what the workers' steps took without waiting, and the rule by which they wait; not judged"


def measured_rate(steps: list[list[Step]]) -> float:
    """Steps of all workers in a second: the sum of what each did in its timed steps."""
    return sum(1 / fmean(step.seconds for step in own if step.kind is StepKind.TIMED) for own in steps)


def predicted_times(job: Job, finished: list[Finished], steps: list[list[Step]]) -> list[Figure]:
    """Seconds of a global batch, and tokens a second, when workers wait as the rule says and for nothing else.

    A step takes what it took without its waiting. That is slept for with it, by a slow rank.
    """
    assert job.synchronisation is not None
    seconds = []
    for report, own in zip(finished, steps, strict=True):
        work = report.store_work
        assert work is not None
        timed = [step for step in own if step.kind is StepKind.TIMED]
        seconds.append([step.seconds - work.waited_seconds[step.step] for step in timed])
    step_seconds = job.layout.ranks / steady_iterations_per_second(seconds, bound=job.synchronisation.bound)
    tokens = job.recipe.global_batch * job.architecture.sequence
    return [
        Figure(quantity=Quantity.STEP_SECONDS, value=step_seconds, why=FROM_OWN_STEPS),
        Figure(quantity=Quantity.TOKENS_PER_SECOND, value=tokens / step_seconds, why=FROM_OWN_STEPS),
    ]
