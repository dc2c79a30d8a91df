from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from reference_runs.errors import InputError
from suite.predict.analytic.goodput import (
    FAILURES_PER_ACCELERATOR_HOUR,
    daly_interval_seconds,
    expected_seconds,
    expected_share,
    seconds_between_failures,
    young_interval_seconds,
)

HOUR, DAY = 3600.0, 86400.0
means = st.floats(10 * HOUR, 1000 * HOUR)
checkpoints = st.floats(1.0, 600.0)


def expected(mean: float, interval: float, checkpoint: float = 60.0, restart: float = 600.0) -> float:
    return expected_seconds(
        training_seconds=DAY,
        interval_seconds=interval,
        checkpoint_seconds=checkpoint,
        restart_seconds=restart,
        between_failures_seconds=mean,
    )


def test_llama_3_stopped_about_each_three_hours() -> None:
    mean = seconds_between_failures(failures_per_accelerator_hour=FAILURES_PER_ACCELERATOR_HOUR, accelerators=16384)
    assert mean == pytest.approx(54 * DAY / 419)
    assert mean / HOUR == pytest.approx(3.09, abs=0.005)


def simulated_seconds(trainings: int, mean: float, interval: float, checkpoint: float, restart: float) -> float:
    """Mean seconds of trainings of a day, each stretch until a checkpoint repeated until no failure falls into it."""
    generator = numpy.random.default_rng(20241126)
    stretches = round(DAY / interval)
    total = 0.0
    for _ in range(trainings):
        for _ in range(stretches):
            while True:
                failure = generator.exponential(mean)
                if failure >= interval + checkpoint:
                    total += interval + checkpoint
                    break
                total += failure
                while (again := generator.exponential(mean)) < restart:  # a failure while it restarts
                    total += again
                total += restart
    return total / trainings


@pytest.mark.parametrize(("mean", "restart"), [(3 * HOUR, 600.0), (12 * HOUR, 1800.0)])
def test_the_formula_is_what_ten_thousand_trainings_take(mean: float, restart: float) -> None:
    interval, checkpoint = DAY / 24, 120.0
    found = simulated_seconds(10_000, mean, interval, checkpoint, restart)
    assert found == pytest.approx(expected(mean, interval, checkpoint, restart), rel=0.01)


@given(checkpoints, means)
def test_young_is_daly_where_checkpoints_are_short(checkpoint: float, mean: float) -> None:
    daly = daly_interval_seconds(checkpoint_seconds=checkpoint, between_failures_seconds=mean)
    young = young_interval_seconds(checkpoint_seconds=checkpoint, between_failures_seconds=mean)
    # the corrections of Daly are a third of sqrt(C / 2M), a ninth of C / 2M, and C itself
    ratio = math.sqrt(checkpoint / (2 * mean))
    assert abs(daly / young - 1) <= ratio / 3 + ratio**2 / 9 + ratio


def test_a_checkpoint_as_long_as_two_means_or_longer_is_made_once_a_mean() -> None:
    for checkpoint in (2 * HOUR, 3 * HOUR):
        assert daly_interval_seconds(checkpoint_seconds=checkpoint, between_failures_seconds=HOUR) == HOUR
    just_below = daly_interval_seconds(checkpoint_seconds=1.999 * HOUR, between_failures_seconds=HOUR)
    assert just_below == pytest.approx(HOUR * (2 * (1 + 1 / 3 + 1 / 9) - 2), rel=1e-3)


@given(means, st.floats(60.0, 10 * HOUR), checkpoints, st.floats(0.0, HOUR))
def test_limits(mean: float, interval: float, checkpoint: float, restart: float) -> None:
    with_failures = expected(mean, interval, checkpoint, restart)
    assert with_failures >= DAY * (1 + checkpoint / interval)
    assert with_failures <= expected(mean / 2, interval, checkpoint, restart)
    assert with_failures <= expected(mean, interval, checkpoint, restart + 60)
    rare = expected(1e15, interval, checkpoint, restart)
    assert rare == pytest.approx(DAY * (1 + checkpoint / interval), rel=1e-6)


def test_what_never_ends_takes_for_ever() -> None:
    assert expected(1.0, 10 * DAY) == math.inf


@pytest.mark.parametrize("name", ["interval_seconds", "between_failures_seconds", "checkpoint_seconds"])
def test_impossible_times_are_refused(name: str) -> None:
    usual = dict.fromkeys(
        ("training_seconds", "interval_seconds", "checkpoint_seconds", "restart_seconds", "between_failures_seconds"),
        1.0,
    )
    with pytest.raises(InputError, match="seconds"):
        expected_seconds(**usual | {name: -1.0})


@given(st.floats(0.001, 0.3))
def test_dalys_interval_loses_least(share: float) -> None:
    """To within 2 % of the interval that a search finds, where a checkpoint takes this share of the mean; Young's is
    up to a quarter off."""
    best = minimize_scalar(
        lambda interval: expected(HOUR, interval, checkpoint=share * HOUR), bounds=(1.0, 5 * HOUR), method="bounded"
    ).x
    found = daly_interval_seconds(checkpoint_seconds=share * HOUR, between_failures_seconds=HOUR)
    assert found == pytest.approx(best, rel=0.02)


def test_the_expected_share_of_a_worked_example() -> None:
    """1000 s in steps of 2 s: ten checkpoints of 3 s, and two restarts of 30 s that each lose 25 steps on average."""
    given = {"training_seconds": 1000.0, "step_seconds": 2.0, "restarts": 2, "restart_seconds": 30.0}
    found = expected_share(**given, every=50, checkpoint_seconds=3.0, checkpoints=10)  # type: ignore[arg-type]
    assert found == 1000 / (1000 + 10 * 3 + 2 * (30 + 50))
    without = expected_share(**given, every=None, checkpoint_seconds=3.0, checkpoints=0)  # type: ignore[arg-type]
    assert without == 1000 / (1000 + 2 * (30 + 500))
