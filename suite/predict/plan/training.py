"""Cost of a training whose step time is predicted: steps, days, accelerator-hours, energy and money.

With failures, the expected days beside the ideal ones, and the assumptions behind them.
"""

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
from suite.predict.analytic.machine import Machine
from suite.predict.analytic.training_cost import (
    SECONDS_PER_HOUR,
    accelerator_cost,
    energy_cost,
    energy_joules,
    training_steps,
)
from suite.predict.recorded_run.figures import Prices

SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


class TrainingBill(NamedTuple):
    """A whole training without interruption.

    Args:
        accelerator_seconds: of all accelerators together.
        joules: of the accelerators; None where their power is not recorded.
        cost: of accelerators and energy, in the currency of the prices; None without a price.
    """

    steps: int
    seconds: float
    accelerator_seconds: float
    joules: float | None
    cost: float | None

    @property
    def days(self) -> float:
        """Days of 24 hours."""
        return self.seconds / SECONDS_PER_DAY


def training(
    *, tokens: int, global_batch: int, sequence: int, step_seconds: float, ranks: int, machine: Machine, prices: Prices
) -> TrainingBill:
    """The training on `tokens` tokens with steps of `step_seconds` on `ranks` accelerators."""
    steps = training_steps(tokens=tokens, global_batch=global_batch, sequence=sequence)
    seconds = steps * step_seconds
    held = ranks * seconds
    joules = None
    if machine.watts is not None:
        joules = energy_joules(
            accelerator_seconds=held,
            watts=machine.watts,
            power_share=machine.power_share,
            power_usage_effectiveness=prices.power_usage_effectiveness,
        )
    charges: list[float] = []
    if prices.accelerator_hour is not None:
        charges.append(accelerator_cost(accelerator_seconds=held, price_per_accelerator_hour=prices.accelerator_hour))
    if prices.kilowatt_hour is not None and joules is not None:
        charges.append(energy_cost(energy_joules=joules, price_per_kilowatt_hour=prices.kilowatt_hour))
    return TrainingBill(steps, seconds, held, joules, sum(charges) if charges else None)


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
