from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import bias_activation as module
from kernels.bias_activation import Activation, bias_activation, reference
from kernels.operator import UnsupportedInputError
from kernels.tiles import stages_of, warps_of
from tests.kernels.agreement import DEVICE, DTYPES, assert_as_exact_as_torch, assert_same, normal
from tests.kernels.launches import recorded_launches

# half of those in fp32 to the largest gradients: x + bias, e's exponent, e, 1 + e, r, the slope, its sum, that with dy
ROUNDINGS = 4
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    """x three times as wide as normal, so that the activations' flat ends come too, and a bias."""
    return [(3 * normal(*shape, dtype=torch.float32)).to(dtype), normal(shape[-1], dtype=dtype, seed=1)]


def _assert_exact(inputs: list[Tensor], upstream: Tensor, activation: Activation) -> None:
    def kernel(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return bias_activation(x, bias, activation)

    def plain(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return reference(x, bias, activation)

    assert_as_exact_as_torch(kernel, plain, inputs, [upstream], roundings=ROUNDINGS)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5, 257), (2, 3, 1500), (0, 8)], ids=str)
def test_output_and_gradients_are_as_exact_as_torchs(
    shape: tuple[int, ...], activation: Activation, dtype: torch.dtype
) -> None:
    _assert_exact(_inputs(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=2), activation)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 37), (5, 255), (3, 256), (70, 16), (37, 768), (2, 1023), (3, 4096), (9,), (0, 1500)], ids=str
)
def test_sizes_need_not_divide_anything(shape: tuple[int, ...], activation: Activation, dtype: torch.dtype) -> None:
    _assert_exact(_inputs(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=2), activation)


def test_a_row_may_be_longer_than_any_program() -> None:
    shape = (2, 66_000)
    _assert_exact(_inputs(*shape, dtype=torch.float32), normal(*shape, dtype=torch.float32, seed=2), "fast_gelu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_there_may_be_no_bias(activation: Activation) -> None:
    inputs = _inputs(21, 300, dtype=torch.float32)[:1]
    _assert_exact(inputs, normal(21, 300, dtype=torch.float32, seed=2), activation)


def test_a_bias_in_fp32_keeps_its_gradient_in_fp32() -> None:
    x, _ = _inputs(6, 40, dtype=torch.bfloat16)
    bias = normal(40, dtype=torch.float32, seed=1)
    _assert_exact([x, bias], normal(6, 40, dtype=torch.bfloat16, seed=2), "gelu_tanh")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "relu_squared"])
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


@pytest.mark.parametrize("activation", ["gelu_tanh", "fast_gelu"])
def test_small_values_below_zero_are_not_differences_of_large_ones(activation: Activation) -> None:
    x = torch.linspace(-6, -2, 500, dtype=torch.float64, device=DEVICE).float()
    u = x.double()
    # the reference's 1 + tanh loses ten digits at -6, in float64 too
    w = 1.702 * u if activation == "fast_gelu" else math.sqrt(8 / math.pi) * (u + 0.044715 * u**3)
    error = (bias_activation(x, None, activation).double() / (u * torch.sigmoid(w)) - 1).abs().max()
    # sigmoid(w) > 2^-36: three roundings of the exponent change it by 3 * 36 ln(2) 2^-24 of itself; there are 8 more
    assert error <= (3 * 36 * math.log(2) + 8) * 2**-24


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation: Activation) -> None:
    x = torch.tensor([float("nan"), 1.0], device=DEVICE, requires_grad=True)
    y = bias_activation(x, None, activation)
    (dx,) = torch.autograd.grad(y, x, y.detach())
    assert y.isnan().tolist() == dx.isnan().tolist() == [True, False]


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
    assert {tensor.untyped_storage().data_ptr() for tensor in kept} == {
        tensor.untyped_storage().data_ptr() for tensor in (y, bias)
    }


def test_the_reference_is_pytorchs() -> None:
    x, bias = _inputs(6, 33, dtype=torch.float64)
    u = x + bias
    pytorchs = {
        "gelu": functional.gelu(u),
        "gelu_tanh": functional.gelu(u, approximate="tanh"),
        "relu": functional.relu(u),
        "relu_squared": functional.relu(u) ** 2,
        # as CodeGeeX publishes it
        "fast_gelu": u / (1 + torch.exp(-1.702 * u.abs())) * torch.exp(0.851 * (u - u.abs())),
    }
    assert set(pytorchs) == set(ACTIVATIONS)
    for activation in ACTIVATIONS:
        assert torch.allclose(reference(x, bias, activation), pytorchs[activation], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_references_gradients_are_its_differences(activation: Activation) -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 7, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda x, bias: reference(x, bias, activation), inputs)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    assert torch.equal(bias_activation(x, bias, "gelu_tanh"), reference(x, bias, "gelu_tanh"))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_input_that_is_not_contiguous_gives_the_same(activation: Activation) -> None:
    wide, other = normal(6, 80, dtype=torch.float32), normal(6, 96, dtype=torch.float32, seed=1)
    bias = normal(80, dtype=torch.float32, seed=2)
    for x, upstream in (
        (wide[:, :40], other[:, 3:43]),
        (wide[:, ::2], other[:, 1:80:2]),
        (wide.view(3, 2, 80).transpose(0, 1)[..., :40], other.view(3, 2, 96).transpose(0, 1)[..., :40]),
    ):
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, bias[::2])]
            y = bias_activation(*leaves, activation)
            results.append([y, *torch.autograd.grad(y, leaves, change(upstream))])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_operators_keep_pytorchs_rules(has_bias: bool) -> None:
    x, bias = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    given = bias if has_bias else None
    torch.library.opcheck(torch.ops.llm_reference_runs.bias_activation, (x, given, "relu" if has_bias else "gelu"))
    backward = torch.ops.llm_reference_runs.bias_activation_backward
    torch.library.opcheck(backward, (x.detach(), x.detach(), bias.detach() if has_bias else None, "gelu_tanh"))


@pytest.mark.parametrize(
    ("x", "bias", "activation", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), None, "relu", "dtype of x"),
        (torch.ones(2, 8), torch.ones(8, dtype=torch.int64), "relu", "dtype of bias"),
        (torch.ones(2, 8), torch.ones(7), "relu", "shape of bias"),
        (torch.ones(2, 8), torch.ones(1, 8), "relu", "shape of bias"),
        (torch.ones(2, 8), torch.ones(8, device="meta"), "relu", "device of bias"),
        (torch.ones(2, 0), torch.ones(0), "relu", "columns"),
        (torch.ones(()), None, "relu", "dims of x"),
        (torch.ones(2, 8), None, "swish", "activation"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, bias: Tensor | None, activation: Activation, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=f"^bias_activation: {named}: allowed .*, got .*$"):
        bias_activation(x, bias, activation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [16, 600, 5000])
def test_a_backward_pass_loads_ahead_as_much_as_2_tensors_need(
    columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = recorded_launches(module, monkeypatch)
    x = torch.zeros(100, columns, dtype=dtype, device=DEVICE).requires_grad_()
    bias_activation(x, None, "gelu").sum().backward()
    _, (_, settings) = launches
    loaded = settings["ROWS"] * settings["BLOCK"]
    assert settings["STAGES"] == stages_of(2 * loaded * dtype.itemsize)
    assert settings["num_warps"] == warps_of(loaded)
