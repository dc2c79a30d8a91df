from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.units import in_base_unit
from suite.predict.analytic.training_cost import (
    accelerator_seconds,
    compute_optimal_parameters,
    compute_optimal_tokens,
    energy_joules,
    implausible_share,
    training_seconds,
    training_steps,
)
from tests.support.strategies import BLOOM

COUNTS = st.integers(1, 10**6)


@given(st.integers(1, 10**15), COUNTS, COUNTS)
def test_steps_are_the_least_that_see_all_tokens(tokens: int, global_batch: int, sequence: int) -> None:
    steps = training_steps(tokens=tokens, global_batch=global_batch, sequence=sequence)
    assert (steps - 1) * global_batch * sequence < tokens <= steps * global_batch * sequence


@given(st.floats(1e15, 1e27))
def test_the_compute_optimal_training_takes_its_flop_and_20_tokens_a_parameter(flop: float) -> None:
    parameters = compute_optimal_parameters(flop)
    tokens = compute_optimal_tokens(parameters)
    assert 6 * parameters * tokens == pytest.approx(flop)
    assert tokens == 20 * parameters


def test_blooms_step_and_tokens_give_its_days_within_its_interruptions() -> None:
    recipe = BLOOM.recipe
    seconds = training_seconds(
        tokens=recipe.tokens, global_batch=recipe.global_batch, sequence=2048, step_seconds=105.22
    )
    # 118.24 days were published; restarts, the batch's ramp-up and half as many nodes at the end are not in the product
    assert 0.8 < seconds / in_base_unit(118.24, "day", "s") < 1
    held = accelerator_seconds(accelerators=384, seconds=seconds)
    assert 0.8 < held / in_base_unit(1_082_990, "accelerator h", "accelerator s") < 1


@given(st.floats(1, 1e10), st.floats(1, 2000), st.floats(0.1, 1), st.floats(1, 3))
def test_energy_is_proportional_to_each_factor(held: float, watts: float, share: float, effectiveness: float) -> None:
    def joules(*factors: float) -> float:
        given_ = dict(
            zip(("accelerator_seconds", "watts", "power_share", "power_usage_effectiveness"), factors, strict=True)
        )
        return energy_joules(**given_)

    once = joules(held, watts, share, effectiveness)
    # powers of two do not round
    assert joules(2 * held, watts, share, effectiveness) == 2 * once
    assert joules(held, 2 * watts, share, effectiveness) == 2 * once
    assert joules(held, watts, share / 2, effectiveness) == once / 2
    assert joules(held, watts, share, 2 * effectiveness) == 2 * once
    assert joules(3600, 1000, 1, 1) == 3.6e6  # a kilowatt-hour


def test_arrays_give_what_each_number_gives() -> None:
    batches: Any = numpy.array([7.0, 512.0, 2048.0])
    found: Any = training_seconds(tokens=366 * 10**9, global_batch=batches, sequence=2048, step_seconds=1.5)
    each = [
        training_seconds(tokens=366 * 10**9, global_batch=n, sequence=2048, step_seconds=1.5) for n in (7, 512, 2048)
    ]
    assert list(found) == each


def test_a_share_of_the_peak_that_no_training_reaches_is_said_in_words() -> None:
    given = {"step_seconds": 2.0, "accelerators": 4, "peak": 100.0}
    assert implausible_share(flop=600.0, **given) is None  # type: ignore[arg-type]
    words = implausible_share(flop=608.0, **given)  # type: ignore[arg-type]
    assert words is not None
    assert words.startswith("76% of the peak, with that half of attention alone")
    assert "; above 75% some of step time" in words
