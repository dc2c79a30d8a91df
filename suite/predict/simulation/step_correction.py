"""Time of a step over the sum of its parts, each timed alone: by reference steps of a calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from suite.job.options import StepOptions
from suite.machine.half_precision import Kernels
from suite.machine.profile import UNSEEN, Check
from suite.machine.reference_step import TimedReferenceStep
from suite.machine.timing_tables import MeasuredTimes
from suite.machine.timings import median
from suite.predict.simulation.step_time import step_seconds

# Nine of ten launches of the miniatures took at most so much more or less than predicted from a whole calibration
# (84 launches of 28 setups, 2 cores of an AMD EPYC, Zen 5, 2026-11-25: results/recorded/TABLES.md)
MODEL_UNCERTAINTY = 0.15


class StepCorrection(NamedTuple):
    """A reference step compared with the sum of its parts.

    Args:
        parts_seconds: what is predicted of it, part by part.
    """

    timed: TimedReferenceStep
    parts_seconds: float

    @property
    def factor(self) -> float:
        """How many times as long the step took."""
        return self.timed.timing.seconds / self.parts_seconds


def step_correction(measured: MeasuredTimes, timed: TimedReferenceStep, *, kernels: Kernels) -> StepCorrection:
    """A reference step that was timed with `measured`, compared with the sum of its parts.

    Raises:
        InputError: one of them was not measured.
    """
    if timed.parts_seconds is not None:
        return StepCorrection(timed, timed.parts_seconds)
    options = StepOptions(kernels=kernels, compiled=timed.step.compiled)
    (stage,) = step_seconds(measured, timed.step.workload, options)
    return StepCorrection(timed, stage.step)


def nearest_reference_step(
    steps: Sequence[TimedReferenceStep], *, ranks: int, compiled: bool
) -> TimedReferenceStep | None:
    """Executed likewise, by as many ranks or the next larger number, else by the most; None: none is."""
    alike = [step for step in steps if step.step.compiled == compiled]
    return min(
        alike, key=lambda step: (step.step.layout.ranks < ranks, abs(step.step.layout.ranks - ranks)), default=None
    )


def uncertainty(timed: TimedReferenceStep, checks: Sequence[Check]) -> float:
    """Share of a predicted step by which measured ones may differ.

    sqrt(m^2 + r^2 + i^2), with
        m   0.15: what predictions by whole calibrations stayed within in 27 of 28 setups
        r   half of what lies between the 20 % and 80 % quantiles of the reference step's, over their median
        i   the interpolation's bias: median of the signed errors at sizes between the tables' points
    """
    spread = (timed.timing.high - timed.timing.low) / 2 / timed.timing.median
    bias = median([check.error for check in checks if check.kind == UNSEEN] or [0.0])
    return math.sqrt(MODEL_UNCERTAINTY**2 + spread**2 + bias**2)
