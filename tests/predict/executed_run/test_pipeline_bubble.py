"""The waiting of a pipeline with measured passes: its schedule's, judged where nothing else makes a rank wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from suite.job.pipeline_passes import MeasuredPass, PassKind, PassMedian, PipelineTimes
from suite.job.training_job import Job
from suite.metrics.figures import MEASURED_PASSES, Figure, Quantity
from suite.predict.executed_run.pipeline_bubble import REASON, LaunchSurroundings, with_measured_bubble
from suite.predict.simulation.pipeline_order import passes
from suite.predict.simulation.pipeline_schedule import Durations, idle_fraction
from suite.reproduce.plan import job_for
from suite.reproduce.slice_plan import slice_tokens
from tests.support.launches import small_plan

QUIET = LaunchSurroundings(cores=8, others_share=0.01, steal_share=0.0)
SCHEDULES: list[dict[str, Any]] = [
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"schedule": "1f1b", "virtual_stages": 2},
    {"schedule": "zero-bubble"},
]


def job_of(words: dict[str, Any], **more: Any) -> Job:
    layout = msgspec.convert({"micro_batch": 1, "pipeline_stages": 2} | words, Layout)
    plan = msgspec.structs.replace(small_plan(ranks=1), layout=layout)
    return msgspec.structs.replace(job_for(plan, slice_tokens(plan), str(Path("unused"))), **more)


def times_of(job: Job, durations: Durations, factors: Sequence[float] = (1.0,)) -> list[PipelineTimes]:
    """Times that each stage's ranks measure, one for each factor by which they are slower."""
    micro_batches = accumulation(job.recipe, job.layout)
    reported = []
    for stage in range(job.layout.pipeline_stages):
        distinct = {
            (done.kind, done.chunk): done for done in passes(job.layout, micro_batches=micro_batches, stage=stage)
        }
        for factor in factors:
            medians = [PassMedian(*key, factor * durations.of(done)) for key, done in distinct.items()]
            reported.append(PipelineTimes(medians=medians, step=6, passes=[]))
    return reported


@pytest.mark.parametrize("words", SCHEDULES, ids=str)
@given(data=st.data())
def test_passes_as_long_as_a_models_wait_as_its_simulation(words: dict[str, Any], data: st.DataObject) -> None:
    job = job_of(words)
    seconds = st.lists(st.floats(0.01, 1.0), min_size=(chunks := 2 * job.layout.virtual_stages), max_size=chunks)
    forward, weight = data.draw(seconds), data.draw(seconds)
    durations = Durations(forward, [a + b for a, b in zip(forward, weight, strict=True)], weight)
    expected = idle_fraction(job.layout, durations, micro_batches=accumulation(job.recipe, job.layout))
    (figure,) = with_measured_bubble([], job, times_of(job, durations, (0.5, 1.0, 3.0)), QUIET)
    assert (figure.quantity, figure.term, figure.why) == (Quantity.BUBBLE_FRACTION, MEASURED_PASSES, REASON)
    assert figure.value == pytest.approx(expected, abs=1e-12)
    assert figure.tolerance is not None
    assert figure.tolerance * figure.value == pytest.approx(0.05)


def test_two_equal_stages_wait_for_one_pass_in_nine() -> None:
    job = job_of({"schedule": "1f1b"})
    assert accumulation(job.recipe, job.layout) == 8
    times = times_of(job, Durations([0.02] * 2, [0.04] * 2, [0.02] * 2))
    assert with_measured_bubble([], job, times, QUIET)[0].value == pytest.approx(1 / 9)


def test_what_else_makes_a_rank_wait_is_named() -> None:
    one_core, stolen = QUIET._replace(cores=1), QUIET._replace(steal_share=0.05)
    shared = {"device": "cuda", "shares_devices": True}
    for changes, seconds, surroundings, why in (
        ({}, 0.02, QUIET, ""),
        ({}, 0.005, QUIET, "a pass takes 7.5 ms, in which messages count"),
        ({}, 0.02, one_core, "ranks share processors"),
        ({}, 0.02, QUIET._replace(others_share=None), "what else ran on the processors is not known"),
        ({}, 0.02, stolen, "others took 6% of the processors"),
        ({"device": "cuda"}, 0.02, stolen, ""),
        (shared, 0.02, QUIET, "ranks share a GPU"),
    ):
        job = job_of({"schedule": "1f1b"}, **changes)
        times = times_of(job, Durations([seconds] * 2, [2 * seconds] * 2, [seconds] * 2))
        (figure,) = with_measured_bubble([], job, times, surroundings)
        assert figure.why == (f"not judged: {why}" if why else REASON)
        assert (figure.tolerance is None) == bool(why)


def test_where_every_message_is_waited_for_neither_share_is_judged() -> None:
    for schedule, seconds, judged in (("pipedream", 0.05, False), ("pipedream", 0.1, True), ("1f1b", 0.005, True)):
        job = job_of({"schedule": schedule})
        times = times_of(job, Durations([seconds] * 2, [2 * seconds] * 2, [seconds] * 2))
        flop, by_flop = Figure(Quantity.MODEL_FLOP, 1), Figure(Quantity.BUBBLE_FRACTION, 0.01, tolerance=5.0)
        same, found, _ = with_measured_bubble([flop, by_flop], job, times, QUIET)
        assert same == flop
        assert (found == by_flop) == judged
        if not judged:
            assert found.tolerance is None
            assert found.why == "not judged: a pass takes 75 ms, in which messages count"


def test_without_the_passes_of_every_rank_nothing_is_simulated() -> None:
    job = job_of({"schedule": "zero-bubble"})
    first, second = times_of(job, Durations([0.02] * 2, [0.04] * 2, [0.02] * 2))
    without = msgspec.structs.replace(second, medians=[each for each in second.medians if each.kind != PassKind.WEIGHT])
    assert with_measured_bubble([], job, [first, second], QUIET)
    for incomplete in ([], [first, None], [first, without]):
        assert with_measured_bubble([], job, incomplete, QUIET) == []


def test_without_flush_only_the_less_busy_stage_waits_and_updates_count() -> None:
    job = job_of({"schedule": "pipedream"})
    micro_batches = accumulation(job.recipe, job.layout)
    times = times_of(job, Durations([0.01, 0.02], [0.02, 0.03], [0.01] * 2))
    before = [msgspec.structs.replace(each, between_seconds=None) for each in times]  # as in earlier records
    assert with_measured_bubble([], job, before, QUIET)[0].value == pytest.approx(1 - 8 / 10)
    longer = [msgspec.structs.replace(each, between_seconds=s) for each, s in zip(times, (0.03, 0.01), strict=True)]
    busy, waits = micro_batches * 0.08, micro_batches * 0.02 - 0.02
    assert with_measured_bubble([], job, longer, QUIET)[0].value == pytest.approx(waits / (busy + waits))


def test_a_step_of_a_batch_that_still_grows_is_simulated_with_its_own_micro_batches() -> None:
    job = job_of({"schedule": "1f1b"})
    times = times_of(job, Durations([0.02] * 2, [0.04] * 2, [0.02] * 2))
    of_step = [
        msgspec.structs.replace(
            each, passes=[MeasuredPass(*done, 0, 1) for done in passes(job.layout, micro_batches=4, stage=stage)]
        )
        for stage, each in enumerate(times)
    ]
    assert with_measured_bubble([], job, of_step, QUIET)[0].value == pytest.approx(1 / 5)
