"""The batch, the learning rate and the gradient's factor over a run."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch

from reference_runs.run import LearningRateDecay, Recipe
from suite.execute.optim.learning_rate import gradient_factor, gradient_factor_on_device, learning_rate, squared_norm
from tests.support.launches import small_plan

RECIPE = msgspec.structs.replace(
    small_plan(ranks=1).recipe,
    global_batch=10,
    batch_rampup_start=None,
    batch_rampup_increment=None,
    batch_rampup_samples=None,
    warmup=40,
    decay=240,
    learning_rate=1.0,
    minimum_learning_rate=0.1,
)
DECAYS = pytest.mark.parametrize("decay", LearningRateDecay)


def _recipe(**changes: Any) -> Recipe:
    return msgspec.structs.replace(RECIPE, **changes)


@DECAYS
def test_warm_up_is_linear_and_ends_at_the_peak(decay: LearningRateDecay) -> None:
    recipe = _recipe(learning_rate_decay=decay)
    assert [learning_rate(recipe, seen) for seen in (10, 20, 30, 40)] == pytest.approx([0.25, 0.5, 0.75, 1.0])


@DECAYS
def test_the_decay_passes_its_middle_and_ends_at_the_minimum(decay: LearningRateDecay) -> None:
    recipe = _recipe(learning_rate_decay=decay)
    assert learning_rate(recipe, 140) == pytest.approx(0.55)  # half of the way from 40 to 240
    assert learning_rate(recipe, 239) > 0.1
    assert learning_rate(recipe, 240) == 0.1
    assert learning_rate(recipe, 10_000) == 0.1


def test_a_quarter_of_the_decay_tells_the_shapes_apart() -> None:
    linear, cosine = (
        _recipe(learning_rate_decay=decay) for decay in (LearningRateDecay.LINEAR, LearningRateDecay.COSINE)
    )
    assert learning_rate(linear, 90) == pytest.approx(0.1 + 0.9 * 0.75)
    assert learning_rate(cosine, 90) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_scaled_gradients_are_clipped_as_torch_clips_plain_ones(clip: float) -> None:
    gradients = [torch.randn(7, 5, generator=torch.Generator().manual_seed(1)), torch.full((3,), 2.0)]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    scaled = [gradient * 1024 for gradient in gradients]
    norm = squared_norm(scaled, device=torch.device("cpu")).sqrt().item()
    factor = gradient_factor(_recipe(gradient_clip=clip), norm, loss_scale=1024.0)
    for parameter, gradient in zip(parameters, scaled, strict=True):
        assert parameter.grad is not None
        # scaling by a power of two is exact; norm, factor and product take less than 16 roundings of 2^-24
        assert torch.allclose(gradient * factor, parameter.grad, rtol=16 * 2**-24, atol=0)


def test_the_norm_of_fp16_gradients_is_finite_exactly_where_they_are() -> None:
    largest = torch.full((1000,), torch.finfo(torch.float16).max, dtype=torch.float16)
    assert not largest.norm().isfinite()  # in fp16 it would not be
    norm = squared_norm([largest, largest], device=torch.device("cpu"))
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(2000 * 65504.0**2, rel=2000 * 2**-24)
    for bad in (math.inf, math.nan):
        assert not squared_norm([largest, largest.clone().fill_(bad)], device=torch.device("cpu")).isfinite()
    assert squared_norm([], device=torch.device("cpu")).item() == 0


@pytest.mark.parametrize("norm", [0.0, 1e-9, 0.3, 1.0, 1.0000001, 7.5, 1e12])
def test_the_factor_on_the_device_is_the_host_s_to_a_few_roundings(norm: float) -> None:
    """The square, its root, a sum and a quotient, each rounded to 2^-24 in fp32."""
    factor = gradient_factor_on_device(_recipe(gradient_clip=1.0), torch.tensor(norm, dtype=torch.float32) ** 2)
    assert factor.dim() == 0
    assert factor.item() == pytest.approx(gradient_factor(_recipe(gradient_clip=1.0), norm), rel=4 * 2.0**-24)


def test_a_norm_that_is_not_finite_clips_by_nothing_that_is_hidden() -> None:
    factor = gradient_factor_on_device(_recipe(gradient_clip=1.0), torch.tensor(math.nan))
    assert math.isnan(factor.item())
