from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from scipy.special import ndtr
from torch import Tensor

from kernels.bias_activation import bias_activation
from kernels.special_functions import exp, normal_distribution
from tests.kernels.agreement import DEVICE


@triton.jit
def _kernel(x_ptr, exp_ptr, part_ptr, density_ptr, EXACT: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    part, density = normal_distribution(x, EXACT)
    tl.store(exp_ptr + place, exp(x))
    tl.store(part_ptr + place, part)
    tl.store(density_ptr + place, density)


def _computed(x: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor]:
    results = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    _kernel[(1,)](x, *results, EXACT=exact, BLOCK=len(x))
    return results


def _relative(got: Tensor, true: Tensor) -> float:
    return float((got.double() / true - 1).abs().max())


@pytest.mark.parametrize("exact", [False, True])
def test_exponential_distribution_and_density_are_those_of_float64(exact: bool) -> None:
    x = torch.linspace(-13, 8, 4096, device=DEVICE)
    power, part, density = _computed(x, exact)
    true = torch.from_numpy(ndtr(x.double().cpu().numpy())).to(DEVICE)
    # rounding x log2(e), or x^2 / 2 log2(e), of up to 85, changes a power of 2 by so much of itself for each rounding
    rounding = 3 * 85 * 2**-24
    assert _relative(power, x.double().exp()) <= rounding
    assert _relative(density, (-0.5 * x.double() ** 2).exp() / math.sqrt(2 * math.pi)) <= rounding
    if exact:
        assert float((part.double() - true).abs().max()) <= 4 * 2**-24
    else:
        assert _relative(part, true) <= 4.7e-6 + rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gelu_of_every_16_bit_number_is_rounded_as_the_exact_one(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    # GELU of large numbers is the number, or 0; the interpreter warns where their squares overflow
    x = every[every.isfinite() & (every.abs() < 1e4)].to(DEVICE)
    true = x.double() * torch.from_numpy(ndtr(x.double().cpu().numpy())).to(DEVICE)
    got = bias_activation(x, None, "gelu").double()
    kinds = torch.finfo(dtype)
    # the distance of neighbours, by the power of two below
    spacing = torch.exp2(true.abs().clamp(min=kinds.tiny).log2().floor()) * kinds.eps
    # half a distance for the last rounding, 5e-6 and the exponent's roundings before it: 0.02 of 2^-10 at most
    # what is below fp32's least normal number becomes 0
    flushed = torch.finfo(torch.float32).tiny
    assert bool(((got - true).abs() <= 0.52 * spacing + flushed).all())


def test_what_is_no_number_stays_none() -> None:
    x = torch.tensor([math.nan, 0.0], device=DEVICE)
    for exact in (False, True):
        assert _computed(x, exact)[1].isnan().tolist() == [True, False]
        assert abs(float(_computed(x, exact)[1][1]) - 0.5) <= 5e-6
