"""Cost of a training whose step time is predicted: steps, days, accelerator-hours, energy and money."""

from __future__ import annotations

from typing import NamedTuple

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
