from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import geglu as module
from kernels.geglu import geglu, reference
from kernels.operator import UnsupportedInputError
from tests.kernels.agreement import DEVICE, DTYPES, Function, assert_as_exact_as_torch, assert_same, normal

# half of those in fp32 to the largest gradients: x + bias, dy gated, erf, 1 + erf, the sum with its slope, the product
ROUNDINGS = 3


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    """An expansion three times as wide as normal, so that gelu's flat ends come too, and a bias."""
    return [(3 * normal(*shape, dtype=torch.float32)).to(dtype), normal(shape[-1], dtype=dtype, seed=1)]


def _assert_exact(kernel: Function, plain: Function, inputs: list[Tensor], upstream: Tensor) -> None:
    assert_as_exact_as_torch(kernel, plain, inputs, [upstream], roundings=ROUNDINGS)


def _upstream(*shape: int, dtype: torch.dtype) -> Tensor:
    return normal(*shape[:-1], shape[-1] // 2, dtype=dtype, seed=2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2),
        (1, 74),
        (5, 510),
        (3, 512),
        (4, 514),
        (2, 3, 1536),
        (70, 16),
        (37, 700),
        (2, 2046),
        (2, 3000),
        (2, 8192),
        (0, 8),
        (0, 3000),
        (10,),
    ],
    ids=str,
)
def test_output_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    _assert_exact(geglu, reference, _inputs(*shape, dtype=dtype), _upstream(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gelu_may_be_its_approximation_by_tanh(dtype: torch.dtype) -> None:
    shape = (4, 514)
    inputs, upstream = _inputs(*shape, dtype=dtype), _upstream(*shape, dtype=dtype)
    _assert_exact(partial(geglu, tanh=True), partial(reference, tanh=True), inputs, upstream)


def test_a_row_may_be_longer_than_any_program() -> None:
    shape = (2, 66_000)
    inputs, upstream = _inputs(*shape, dtype=torch.float32), _upstream(*shape, dtype=torch.float32)
    _assert_exact(geglu, reference, inputs, upstream)


@pytest.mark.parametrize("columns", [40, 2050])
def test_there_may_be_no_bias(columns: int) -> None:
    inputs = _inputs(21, columns, dtype=torch.float32)[:1]
    upstream = _upstream(21, columns, dtype=torch.float32)
    _assert_exact(lambda x: geglu(x, None), lambda x: reference(x, None), inputs, upstream)


def test_a_bias_in_fp32_keeps_its_gradient_in_fp32() -> None:
    x, _ = _inputs(6, 40, dtype=torch.bfloat16)
    bias = normal(40, dtype=torch.float32, seed=1)
    _assert_exact(geglu, reference, [x, bias], _upstream(6, 40, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_far_from_zero_it_is_the_product_or_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([[20.0, 3], [1000, -0.5], [-20, 3], [-1000, 0.5]]).to(DEVICE, dtype).requires_grad_()
    y = geglu(x, None)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.flatten().tolist() == [60, -500, 0, 0]
    assert dx.tolist() == [[3, 20], [-0.5, 1000], [0, 0], [0, 0]]


def test_nan_stays_nan() -> None:
    x = torch.tensor([[float("nan"), 1.0], [1.0, float("nan")], [1.0, 1.0]], device=DEVICE, requires_grad=True)
    y = geglu(x, None)
    (dx,) = torch.autograd.grad(y, x, y.detach())
    assert y.flatten().isnan().tolist() == [True, True, False]
    assert dx.isnan().any(-1).tolist() == [True, True, False]


def test_the_reference_is_pytorchs_with_gate_and_gated_unit_by_unit() -> None:
    x, bias = _inputs(6, 34, dtype=torch.float64)
    u = x + bias
    for tanh in (False, True):
        pytorchs = functional.gelu(u[:, ::2], approximate="tanh" if tanh else "none") * u[:, 1::2]
        assert torch.allclose(reference(x, bias, tanh=tanh), pytorchs, rtol=1e-9, atol=1e-15)


def test_the_references_gradients_are_its_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 8, dtype=torch.float64)]
    assert torch.autograd.gradcheck(reference, inputs)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    assert torch.equal(geglu(x, bias), reference(x, bias))


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide, other = normal(6, 80, dtype=torch.float32), normal(6, 96, dtype=torch.float32, seed=1)
    bias = normal(80, dtype=torch.float32, seed=2)
    for x, upstream in (
        (wide[:, :40], other[:, 3:23]),
        (wide[:, ::2], other[:, 1:40:2]),
        (wide.view(3, 2, 80).transpose(0, 1)[..., :40], other.view(3, 2, 96).transpose(0, 1)[..., :20]),
    ):
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, bias[::2])]
            y = geglu(*leaves)
            results.append([y, *torch.autograd.grad(y, leaves, change(upstream))])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_operators_keep_pytorchs_rules(has_bias: bool) -> None:
    x, bias = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    torch.library.opcheck(torch.ops.llm_reference_runs.gated_activation, (x, bias if has_bias else None, "gelu"))
    dy = _upstream(5, 8, dtype=torch.float32)
    backward = torch.ops.llm_reference_runs.gated_activation_backward
    torch.library.opcheck(backward, (dy, x.detach(), bias.detach() if has_bias else None, "gelu_tanh"))


@pytest.mark.parametrize(
    ("x", "bias", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), None, "dtype of x"),
        (torch.ones(2, 8), torch.ones(8, dtype=torch.int64), "dtype of bias"),
        (torch.ones(2, 8), torch.ones(4), "shape of bias"),
        (torch.ones(2, 8), torch.ones(1, 8), "shape of bias"),
        (torch.ones(2, 8), torch.ones(8, device="meta"), "device of bias"),
        (torch.ones(2, 0), torch.ones(0), "columns"),
        (torch.ones(2, 7), torch.ones(7), "columns"),
        (torch.ones(()), None, "dims of x"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, bias: Tensor | None, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=f"^geglu: {named}: allowed .*, got .*$"):
        geglu(x, bias)
