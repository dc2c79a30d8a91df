"""The ramp-up of the global batch."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import global_batch_at, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Schedule
from reference_runs.run import Recipe
from suite.reproduce.supported import check_ramp_up
from tests.support.launches import WHOLE_BATCHES

RECIPE = msgspec.structs.replace(reference_run("bloom-176b").recipe, global_batch=10, **WHOLE_BATCHES)


def _recipe(**changes: Any) -> Recipe:
    return msgspec.structs.replace(RECIPE, **changes)


def test_without_ramp_up_the_batch_is_constant() -> None:
    assert {global_batch_at(RECIPE, seen) for seen in (0, 1, 10**9)} == {10}


def _megatron_batch(recipe: Recipe, consumed: int) -> int:
    """Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator, in its floating point."""
    start, increment, samples = recipe.batch_rampup_start, recipe.batch_rampup_increment, recipe.batch_rampup_samples
    if consumed > samples:
        return recipe.global_batch
    return start + int(consumed / (samples / ((recipe.global_batch - start) // increment))) * increment


@pytest.mark.parametrize("run", ["bloom-176b", "glm-130b", "mt-nlg-530b"])
def test_recorded_ramp_ups_follow_megatron_from_the_first_step_to_the_full_batch(run: str) -> None:
    recipe = reference_run(run).recipe
    seen = 0
    batches: list[int] = []
    while not batches or batches[-1] < recipe.global_batch:
        batches.append(global_batch_at(recipe, seen))
        assert batches[-1] == _megatron_batch(recipe, seen)
        seen += batches[-1]
    assert batches[0] == recipe.batch_rampup_start
    assert batches == sorted(batches)
    rises = {late - early for early, late in itertools.pairwise(batches)}
    assert rises == {0, recipe.batch_rampup_increment}
    # the full batch is reached by the first step that begins behind the ramp-up
    assert 0 <= seen - batches[-1] - recipe.batch_rampup_samples < recipe.global_batch


@given(
    start=st.integers(1, 40),
    increment=st.integers(1, 9),
    increments=st.integers(0, 30),
    samples=st.integers(1, 10**6),
    seen=st.integers(0, 2 * 10**6),
)
def test_the_ramp_up_is_a_staircase_of_even_steps(
    start: int, increment: int, increments: int, samples: int, seen: int
) -> None:
    recipe = _recipe(
        global_batch=start + increments * increment,
        batch_rampup_start=start,
        batch_rampup_increment=increment,
        batch_rampup_samples=samples,
    )
    # stair k begins at k equal parts of the ramp-up's samples
    stairs = sum(1 for k in range(1, increments + 1) if seen * increments >= k * samples)
    assert global_batch_at(recipe, seen) == start + stairs * increment


@pytest.mark.parametrize(
    ("start", "increment", "samples", "layout", "word"),
    [
        (4, None, 4, Layout(), "all or none"),
        (4, 4, 4, Layout(), "does not divide"),
        (12, 2, 4, Layout(), "multiples of data_parallel"),
        (4, 3, 4, Layout(data_parallel=2), "multiples of data_parallel"),
        (2, 2, 2, Layout(pipeline_stages=4), "from 4 to 10"),
        (2, 2, 100, Layout(), "ends within the first"),
        # the second step would be the first of the whole batch's schedule
        (4, 2, 8, Layout(pipeline_stages=2), "ends within the first 4 samples"),
    ],
)
def test_ramp_ups_that_cannot_be_executed_or_reach_into_the_counted_steps_are_refused(
    start: int, increment: int | None, samples: int, layout: Layout, word: str
) -> None:
    recipe = _recipe(batch_rampup_start=start, batch_rampup_increment=increment, batch_rampup_samples=samples)
    with pytest.raises(InputError, match=word):
        check_ramp_up(recipe, layout, "here")


def test_ramp_ups_that_end_in_time_are_taken() -> None:
    check_ramp_up(RECIPE, Layout(pipeline_stages=4), "here")
    recipe = _recipe(batch_rampup_start=4, batch_rampup_increment=2, batch_rampup_samples=4)
    check_ramp_up(recipe, Layout(pipeline_stages=2, data_parallel=2), "here")
    two_steps = msgspec.structs.replace(recipe, batch_rampup_samples=8)
    check_ramp_up(two_steps, Layout(), "here")
    short = _recipe(batch_rampup_start=2, batch_rampup_increment=2, batch_rampup_samples=2)
    check_ramp_up(short, Layout(pipeline_stages=4, schedule=Schedule.GPIPE), "here")
