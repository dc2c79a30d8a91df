"""Dynamic loss scaling; around a training step: tests/execute/training/test_step.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reference_runs.catalog import reference_run
from reference_runs.run import Precision, Recipe
from suite.execute.optim.loss_scale import LossScale, LossScaleError, loss_scale
from suite.execute.precision import store_weights
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

CPU = torch.device("cpu")
FP16 = pytest.mark.parametrize("precision", [precision for precision in Precision if precision.scaled])


def _scales(initial: float, window: int, least: float, finite: list[bool]) -> list[float]:
    """Scales before and after each step, up to the step at which it gives up."""
    scale = LossScale(initial, window, least)
    seen = [scale.scale]
    for good in finite:
        try:
            scale.adapt(finite=good)
        except LossScaleError:
            break
        seen.append(scale.scale)
    return seen


@given(
    initial=st.sampled_from([1.0, 3.0, 4.0, 65536.0, 2.0**32]),
    window=st.integers(1, 4),
    finite=st.lists(st.booleans(), max_size=60),
)
def test_the_scale_is_that_of_each_run_of_good_steps_counted_by_itself(
    initial: float, window: int, finite: list[bool]
) -> None:
    for steps, scale in enumerate(_scales(initial, window, 1.0, finite)):
        expected, good = initial, 0
        for flag in [*finite[:steps], None]:
            if flag:
                good += 1
            else:  # an overflow, or now
                expected *= 2 ** (good // window)
                good = 0
            if flag is False:
                assert expected > 1
                expected = max(expected / 2, 1.0)
        assert scale == expected
    if steps < len(finite):
        assert scale == 1
        assert not finite[steps]


@given(
    initial=st.sampled_from([1.0, 3.0, 65536.0, 2.0**120, 2.0**127]),
    window=st.integers(1, 4),
    finite=st.lists(st.booleans(), max_size=60),
)
def test_far_from_its_least_value_it_is_torchs(initial: float, window: int, finite: list[bool]) -> None:
    theirs, tracker = torch.full((1,), initial), torch.zeros(1, dtype=torch.int32)
    ours = LossScale(initial, window, least=0.0)
    for good in finite:
        ours.adapt(finite=good)
        torch._amp_update_scale_(theirs, tracker, torch.tensor([float(not good)]), 2.0, 0.5, window)
        assert ours.scale == theirs.item()
        assert ours.good_steps == tracker.item()


def test_at_the_least_scale_an_overflow_ends_the_run() -> None:
    scale = LossScale(4.0, 2, least=1.0)
    for expected in (2.0, 1.0):
        scale.adapt(finite=False)
        assert scale.scale == expected
    with pytest.raises(LossScaleError, match="least loss scale, 1"):
        scale.adapt(finite=False)
    assert issubclass(LossScaleError, ArithmeticError)


def test_runs_start_with_their_recorded_scale() -> None:
    starts = {
        name: loss_scale(reference_run(name).recipe)
        for name in ("opt-175b", "glm-130b", "gpt-neox-20b", "codegeex-13b", "bloom-176b")
    }
    assert {name: start and (start.scale, start.growth_interval, start.least) for name, start in starts.items()} == {
        "opt-175b": (4.0, 132, 1.0),
        "glm-130b": (65536.0, 200, 1.0),
        "gpt-neox-20b": (4096.0, 1000, 1.0),
        "codegeex-13b": (2.0**32, 1000, 1.0),
        "bloom-176b": None,
    }
    assert loss_scale(_recipe(Precision.FP16, initial_loss_scale=0.25, loss_scale_window=9)) == LossScale(0.25, 9, 0.25)
    assert loss_scale(_recipe(Precision.FP32)) is None


def _recipe(precision: Precision, **changes: Any) -> Recipe:
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    return msgspec.structs.replace(recipe, precision=precision, **changes)


def test_without_a_scale_a_small_gradient_vanishes() -> None:
    for scale, expected in ((1.0, 0.0), (1024.0, 2.0**-27)):
        model = nn.Linear(1, 1, bias=False)
        (group,) = store_weights([model], _recipe(Precision.FP16), shards=1, device=CPU)
        loss = model(torch.full((1, 1), 2.0**-14, dtype=torch.float16)).float().sum() * 2.0**-13
        (loss * scale).backward()
        gradient = group.leaves[0].grad
        assert gradient is not None
        # below half of 2^-24, fp16's smallest number
        assert gradient.float().item() / scale == expected
