"""Errors to expect of predicted steps and peaks: relative ones, and 80 % intervals."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.machine_model import fit_scores
from reference_runs.stack import Keeping
from suite.predict.analytic.step_time import StepTime

NORMAL_80 = 1.2816  # standard deviations that the middle 80 % of a normal distribution reach


def expected_error(assumed: Sequence[float]) -> float:
    """Relative error to expect of a step time: that of a published table which the fit has not seen.

    The mean over the tables, each left out in turn, with the `assumed` errors of what no table measured (accelerator,
    stack) added as independent ones.
    """
    tables = fit_scores().tables.values()
    unseen = sum(score.table_left_out for score in tables) / len(tables) / 100
    return math.hypot(unseen, *assumed)


COMPUTING, WAITING = "computing", "waiting"  # regimes of a step
_WAITING_SHARE = 0.25  # of the step, from where on it waits
_WAITED_FOR = (
    *("tensor_parallel_seconds", "context_parallel_seconds", "expert_parallel_seconds", "pipeline_seconds"),
    *("bubble_seconds", "data_parallel_seconds", "tied_embedding_seconds", "launch_seconds", "overhead_seconds"),
)


def regime(step: StepTime) -> str:
    """Whether accelerators compute, or wait a quarter of the step or longer: for messages, stages and launches."""
    waited = sum(getattr(step, name) for name in _WAITED_FOR)
    return WAITING if waited >= _WAITING_SHARE * step.total_seconds else COMPUTING


def step_interval(step: StepTime, *, assumed: float) -> tuple[float, float]:
    """Least and most seconds of the step: its 80 % interval.

    From the errors of steps in the same regime whose table the fit had not seen: they hold what parameters, models and
    laboratories contribute. The `assumed` standard error of what no table measured is independent of them.
    """
    half = math.hypot(fit_scores().half_width[regime(step)], NORMAL_80 * assumed)
    return step.total_seconds * math.exp(-half), step.total_seconds * math.exp(half)


class MemoryVerdict(enum.StrEnum):
    """Whether a predicted peak fits, in words.

    fits: even the most of its 80 % interval is within the usable memory.
    probably fits: it is, with the error to expect; the interval reaches beyond.
    may not fit: the tensors alone are, and the error to expect is not.
    does not fit: the tensors alone are not.
    """

    FITS = "fits"
    PROBABLY = "probably fits"
    DOUBTFUL = "may not fit"
    NOT = "does not fit"


class PeakError(NamedTuple):
    """The part of an accelerator's memory beyond the predicted tensors.

    Args:
        expected: share of the tensors.
        excess: logarithm of the factor up to which 80 % of measured peaks lie above them.
    """

    expected: float
    excess: float

    def interval(self, peak: float) -> tuple[float, float]:
        """Least and most bytes where the tensors have so many: the 80 % interval."""
        return peak, peak * math.exp(self.excess)

    def verdict(self, peak: float, usable: float) -> MemoryVerdict:
        """Whether a peak of so many bytes fits, where so many are usable."""
        if peak > usable:
            return MemoryVerdict.NOT
        if peak > self.safe_share * usable:
            return MemoryVerdict.DOUBTFUL
        return MemoryVerdict.PROBABLY if self.interval(peak)[1] > usable else MemoryVerdict.FITS

    @property
    def safe_share(self) -> float:
        """The share of the usable memory that a search fills with tensors: the rest is the error to expect."""
        return 1 - self.expected


# Where every tensor is known, PyTorch's allocator alone adds to them: reserved over allocated bytes of the step with
# the peak, five launches on one H100 (results/recorded_h100): their mean, and the largest.
EVERY_TENSOR = PeakError(expected=0.0489, excess=math.log(1.1082))


def peak_error(keeping: Keeping) -> PeakError:
    """The error of a peak: of formulas, as published peaks have it, or of a step that is walked through.

    Formulas: the mean error over the published tables with measured peaks, and what 527 rows of one sweep of nanotron,
    a model of 1B on H100, and one of BLOOM have beyond the tensors.
    """
    if keeping.walked:
        return EVERY_TENSOR
    scores = fit_scores()
    return PeakError(sum(scores.peak_bytes.values()) / len(scores.peak_bytes) / 100, scores.peak_excess)
