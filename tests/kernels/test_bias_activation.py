"""Activations: PyTorch's are their references, far from zero and near it they are exact, and NaN stays NaN."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import bias_activation as ungated
from kernels import gated_activation, geglu, swiglu
from kernels.bias_activation import Activation, bias_activation
from kernels.tiles import stages_of, warps_of
from tests.kernels.agreement import DEVICE, DTYPES, normal
from tests.kernels.launches import recorded_launches
from tests.kernels.row_kernels import ACTIVATIONS

NAMES: tuple[Activation, ...] = get_args(Activation)
GATED = {"geglu": geglu.geglu, "swiglu": swiglu.swiglu}


def test_the_references_are_pytorchs() -> None:
    x, bias = normal(6, 34, dtype=torch.float64), normal(34, dtype=torch.float64, seed=1)
    u = 3 * x + bias
    gate, gated = u[:, ::2], u[:, 1::2]  # unit by unit
    pytorchs = {
        "gelu": functional.gelu(u),
        "gelu_tanh": functional.gelu(u, approximate="tanh"),
        "relu": functional.relu(u),
        "relu_squared": functional.relu(u) ** 2,
        # as CodeGeeX publishes it
        "fast_gelu": u / (1 + torch.exp(-1.702 * u.abs())) * torch.exp(0.851 * (u - u.abs())),
        "geglu": functional.gelu(gate) * gated,
        "geglu by tanh": functional.gelu(gate, approximate="tanh") * gated,
        "swiglu": functional.silu(gate) * gated,
    }
    assert set(NAMES) < set(pytorchs)
    for name, expected in pytorchs.items():
        assert torch.allclose(ACTIVATIONS[name].plain(3 * x, bias), expected, rtol=1e-9, atol=1e-15), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [name for name in NAMES if name != "relu_squared"])
def test_far_from_zero_it_is_the_identity_or_zero(activation: Activation, dtype: torch.dtype) -> None:
    # fp32: e^-u is below its range from 104 on, 1.702 * 80 = 136; u^3 is beyond it from 7e12 on, u^2 from 2e19 on
    sizes = [float(size) for size in (80, 200, 1000, 60_000, 1e13, 1e20, 1e38) if size < torch.finfo(dtype).max]
    if activation == "gelu":
        sizes = sizes[:5]  # the interpreter warns where u^2 overflows
    x = torch.tensor([*sizes, *(-size for size in sizes)]).to(DEVICE, dtype).requires_grad_()
    y = bias_activation(x, None, activation)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    positive = x.detach() > 0
    assert torch.equal(y.detach(), torch.where(positive, x.detach(), 0))
    assert torch.equal(dx, positive.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "large", "larger"), [("geglu", 20, 1000), ("swiglu", 200, 60_000)])
def test_far_from_zero_a_gated_one_is_the_product_or_zero(
    name: str, large: float, larger: float, dtype: torch.dtype
) -> None:
    # e^-200 is below fp32's range
    x = torch.tensor([[large, 3], [1000, -0.5], [-large, 3], [-larger, 0.5]]).to(DEVICE, dtype).requires_grad_()
    y = GATED[name](x, None)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.flatten().tolist() == [3 * large, -500, 0, 0]
    assert dx.tolist() == [[3, large], [-0.5, 1000], [0, 0], [0, 0]]


@pytest.mark.parametrize("activation", ["gelu_tanh", "fast_gelu"])
def test_small_values_below_zero_are_not_differences_of_large_ones(activation: Activation) -> None:
    x = torch.linspace(-6, -2, 500, dtype=torch.float64, device=DEVICE).float()
    u = x.double()
    # the reference's 1 + tanh loses ten digits at -6, in float64 too
    w = 1.702 * u if activation == "fast_gelu" else math.sqrt(8 / math.pi) * (u + 0.044715 * u**3)
    error = (bias_activation(x, None, activation).double() / (u * torch.sigmoid(w)) - 1).abs().max()
    # sigmoid(w) > 2^-36: three roundings of the exponent change it by 3 * 36 ln(2) 2^-24 of itself; there are 8 more
    assert error <= (3 * 36 * math.log(2) + 8) * 2**-24


def test_nan_stays_nan() -> None:
    nan = float("nan")
    for activation in NAMES:
        x = torch.tensor([nan, 1.0], device=DEVICE, requires_grad=True)
        y = bias_activation(x, None, activation)
        (dx,) = torch.autograd.grad(y, x, y.detach())
        assert y.isnan().tolist() == dx.isnan().tolist() == [True, False], activation
    for name, gated in GATED.items():
        x = torch.tensor([[nan, 1.0], [1.0, nan], [1.0, 1.0]], device=DEVICE, requires_grad=True)
        y = gated(x, None)
        (dx,) = torch.autograd.grad(y, x, y.detach())
        assert y.flatten().isnan().tolist() == dx.isnan().any(-1).tolist() == [True, True, False], name


def test_squared_relu_is_the_square_or_zero_and_its_gradient_twice_the_input() -> None:
    x = torch.tensor([-1000.0, -1.0, 0.0, 0.5, 3.0, 1e15], device=DEVICE, requires_grad=True)
    y = bias_activation(x, None, "relu_squared")
    assert y.tolist() == [0, 0, 0, 0.25, 9, float(x.detach()[-1].square())]
    assert torch.autograd.grad(y, x, torch.ones_like(y))[0].tolist() == [0, 0, 0, 1, 6, float(2 * x.detach()[-1])]


def test_relu_has_no_gradient_at_zero_and_keeps_its_output_alone() -> None:
    x = torch.tensor([-1.0, 0.0, 1.0, 2.0], device=DEVICE, requires_grad=True)
    bias = torch.tensor([0.0, 0.0, -1.0, -1.0], device=DEVICE)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (kept.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        y = bias_activation(x, bias, "relu")
    assert y.tolist() == [0, 0, 0, 1]
    assert torch.autograd.grad(y, x, torch.ones_like(y))[0].tolist() == [0, 0, 0, 1]
    assert {tensor.data_ptr() for tensor in kept} == {y.data_ptr(), bias.data_ptr()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [16, 600, 5000])
def test_a_backward_pass_loads_ahead_as_much_as_its_tensors_need(
    columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tensors of an activation, three of a gated one, which holds four values of each place."""
    x = torch.zeros(100, columns, dtype=dtype, device=DEVICE).requires_grad_()
    for module, run, tensors, values in (
        (ungated, lambda: bias_activation(x, None, "gelu"), 2, 1),
        (gated_activation, lambda: swiglu.swiglu(x, None), 3, 4),
    ):
        launches = recorded_launches(module, monkeypatch)
        run().sum().backward()
        _, (_, settings) = launches
        loaded = settings["ROWS"] * settings["BLOCK"]
        assert settings["STAGES"] == stages_of(tensors * loaded * dtype.itemsize)
        assert settings["num_warps"] == warps_of(values * loaded, x.device)
