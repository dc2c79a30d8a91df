"""A run that is slow for one reason: the reason is named; a run without one: none is."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.layout import Recomputation
from reference_runs.run import Workload
from reference_runs.training_logs.facts import Sign
from reference_runs.training_logs.formats import LogFormat
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog
from suite.predict.analytic.machine import Machine
from suite.predict.diagnosis.causes import ExpectedStep, candidates, seen_causes
from suite.predict.diagnosis.pace import pace
from suite.predict.plan.asked import AskedTraining
from suite.predict.plan.predicted_run import PredictionRequest, predicted_run
from suite.predict.recorded_run.figures import Prices
from suite.predict.recorded_run.sweep import layout_seconds


def expected(name: str, on: str, layout: str, stack: str, batch: int) -> ExpectedStep:
    request = PredictionRequest(
        on, None, layout, None, Prices(None, None, 1.0), stack, training=AskedTraining(batch=batch)
    )
    found = predicted_run(name, request)
    assert found.run is not None
    assert found.layout is not None
    assert found.machine is not None
    assert found.machine.machine is not None
    assert found.prediction is not None
    assert found.prediction.step is not None
    workload = Workload(found.run.architecture, found.run.recipe, found.layout)
    return ExpectedStep(workload, found.machine.machine, found.prediction.step)


@pytest.fixture(scope="module")
def dense() -> ExpectedStep:
    return expected("llama2-70b", "h100-sxm", "dp8,tp8,zero1,recompute-none", "megatron-core", 128)


def log(*seconds: float, signs: tuple[Sign, ...] = (), **timers: tuple[float, float]) -> TrainingLog:
    steps = [PrintedStep(number=float(number), seconds=each) for number, each in enumerate(seconds)]
    named = {name.replace("_", "-"): pair for name, pair in timers.items()}
    return TrainingLog("x.log", LogFormat("X", re.compile("x"), {}), steps, {}, named, Counter(signs), [])


def seen(read: TrainingLog) -> list[str]:
    return [cause.words for cause in seen_causes(read, pace(read.steps))]


def test_attention_without_a_kernel_is_the_first_candidate_for_what_it_takes(dense: ExpectedStep) -> None:
    layout = msgspec.structs.replace(dense.workload.layout, fused_attention=False)
    measured = layout_seconds(dense.workload._replace(layout=layout), dense.machine)
    assert candidates(dense, measured)[0].words.startswith("attention without a fused kernel")


def test_recomputation_is_a_candidate_unless_the_layout_was_stated(dense: ExpectedStep) -> None:
    layout = msgspec.structs.replace(dense.workload.layout, recomputation=Recomputation.FULL)
    measured = layout_seconds(dense.workload._replace(layout=layout), dense.machine)
    words = "full recomputation"
    assert candidates(dense, measured)[0].words.startswith(words)
    stated = candidates(dense, measured, known=dense.workload.layout)
    assert not any(cause.words.startswith(words) for cause in stated)


@given(st.floats(2.5, 8))
def test_the_rate_of_a_slow_network_is_the_one_that_explains_the_step(slowdown: float) -> None:
    run = expected("llama2-7b", "a100-sxm-80gb", "dp32,zero3", "pytorch", 32)
    measured = slowdown * run.seconds
    first = candidates(run, measured)[0]
    said = re.match(r"a network of ([\d.,e+-]+) Gbit/s", first.words)
    assert said is not None
    assert first.seconds == pytest.approx(measured - run.seconds)
    rate = float(said[1].replace(",", "")) * 1e9 / 8
    slow: Machine = msgspec.structs.replace(run.machine, network_bytes_per_second=rate)
    assert layout_seconds(run.workload, slow) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (log(1, 1, 1, signs=(Sign.CACHE_FLUSHES,)), "memory is nearly full"),
        (log(1, 1, 1, batch_generator=(0.3, 0.3)), "waiting for the input pipeline"),
        (log(1, 1, 1, forward_recv=(0.2, 0.2), backward_embedding_all_reduce=(0.2, 0.2)), "stages wait for each other"),
        (log(1, 1, 1, forward_backward=(0.7, 0.9)), "ranks differ: forward-backward takes 0.7 to 0.9 s"),
        (log(*(3 if number % 10 == 0 else 1 for number in range(100))), "stalls: every 10 steps"),
        (log(*(1 + number / 40 for number in range(60))), "the last third of the steps is"),
    ],
)
def test_what_a_log_shows_is_named_first(read: TrainingLog, words: str) -> None:
    assert seen(read)[0].startswith(words)


@given(st.lists(st.floats(0.97, 1.03), min_size=5, max_size=80), st.sampled_from([0.01, 1.0, 60.0]))
def test_an_even_log_shows_no_cause(shares: list[float], seconds: float) -> None:
    even = log(*(share * seconds for share in shares), batch_generator=(0.01 * seconds, 0.01 * seconds))
    assert seen(even) == []
