from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import residual_layer_norm as module
from kernels.operator import UnsupportedInputError
from kernels.residual_layer_norm import reference, residual_layer_norm
from kernels.row_norm import MOST_SUMS
from tests.kernels.agreement import (
    DEVICE,
    DTYPES,
    Function,
    assert_same,
    norm_is_as_exact_as_torchs,
    normal,
    of_one_column,
)

EPSILON = 1e-5
DEEP = math.sqrt(2 * 10)  # DeepNorm's alpha of ten layers


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    vectors = [normal(shape[-1], dtype=dtype, seed=seed) for seed in (2, 3)]
    return [normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1), *vectors]


def _eighths(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers whose sums, and whose doubled ones' sums, every dtype holds: eighths below 4, sums of 7 bits."""
    return torch.randint(-31, 32, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype) / 8


def _functions(alpha: float, *outputs: int) -> tuple[Function, Function]:
    """The kernel with its sum kept and the plain reference; of both the outputs of these numbers."""

    def kernel(*inputs: Tensor) -> list[Tensor]:
        both = residual_layer_norm(*inputs, EPSILON, alpha=alpha, keep_sum=True)
        return [both[place] for place in outputs]

    def plain(*inputs: Tensor) -> list[Tensor]:
        both = reference(*inputs, EPSILON, alpha)
        return [both[place] for place in outputs]

    return kernel, plain


def _assert_exact_without_sum(inputs: list[Tensor], upstream: Tensor, alpha: float) -> None:
    norm_is_as_exact_as_torchs(
        lambda *inputs: residual_layer_norm(*inputs, EPSILON, alpha=alpha),
        lambda *inputs: reference(*inputs, EPSILON, alpha)[0],
        inputs,
        [upstream],
        cancelling=alpha * of_one_column(upstream, inputs[2], EPSILON) if upstream.shape[-1] == 1 else 0.0,
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "alpha"),
    [
        ((1, 1), 1.0),
        ((1, 37), DEEP),
        ((5, 255), 1.0),
        ((3, 256), DEEP),
        ((4, 257), 1.0),
        ((2, 3, 768), DEEP),
        ((70, 16), DEEP),
        ((21, 700), 1.0),
        ((2, 1023), DEEP),
        ((2, 4096), DEEP),
        ((0, 8), DEEP),
        ((9,), DEEP),
    ],
    ids=str,
)
def test_output_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], alpha: float, dtype: torch.dtype) -> None:
    _assert_exact_without_sum(_inputs(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=4), alpha)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "alpha"),
    [
        ((1, 1), 2.0),
        ((3, 37), 1.0),
        ((5, 256), 2.0),
        ((2, 2, 257), 1.0),
        ((21, 768), 2.0),
        ((2, 1500), 1.0),
        ((0, 8), 1.0),
        ((0, 8), 2.0),
        ((9,), 1.0),
    ],
    ids=str,
)
def test_the_sum_is_an_output_whose_gradient_flows_in_both(
    shape: tuple[int, ...], alpha: float, dtype: torch.dtype
) -> None:
    summands = [_eighths(*shape, dtype=dtype, seed=seed) for seed in (0, 1)]
    upstream = [normal(*shape, dtype=dtype, seed=seed) for seed in (4, 5)]
    inputs = [*summands, *_inputs(*shape, dtype=dtype)[2:]]
    cancelling = alpha * of_one_column(upstream[0], inputs[2], EPSILON) if shape[-1] == 1 else 0.0
    norm_is_as_exact_as_torchs(*_functions(alpha, 0, 1), inputs, upstream, cancelling=cancelling)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_a_kept_sum_may_go_nowhere(alpha: float) -> None:
    inputs = _inputs(6, 40, dtype=torch.float32)
    norm_is_as_exact_as_torchs(*_functions(alpha, 0), inputs, [normal(6, 40, dtype=torch.float32, seed=4)])


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_only_the_kept_sum_may_be_used(alpha: float) -> None:
    x, f, weight, bias = (tensor.requires_grad_() for tensor in _inputs(6, 40, dtype=torch.float32))
    _, total = residual_layer_norm(x, f, weight, bias, EPSILON, alpha=alpha, keep_sum=True)
    upstream = normal(6, 40, dtype=torch.float32, seed=4)
    dx, df, *weights = torch.autograd.grad(total, (x, f, weight, bias), upstream, allow_unused=True)
    assert torch.equal(dx, alpha * upstream)
    assert torch.equal(df, upstream)
    assert weights == [None, None]


@pytest.mark.parametrize("keep_sum", [False, True])
def test_the_backward_pass_has_the_sum_or_what_it_is_of(keep_sum: bool) -> None:
    x, f, weight, bias = (tensor.requires_grad_() for tensor in _inputs(6, 40, dtype=torch.float32))
    saved: list[int] = []

    def packed(tensor: Tensor) -> Tensor:
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        got = residual_layer_norm(x, f, weight, bias, EPSILON, keep_sum=keep_sum)
    needed = (got[1], weight) if keep_sum else (x, f, weight)
    assert saved[: len(needed)] == [tensor.untyped_storage().data_ptr() for tensor in needed]
    assert len(saved) == len(needed) + 2  # mean and 1 / deviation


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_kept_sum_is_rounded_before_its_layer_norm(dtype: torch.dtype) -> None:
    x, f, weight, bias = _inputs(5, 300, dtype=dtype)
    y, total = residual_layer_norm(x, f, weight, bias, EPSILON, keep_sum=True)
    assert torch.equal(total, x + f)
    again, _ = residual_layer_norm(total, torch.zeros_like(f), weight, bias, EPSILON, keep_sum=True)
    assert torch.equal(y, again)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_that_is_not_kept_is_not_rounded(dtype: torch.dtype) -> None:
    # rounded to bf16, 1024 + f would be a multiple of 4 or 8
    _, f, weight, bias = _inputs(4, 300, dtype=dtype)
    _assert_exact_without_sum([torch.full_like(f, 1024), f, weight, bias], normal(4, 300, dtype=dtype, seed=4), 1.0)


@pytest.mark.parametrize(("adds", "alpha"), [(True, DEEP), (True, 1.0), (False, 2.0), (False, 1.0)])
def test_programs_share_a_row_that_is_longer_than_a_block(adds: bool, alpha: float) -> None:
    shape = (3, MOST_SUMS // 2 + 900)
    inputs, upstream = _inputs(*shape, dtype=torch.float32), normal(*shape, dtype=torch.float32, seed=4)
    if adds:
        _assert_exact_without_sum(inputs, upstream, alpha)
    else:
        norm_is_as_exact_as_torchs(*_functions(alpha, 0, 1), inputs, [upstream, normal(*shape, dtype=torch.float32)])


def test_the_reference_is_pytorchs() -> None:
    x, f, weight, bias = _inputs(6, 33, dtype=torch.float64)
    y, total = reference(x, f, weight, bias, EPSILON, 3.0)
    assert torch.allclose(total, torch.add(f, x, alpha=3), rtol=1e-15)
    assert torch.allclose(y, functional.layer_norm(total, (33,), weight, bias, EPSILON), rtol=1e-12)


def test_the_references_gradients_are_its_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 7, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: reference(*inputs, EPSILON, 3.0), inputs)


@pytest.mark.parametrize("keep_sum", [False, True])
def test_the_reference_runs_where_triton_does_not(keep_sum: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    got = residual_layer_norm(*inputs, EPSILON, alpha=3.0, keep_sum=keep_sum)
    y, total = reference(*inputs, EPSILON, 3.0)
    for own, plain in zip(got if keep_sum else [got], (y, total), strict=False):
        assert torch.equal(own, plain)


def test_there_may_be_no_bias() -> None:
    norm_is_as_exact_as_torchs(
        lambda x, f, weight: residual_layer_norm(x, f, weight, None, EPSILON),
        lambda x, f, weight: reference(x, f, weight, None, EPSILON, 1.0)[0],
        _inputs(6, 40, dtype=torch.float32)[:3],
        [normal(6, 40, dtype=torch.float32, seed=4)],
    )


def test_weights_in_fp32_keep_their_gradients_in_fp32() -> None:
    x, f, _, _ = _inputs(6, 40, dtype=torch.bfloat16)
    weights = _inputs(6, 40, dtype=torch.float32)[2:]
    _assert_exact_without_sum([x, f, *weights], normal(6, 40, dtype=torch.bfloat16, seed=4), DEEP)


@pytest.mark.parametrize("keep_sum", [False, True])
def test_input_that_is_not_contiguous_gives_the_same(keep_sum: bool) -> None:
    wide, other = normal(6, 80, dtype=torch.float32), normal(6, 96, dtype=torch.float32, seed=1)
    weight, bias = (vector[::2] for vector in _inputs(6, 80, dtype=torch.float32)[2:])
    slices = [
        (wide[:, :40], other[:, 3:43]),
        (wide[:, ::2], other[:, :80:2]),
        (wide.view(3, 2, 80).transpose(0, 1)[..., :40], other.view(3, 2, 96).transpose(0, 1)[..., :40]),
    ]
    for x, f in slices:
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, f, weight, bias)]
            got = residual_layer_norm(*leaves, EPSILON, alpha=3.0, keep_sum=keep_sum)
            outputs = got if keep_sum else (got,)
            upstream = [change(tensor) for tensor in (f, x)[: len(outputs)]]
            results.append([*outputs, *torch.autograd.grad(outputs, leaves, upstream)])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


@pytest.mark.parametrize(("alpha", "keep_sum"), [(1.0, True), (3.0, False)])
def test_the_operator_keeps_pytorchs_rules(alpha: float, keep_sum: bool) -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32)]
    operator = torch.ops.llm_reference_runs.row_norm
    arguments = (*inputs, None, None, EPSILON, alpha, keep_sum, False)
    torch.library.opcheck(operator, arguments)
    differentiable = [output.requires_grad for output in operator(*arguments)]
    assert differentiable == [True, False, keep_sum, False, False]
    x, f, weight, _ = (tensor.detach() for tensor in inputs)
    row = torch.ones(5, device=DEVICE)
    backward = torch.ops.llm_reference_runs.row_norm_backward
    of_outputs = (x, None, x if keep_sum else None)
    inputs_of_backward = (x, None if keep_sum else f, weight, None, row, row)
    torch.library.opcheck(backward, (*of_outputs, *inputs_of_backward, alpha))


@pytest.mark.parametrize(
    ("x", "f", "weight", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(2, 8), torch.ones(8), "dtype of x"),
        (torch.ones(2, 8), torch.ones(2, 8, dtype=torch.int32), torch.ones(8), "dtype of f"),
        (torch.ones(2, 8), torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8), "dtype of f"),
        (torch.ones(2, 8), torch.ones(8), torch.ones(8), "shape of f"),
        (torch.ones(2, 8), torch.ones(2, 8), torch.ones(7), "shape of weight"),
        (torch.ones(2, 8), torch.ones(2, 8, device="meta"), torch.ones(8), "device of f"),
        (torch.ones(2, 8), torch.ones(2, 8), torch.ones(8, device="meta"), "device of weight"),
        (torch.ones(2, 0), torch.ones(2, 0), torch.ones(0), "columns"),
        (torch.ones(1, 65_537), torch.ones(1, 65_537), torch.ones(65_537), "columns"),
        (torch.ones(()), torch.ones(()), torch.ones(1), "dims of x"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, f: Tensor, weight: Tensor, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=rf"^residual_layer_norm: {named}: allowed .*, got .*$"):
        residual_layer_norm(x, f, weight, None, EPSILON)


def test_a_bias_of_another_shape_is_refused() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(
        UnsupportedInputError, match=r"^residual_layer_norm: shape of bias: allowed \(8,\), got \(1,\)$"
    ):
        residual_layer_norm(x, x, torch.ones(8), torch.ones(1), EPSILON)
