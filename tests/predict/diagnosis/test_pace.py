"""The usual step, the warm-up, stalls and drifts."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.errors import InputError
from reference_runs.training_logs.formats import LogFormat
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog
from suite.predict.diagnosis.pace import Pauses, pace, step_seconds


def steps(*seconds: float) -> list[PrintedStep]:
    return [PrintedStep(number=float(number), seconds=each) for number, each in enumerate(seconds)]


def log(*printed: PrintedStep, of_micro_batch: bool = False) -> TrainingLog:
    form = LogFormat("X", re.compile("x"), {}, of_micro_batch=of_micro_batch)
    return TrainingLog("x.log", form, list(printed), {}, {}, Counter(), [])


@given(st.lists(st.floats(0.95, 1.05), min_size=12, max_size=60), st.floats(1e-3, 1e3), st.floats(2, 100))
def test_the_first_steps_are_left_out_and_even_ones_have_neither_stalls_nor_drift(
    shares: list[float], second: float, slow: float
) -> None:
    found = pace(steps(*(slow * second for _ in range(3)), *(share * second for share in shares)))
    assert 0.95 * second <= found.low <= found.seconds <= found.high <= 1.05 * second * (1 + 1e-9)
    assert (found.warm_up, found.stalls, found.rhythm) == (3, 0, None)
    assert found.drift is not None
    assert abs(found.drift) <= 0.11


def test_stalls_have_a_rhythm_and_lengthen_the_mean() -> None:
    found = pace(steps(9, 9, 9, *(5.0 if number % 10 == 0 else 1.0 for number in range(3, 103))))
    assert (found.stalls, found.rhythm) == (10, 10)
    assert found.stalled_seconds == pytest.approx(0.4)


def test_a_drift_is_that_of_the_last_third() -> None:
    found = pace(steps(1, 1, 1, *(1 + number / 60 for number in range(60))))
    assert found.drift == pytest.approx(0.57, abs=0.02)


def test_times_follow_from_rates_stamps_and_micro_batches() -> None:
    def seconds(*printed: PrintedStep, tokens: float | None = None, gpus: int | None = None) -> list[float | None]:
        timed = step_seconds(log(*printed), tokens=tokens, gpus=gpus, micro_batches=None)
        return [step.seconds for step in timed]

    assert seconds(PrintedStep(batches_per_second=4)) == [0.25]
    assert seconds(PrintedStep(tokens_per_second=100), tokens=200) == [2]
    assert seconds(PrintedStep(device_tokens_per_second=100), tokens=800, gpus=4) == [2]
    assert seconds(PrintedStep(samples=32, samples_per_second=8)) == [4]
    stamped = [PrintedStep(number=10, stamp=100), PrintedStep(number=20, stamp=130)]
    assert seconds(*stamped) == [3]
    micro = step_seconds(log(PrintedStep(seconds=0.5), of_micro_batch=True), tokens=None, gpus=None, micro_batches=8)
    assert micro[0].seconds == 4


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ([PrintedStep(number=1, stamp=5), PrintedStep(number=2, stamp=3)], "the time runs backwards"),
        ([PrintedStep(seconds=float("nan"))], "no step has a time"),
    ],
)
def test_a_log_without_times_is_refused(printed: list[PrintedStep], words: str) -> None:
    with pytest.raises(InputError, match=words):
        step_seconds(log(*printed), tokens=None, gpus=None, micro_batches=None)


def stamped(*pauses: float) -> list[PrintedStep]:
    """Steps of a second, each after a pause that its time does not contain."""
    moments = [sum(1 + each for each in pauses[: place + 1]) for place in range(len(pauses))]
    return [PrintedStep(number=float(place), seconds=1.0, stamp=1 + each) for place, each in enumerate(moments)]


def test_a_single_long_step_is_no_pace_of_the_run() -> None:
    assert pace(steps(*[1.0] * 20, 30.0, *[1.0] * 20)).stalls == 0
    assert pace(steps(*[1.0] * 20, 30.0, 30.0, *[1.0] * 20)).stalls == 2


def test_what_passes_between_the_steps_is_known_by_the_stamps_of_their_lines() -> None:
    each_step = pace(stamped(*[0.5] * 43))
    assert (each_step.seconds, each_step.pauses) == (1, Pauses(pytest.approx(0.5), None))
    every_tenth = pace(stamped(*(5.0 if place % 10 == 0 else 0.0 for place in range(43))))
    assert every_tenth.pauses is not None
    assert every_tenth.pauses.rhythm == 10
    assert every_tenth.pauses.seconds == pytest.approx(20 / 39)
    assert pace(stamped(*[0.0] * 43)).pauses is None
    assert pace(steps(*[1.0] * 43)).pauses is None


def test_a_clock_that_was_set_back_is_noted_and_quartiles_lie_among_the_steps() -> None:
    known = log(*(PrintedStep(number=number, stamp=100 + number - 5 * (number > 5)) for number in range(10)))
    assert [step.seconds for step in step_seconds(known, tokens=None, gpus=None, micro_batches=None)] == [1] * 8
    assert known.notes[-1] == "the time runs backwards at 1 of 10 steps"
    two = pace(steps(0.1, 0.3))
    assert 0.1 <= two.low <= two.high <= 0.3
