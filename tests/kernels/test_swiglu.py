from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import gated_activation
from kernels import swiglu as module
from kernels.operator import UnsupportedInputError
from kernels.swiglu import reference, swiglu
from kernels.tiles import stages_of, warps_of
from tests.kernels.agreement import DEVICE, DTYPES, Function, assert_as_exact_as_torch, normal
from tests.kernels.launches import recorded_launches

# half of those in fp32 to the largest gradients: x + bias, e's exponent, e, 1 + e, r, the slope, its sum, that with dy
ROUNDINGS = 4


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    """An expansion three times as wide as normal, so that silu's flat ends come too, and a bias."""
    return [(3 * normal(*shape, dtype=torch.float32)).to(dtype), normal(shape[-1], dtype=dtype, seed=1)]


def _assert_exact(kernel: Function, plain: Function, inputs: list[Tensor], upstream: Tensor) -> None:
    assert_as_exact_as_torch(kernel, plain, inputs, [upstream], roundings=ROUNDINGS)


def _upstream(*shape: int, dtype: torch.dtype) -> Tensor:
    return normal(*shape[:-1], shape[-1] // 2, dtype=dtype, seed=2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 2), (1, 74), (5, 510), (4, 514), (2, 3, 1536), (70, 16), (37, 700), (2, 2046), (2, 8192), (0, 8), (10,)],
    ids=str,
)
def test_output_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    _assert_exact(swiglu, reference, _inputs(*shape, dtype=dtype), _upstream(*shape, dtype=dtype))


@pytest.mark.parametrize("columns", [40, 2050])
def test_there_may_be_no_bias(columns: int) -> None:
    inputs = _inputs(21, columns, dtype=torch.float32)[:1]
    upstream = _upstream(21, columns, dtype=torch.float32)
    _assert_exact(lambda x: swiglu(x, None), lambda x: reference(x, None), inputs, upstream)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_far_from_zero_it_is_the_product_or_zero(dtype: torch.dtype) -> None:
    # e^-200 is below fp32's range
    x = torch.tensor([[200.0, 3], [1000, -0.5], [-200, 3], [-60_000, 0.5]]).to(DEVICE, dtype).requires_grad_()
    y = swiglu(x, None)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.flatten().tolist() == [600, -500, 0, 0]
    assert dx.tolist() == [[3, 200], [-0.5, 1000], [0, 0], [0, 0]]


def test_nan_stays_nan() -> None:
    x = torch.tensor([[float("nan"), 1.0], [1.0, float("nan")], [1.0, 1.0]], device=DEVICE, requires_grad=True)
    y = swiglu(x, None)
    (dx,) = torch.autograd.grad(y, x, y.detach())
    assert y.flatten().isnan().tolist() == [True, True, False]
    assert dx.isnan().any(-1).tolist() == [True, True, False]


def test_the_reference_is_pytorchs_with_gate_and_gated_unit_by_unit() -> None:
    x, bias = _inputs(6, 34, dtype=torch.float64)
    u = x + bias
    assert torch.allclose(reference(x, bias), functional.silu(u[:, ::2]) * u[:, 1::2], rtol=1e-12)


def test_the_references_gradients_are_its_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 8, dtype=torch.float64)]
    assert torch.autograd.gradcheck(reference, inputs)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    assert torch.equal(swiglu(x, bias), reference(x, bias))


def test_the_operators_keep_pytorchs_rules() -> None:
    x, bias = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    operators = torch.ops.llm_reference_runs
    torch.library.opcheck(operators.gated_activation, (x, bias, "silu"))
    dy = _upstream(5, 8, dtype=torch.float32)
    torch.library.opcheck(operators.gated_activation_backward, (dy, x.detach(), None, "silu"))


@pytest.mark.parametrize(
    ("x", "bias", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), None, "dtype of x"),
        (torch.ones(2, 8), torch.ones(4), "shape of bias"),
        (torch.ones(2, 7), torch.ones(7), "columns"),
        (torch.ones(()), None, "dims of x"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, bias: Tensor | None, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=f"^swiglu: {named}: allowed .*, got .*$"):
        swiglu(x, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [16, 600, 5000])
def test_a_backward_pass_loads_ahead_as_much_as_3_tensors_need(
    columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = recorded_launches(gated_activation, monkeypatch)
    x = torch.zeros(100, columns, dtype=dtype, device=DEVICE).requires_grad_()
    swiglu(x, None).sum().backward()
    _, (_, settings) = launches
    loaded = settings["ROWS"] * settings["BLOCK"]
    assert settings["STAGES"] == stages_of(3 * loaded * dtype.itemsize)
    assert settings["num_warps"] == warps_of(4 * loaded)
