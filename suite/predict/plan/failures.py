"""A training with failures: the expected days beside the ideal ones, and what was assumed for them."""

from __future__ import annotations

from typing import NamedTuple

from suite.predict.analytic.goodput import (
    FAILURES_PER_ACCELERATOR_HOUR,
    LLAMA_3_ACCELERATORS,
    LLAMA_3_DAYS,
    LLAMA_3_STOPS,
    daly_interval_seconds,
    expected_seconds,
    seconds_between_failures,
)

CHECKPOINT_SECONDS = 60.0  # where the run records none and none is given
RESTART_SECONDS = 600.0  # finding the failure, replacing the node, loading the checkpoint


class Failures(NamedTuple):
    """Known rates of failures and times around them; None where a default is to be taken.

    Args:
        per_accelerator_hour: failures that stop the job, of one accelerator and its share of host and network.
        checkpoint_seconds: during which nothing is trained.
        restart_seconds: from a failure until training goes on from the last checkpoint.
    """

    per_accelerator_hour: float | None = None
    checkpoint_seconds: float | None = None
    restart_seconds: float | None = None


class Goodput(NamedTuple):
    """An expected training.

    Args:
        seconds: expected.
        share: of them that an undisturbed training takes.
        interval_seconds: of training between checkpoints, which loses least.
        assumed: what was not given, in words.
    """

    seconds: float
    share: float
    between_failures_seconds: float
    checkpoint_seconds: float
    interval_seconds: float
    restart_seconds: float
    assumed: tuple[str, ...]


def goodput(
    failures: Failures, *, accelerators: int, training_seconds: float, recorded_checkpoint_seconds: float | None
) -> Goodput:
    """The expected training on so many accelerators, with checkpoints at Daly's interval.

    Args:
        recorded_checkpoint_seconds: as the run published them.
    """
    rate, checkpoint, restart = failures
    assumed = []
    if rate is None:
        rate = FAILURES_PER_ACCELERATOR_HOUR
        assumed.append(
            f"failures as in Llama 3's training: {LLAMA_3_STOPS} in {LLAMA_3_DAYS} days on {LLAMA_3_ACCELERATORS:,}"
        )
    if checkpoint is None:
        checkpoint = CHECKPOINT_SECONDS if recorded_checkpoint_seconds is None else recorded_checkpoint_seconds
        origin = "assumed" if recorded_checkpoint_seconds is None else "as recorded of the run"
        assumed.append(f"a checkpoint of {checkpoint:g} s, {origin}")
    if restart is None:
        restart = RESTART_SECONDS
        assumed.append(f"a restart of {restart:g} s, assumed")
    between = seconds_between_failures(failures_per_accelerator_hour=rate, accelerators=accelerators)
    interval = daly_interval_seconds(checkpoint_seconds=checkpoint, between_failures_seconds=between)
    interval = min(interval, training_seconds)
    seconds = expected_seconds(
        training_seconds=training_seconds,
        interval_seconds=interval,
        checkpoint_seconds=checkpoint,
        restart_seconds=restart,
        between_failures_seconds=between,
    )
    share = training_seconds / seconds
    return Goodput(seconds, share, between, checkpoint, interval, restart, tuple(assumed))
