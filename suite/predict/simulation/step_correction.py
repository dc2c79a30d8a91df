"""What a step takes over the sum of its parts, each timed alone: by trial steps of a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from suite.machine.half_precision import Kernels
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import Measured
from suite.predict.simulation.step_time import step_seconds


class BesideParts(NamedTuple):
    """A trial step beside the sum of its parts.

    Args:
        parts_seconds: what is predicted of it, part by part.
    """

    timed: TimedReferenceStep
    parts_seconds: float

    @property
    def factor(self) -> float:
        """How many times as long the step took."""
        return self.timed.timing.seconds / self.parts_seconds


def beside_parts(measured: Measured, timed: TimedReferenceStep, *, kernels: Kernels) -> BesideParts:
    """A trial step that was timed with `measured`, beside the sum of its parts.

    Raises:
        InputError: one of them was not measured.
    """
    if timed.parts_seconds is not None:
        return BesideParts(timed, timed.parts_seconds)
    own = timed.trial
    (stage,) = step_seconds(measured, own.workload, kernels=kernels, compiled=own.compiled)
    return BesideParts(timed, stage.step)


def nearest_trial(trials: Sequence[TimedReferenceStep], *, ranks: int, compiled: bool) -> TimedReferenceStep | None:
    """Executed likewise, by as many ranks or the next larger number, else by the most; None: none is."""
    alike = [one for one in trials if one.trial.compiled == compiled]
    return min(
        alike, key=lambda one: (one.trial.layout.ranks < ranks, abs(one.trial.layout.ranks - ranks)), default=None
    )
