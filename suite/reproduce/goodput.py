"""Cost of checkpoints and restarts of a launch, beside the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from suite.job.checkpoints import LaunchGoodput, Restart
from suite.job.events import CheckpointStored, Event, Step
from suite.job.training_job import Job
from suite.predict.analytic.goodput import expected_share


def goodput_of(
    job: Job, events: Sequence[Sequence[Event]], restarts: list[Restart], *, began: float, start_seconds: float
) -> LaunchGoodput | None:
    """Goodput of a launch with checkpoints that ended well; None without checkpoints.

    Args:
        events: of every rank, of steps that were done again the last ones.
        began: when the first step began.
        start_seconds: from the launch until then.
    """
    steps = [event for event in events[0] if isinstance(event, Step) and event.step < job.steps]
    if job.checkpoints is None or not steps:
        return None
    stored = [event for of_rank in events for event in of_rank if isinstance(event, CheckpointStored)]
    numbers = {event.step for event in stored}
    stalls = [max(event.stall_seconds for event in stored if event.step == number) for number in sorted(numbers)]
    sizes = [sum(event.bytes for event in stored if event.step == number) for number in numbers]
    here = [event for event in steps if event.time > began]
    useful, wall = sum(event.seconds for event in here), steps[-1].time - began
    stall = median(stalls) if stalls else 0.0
    predicted = expected_share(
        training_seconds=useful,
        step_seconds=median(event.seconds for event in here),
        every=job.checkpoints.every,
        checkpoint_seconds=stall,
        checkpoints=len(stalls),
        restarts=len(restarts),
        restart_seconds=start_seconds,
    )
    return LaunchGoodput(
        steps=len(here),
        useful_seconds=useful,
        wall_seconds=wall,
        predicted_share=predicted,
        checkpoints=len(stalls),
        checkpoint_bytes=max(sizes, default=0),
        stall_seconds=stall,
        start_seconds=start_seconds,
        restarts=restarts,
    )
