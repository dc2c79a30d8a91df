"""Failures: how often a training stops, how often it should store a checkpoint, and how long it then takes."""

from __future__ import annotations

import math

from reference_runs.errors import InputError
from suite.predict.analytic.training_cost import SECONDS_PER_HOUR

# 419 unexpected interruptions in 54 days of training Llama 3 405B on 16,384 H100: Dubey et al. 2024, arXiv 2407.21783,
# section 3.3.4
LLAMA_3_STOPS, LLAMA_3_DAYS, LLAMA_3_ACCELERATORS = 419, 54, 16384
FAILURES_PER_ACCELERATOR_HOUR = LLAMA_3_STOPS / (LLAMA_3_DAYS * 24 * LLAMA_3_ACCELERATORS)


def seconds_between_failures(*, failures_per_accelerator_hour: float, accelerators: int) -> float:
    """Mean seconds between failures of a job that stops with any of its accelerators: 3600 / (f n)."""
    return SECONDS_PER_HOUR / (failures_per_accelerator_hour * accelerators)


def young_interval_seconds(*, checkpoint_seconds: float, between_failures_seconds: float) -> float:
    """Seconds of training between checkpoints that lose least, to first order: sqrt(2 C M).

    C     seconds of a checkpoint, during which nothing is trained
    M     mean seconds between failures

    Source: Young 1974, A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9).
    """
    return math.sqrt(2 * checkpoint_seconds * between_failures_seconds)


def daly_interval_seconds(*, checkpoint_seconds: float, between_failures_seconds: float) -> float:
    """Seconds of training between checkpoints that lose least, to higher order.

        sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C    C < 2 M
        M                                                        otherwise

    Source: Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
    Computer Systems 22(3), equation 37.
    """
    if checkpoint_seconds >= 2 * between_failures_seconds:
        return between_failures_seconds
    ratio = checkpoint_seconds / (2 * between_failures_seconds)
    young = young_interval_seconds(
        checkpoint_seconds=checkpoint_seconds, between_failures_seconds=between_failures_seconds
    )
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def expected_seconds(
    *,
    training_seconds: float,
    interval_seconds: float,
    checkpoint_seconds: float,
    restart_seconds: float,
    between_failures_seconds: float,
) -> float:
    """Expected seconds of a training with failures: M e^(R/M) (e^((t + C)/M) - 1) W / t.

    W     seconds of the training without failures and checkpoints
    t     seconds of training between checkpoints; C: of a checkpoint; R: of a restart, before training goes on
    M     mean seconds between failures, which come at any time with the same probability, also during C and R

    Source: Daly 2006, equation 20. With M much longer than the rest it is W (1 + C/t + (t + C)/2M + R/M) and less.

    Raises:
        InputError: a time below 0, or an interval or a time between failures of 0.
    """
    given = {"training": training_seconds, "checkpoint": checkpoint_seconds, "restart": restart_seconds}
    for name, value in given.items():
        if not value >= 0:
            raise InputError(f"seconds of a {name}", got=value, allowed="0 or more")
    for name, value in {"between checkpoints": interval_seconds, "between failures": between_failures_seconds}.items():
        if not value > 0:
            raise InputError(f"seconds {name}", got=value, allowed="above 0")
    mean = between_failures_seconds
    try:
        segment = mean * math.exp(restart_seconds / mean) * math.expm1((interval_seconds + checkpoint_seconds) / mean)
    except OverflowError:
        return math.inf
    return segment * training_seconds / interval_seconds


def expected_share(
    *,
    training_seconds: float,
    step_seconds: float,
    every: int | None,
    checkpoint_seconds: float,
    checkpoints: int,
    restarts: int,
    restart_seconds: float,
) -> float:
    """Share of the time that trains, with so many restarts: W / (W + n C + f (R + k s / 2)).

    W     seconds of the training, in steps of s seconds
    n     checkpoints of C seconds each, one in every k steps; without any a restart loses half of W
    f     restarts, of R seconds each before training goes on; they come at any time with the same probability
    """
    lost = training_seconds / 2 if every is None else every * step_seconds / 2
    return training_seconds / (
        training_seconds + checkpoints * checkpoint_seconds + restarts * (restart_seconds + lost)
    )
