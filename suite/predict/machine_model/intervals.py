"""Errors to expect of predicted steps: relative ones, and 80 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reference_runs.architecture import Architecture
from reference_runs.machine_model import fit_scores
from suite.predict.analytic.memory_uncertainty import NORMAL_80
from suite.predict.analytic.step_time import StepTime


def expected_error(assumed: Sequence[float], architecture: Architecture | None = None) -> float:
    """Relative error to expect of a step time: that of a published table which the fit has not seen.

    The mean over the tables, each left out in turn, with the `assumed` errors of what no table measured (accelerator,
    stack) added as independent ones. Of mixtures of experts at least that of the table whose mixtures were missed most,
    each release of its software left out in turn; of linear layers, which no table has, as much.
    """
    scores = fit_scores()
    unseen = sum(score.table_left_out for score in scores.tables.values()) / len(scores.tables)
    if architecture is not None and is_unlike_dense(architecture):
        of_mixtures = (kinds[MIXTURES].release_left_out for kinds in scores.later.values() if MIXTURES in kinds)
        unseen = max([unseen, *of_mixtures])
    return math.hypot(unseen / 100, *assumed)


def is_unlike_dense(architecture: Architecture) -> bool:
    """Whether errors of dense models' step times are too small for it: mixtures, and layers that no table has."""
    return architecture.experts is not None or architecture.linear_heads is not None


COMPUTING, WAITING, MIXTURES = "computing", "waiting", "mixtures"  # regimes of a step
_WAITING_SHARE = 0.25  # of the step, from where on it waits
_WAITED_FOR = (
    *("tensor_parallel_seconds", "context_parallel_seconds", "expert_parallel_seconds", "pipeline_seconds"),
    *("bubble_seconds", "data_parallel_seconds", "tied_embedding_seconds", "launch_seconds", "overhead_seconds"),
)


def regime(step: StepTime) -> str:
    """Whether accelerators compute, or wait a quarter of the step or longer: for messages, stages and launches."""
    waited = sum(getattr(step, name) for name in _WAITED_FOR)
    return WAITING if waited >= _WAITING_SHARE * step.total_seconds else COMPUTING


def step_interval(step: StepTime, architecture: Architecture | None, assumed: float) -> tuple[float, float]:
    """Least and most seconds of the step: its 80 % interval.

    Mixtures of experts have a wider one, whatever they wait for: that of the table whose mixtures were missed most.
    So have linear layers (linear attention, state spaces), which no table has.

    From the errors of steps in the same regime whose table the fit had not seen: they hold what parameters, models and
    laboratories contribute. The `assumed` standard error of what no table measured is independent of them.
    """
    widths = fit_scores().half_width
    is_wide = architecture is not None and is_unlike_dense(architecture)
    name = MIXTURES if is_wide and MIXTURES in widths else regime(step)
    half = math.hypot(widths[name], NORMAL_80 * assumed)
    return step.total_seconds * math.exp(-half), step.total_seconds * math.exp(half)
