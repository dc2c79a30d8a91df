"""Kernels of rows, norms and activations: exactness forward and backward, strides, dtypes of weights, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.bias_activation import bias_activation
from kernels.geglu import geglu
from kernels.layer_norm import layer_norm
from kernels.operator import UnsupportedInputError
from kernels.parallel_layer_norms import parallel_layer_norms
from kernels.residual_layer_norm import residual_layer_norm
from kernels.residual_rms_norm import residual_rms_norm
from kernels.rms_norm import rms_norm
from kernels.row_norm import GROUP, MOST_COLUMNS_HELD, MOST_COLUMNS_KEPT
from kernels.swiglu import swiglu
from tests.kernels.agreement import (
    DEVICE,
    DTYPES,
    FAST_CHECKS,
    assert_refused,
    assert_same,
    less_exact_than_torch,
    normal,
)
from tests.kernels.row_kernels import ACTIVATIONS, EPSILON, KERNELS, NORMS, RowKernel

SHAPES = [(1, 1), (1, 37), (5, 255), (3, 256), (2, 2, 257), (70, 16), (21, 700), (9, 5000), (0, 8), (9,)]
LONG = [(3, MOST_COLUMNS_HELD + 900), (GROUP + 3, MOST_COLUMNS_KEPT + 77)]  # in pieces; the sums of two groups of rows
LONGER_THAN_ANY_PROGRAM = (2, 66_000)


def shapes_of(name: str) -> list[tuple[int, ...]]:
    """Sizes that divide nothing. An RMSNorm of one column is tested apart."""
    if name in ACTIVATIONS:
        shapes = [*SHAPES, LONGER_THAN_ANY_PROGRAM]
        return [(*shape[:-1], 2 * shape[-1]) for shape in shapes] if KERNELS[name].gated else shapes
    return [*SHAPES, *LONG][1 if "rms" in name else 0 :]


def inexact(one: RowKernel, inputs: list[Tensor], upstream: list[Tensor]) -> list[str]:
    return less_exact_than_torch(
        one.kernel, one.plain, inputs, upstream, roundings=one.roundings, cancelling=one.cancelling(inputs, upstream)
    )


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.rare) for turn in (1, 2))])
@pytest.mark.parametrize("name", KERNELS)
def test_outputs_and_gradients_are_as_exact_as_torchs(name: str, turn: int) -> None:
    """Each shape with one dtype, the next one with the next."""
    one, wrong = KERNELS[name], []
    for place, shape in enumerate(shapes_of(name), start=turn + list(KERNELS).index(name)):
        dtype = DTYPES[place % 3]
        found = inexact(one, one.inputs(*shape, dtype=dtype), one.upstream(*shape, dtype=dtype))
        wrong += [(shape, dtype, each) for each in found]
    assert wrong == []


def test_weights_in_fp32_keep_their_gradients_in_fp32() -> None:
    wrong = []
    for name, one in KERNELS.items():
        rows = one.inputs(6, 40, dtype=torch.bfloat16)[: one.tensors]
        vectors = one.inputs(6, 40, dtype=torch.float32)[one.tensors :]
        wrong += [(name, each) for each in inexact(one, [*rows, *vectors], one.upstream(6, 40, dtype=torch.bfloat16))]
    assert wrong == []


def gradients(function: Callable[..., Any], leaves: Sequence[Tensor], upstream: Sequence[Tensor]) -> list[Tensor]:
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def of_a_wider_one(x: Tensor) -> Tensor:
    return torch.empty(*x.shape[:-1], x.shape[-1] + 5, dtype=x.dtype, device=x.device)[..., 3:-2].copy_(x)


def every_second(x: Tensor) -> Tensor:
    return torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)[..., ::2].copy_(x)


def by_column(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


@pytest.mark.parametrize("laid", [of_a_wider_one, every_second, by_column])
def test_inputs_and_gradients_of_any_strides_give_the_same(laid: Callable[[Tensor], Tensor]) -> None:
    for one in KERNELS.values():
        inputs, upstream = (draw(3, 2, 40, dtype=torch.float32) for draw in (one.inputs, one.upstream))
        results = []
        for change in (laid, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in inputs]
            results.append(gradients(one.kernel, leaves, [change(dy) for dy in upstream]))
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


def test_results_are_the_same_bits_every_time() -> None:
    wrong = []
    for name, one in KERNELS.items():
        for shape in [(5, 300), *(LONG[:1] if name == "layer_norm" else [])]:
            leaves = [tensor.requires_grad_() for tensor in one.inputs(*shape, dtype=torch.float32)]
            upstream = one.upstream(*shape, dtype=torch.float32)
            first, second = (gradients(one.kernel, leaves, upstream) for _ in range(2))
            if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                wrong.append((name, shape))
    assert wrong == []


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in {name.partition(" ")[0].rstrip(",") for name in NORMS} | {"bias_activation", "geglu", "swiglu"}:
        monkeypatch.setattr(f"kernels.{module}.runs_triton", lambda _: False)
    wrong = []
    for name, one in KERNELS.items():
        inputs = one.inputs(2, 3, 40, dtype=torch.float32)
        own, plain = (
            [out] if isinstance(out, Tensor) else list(out) for out in (one.kernel(*inputs), one.plain(*inputs))
        )
        if len(own) != one.outputs or not all(torch.equal(a, b) for a, b in zip(own, plain, strict=True)):
            wrong.append(name)
    assert wrong == []


def test_the_operators_keep_pytorchs_rules() -> None:
    operators = torch.ops.llm_reference_runs
    x, f, w, b, w2, b2 = (normal(*shape, dtype=torch.float32) for shape in ((5, 8),) * 2 + ((8,),) * 4)
    row, half = torch.ones(5, device=DEVICE), normal(5, 4, dtype=torch.float32)
    for tensor in (x, f, w, b, w2, b2):
        tensor.requires_grad_()
    # which of y, y2, sum, mean and 1 / deviation are differentiable
    for arguments, differentiable in (
        ((x, None, w, w, None, None, EPSILON, 1.0, False, False), [True, False, False]),
        ((x, None, w, None, None, None, EPSILON, 1.0, False, True), [True, False, False]),
        ((x, f, w, b, None, None, EPSILON, 1.0, True, False), [True, False, True]),
        ((x, f, w, None, None, None, EPSILON, 1.0, True, True), [True, False, True]),
        ((x, None, w, b, w2, b2, EPSILON, 1.0, False, False), [True, True, False]),
    ):
        checks = FAST_CHECKS if arguments[1] is None else (*FAST_CHECKS, "test_aot_dispatch_dynamic")
        torch.library.opcheck(operators.row_norm, arguments, test_utils=checks)
        found = [output.requires_grad for output in operators.row_norm(*arguments)]
        assert found == [*differentiable, False, False]
    torch.library.opcheck(operators.bias_activation, (x, b, "relu"))
    torch.library.opcheck(operators.bias_activation, (x, None, "gelu"), test_utils=FAST_CHECKS)
    torch.library.opcheck(operators.gated_activation, (x, b, "gelu"))
    torch.library.opcheck(operators.gated_activation, (x, None, "silu"), test_utils=FAST_CHECKS)
    x, f, w, b, w2, b2 = (tensor.detach() for tensor in (x, f, w, b, w2, b2))
    for arguments in (
        (x, None, None, x, None, w, None, None, row, 1.0),
        (x, None, x, x, None, w, None, row, row, 1.0),
        (x, x, None, x, None, w, w2, row, row, 1.0),
    ):
        torch.library.opcheck(operators.row_norm_backward, arguments, test_utils=FAST_CHECKS)
    torch.library.opcheck(operators.bias_activation_backward, (x, x, b, "gelu_tanh"))
    torch.library.opcheck(operators.gated_activation_backward, (half, x, None, "gelu_tanh"))


X, ONES = torch.ones(2, 8), torch.ones(8)
WIDE = (torch.ones(1, 65_537), torch.ones(65_537))
NONE = (torch.ones(2, 0), torch.ones(0))
NUMBER = (torch.ones(()), torch.ones(1))
META = torch.ones(8, device="meta")
REFUSED: list[tuple[Callable[..., Any], Sequence[Any], str]] = [
    *(
        (function, arguments, named)
        for function, more in ((layer_norm, (None, EPSILON)), (rms_norm, (EPSILON,)))
        for arguments, named in (
            ((X.double(), ONES, *more), "dtype of x"),
            ((X, ONES[:7], *more), "shape of weight"),
            ((X, META, *more), "device of weight"),
            ((*NONE, *more), "columns"),
            ((*WIDE, *more), "columns"),
        )
    ),
    *(
        (function, arguments, named)
        for function, more in ((residual_layer_norm, (None, EPSILON)), (residual_rms_norm, (EPSILON,)))
        for arguments, named in (
            ((X.double(), X, ONES, *more), "dtype of x"),
            ((X, X.int(), ONES, *more), "dtype of f"),
            ((X, X.bfloat16(), ONES, *more), "dtype of f"),
            ((X, ONES, ONES, *more), "shape of f"),
            ((X, X, ONES[:7], *more), "shape of weight"),
            ((X, X.to("meta"), ONES, *more), "device of f"),
            ((X, X, META, *more), "device of weight"),
            ((NONE[0], *NONE, *more), "columns"),
            ((WIDE[0], *WIDE, *more), "columns"),
            ((NUMBER[0], *NUMBER, *more), "dims of x"),
        )
    ),
    (residual_layer_norm, (X, X, ONES, torch.ones(1), EPSILON), "shape of bias"),
    *(
        (parallel_layer_norms, (*arguments, EPSILON), named)
        for arguments, named in (
            ((X.double(), ONES, ONES, ONES, ONES), "dtype of x"),
            ((X, ONES, ONES, ONES, ONES.int()), "dtype of bias2"),
            ((X, ONES[:7], ONES, ONES, ONES), "shape of weight1"),
            ((X, ONES, ONES[:1], ONES, ONES), "shape of bias1"),
            ((X, ONES, ONES, X, ONES), "shape of weight2"),
            ((X, ONES, ONES, ONES, ONES[:7]), "shape of bias2"),
            ((X, ONES, ONES, META, ONES), "device of weight2"),
            ((X, ONES, None, ONES, ONES), "biases"),
            ((X, ONES, ONES, ONES, None), "biases"),
            ((NONE[0], *(NONE[1],) * 4), "columns"),
            ((WIDE[0], *(WIDE[1],) * 4), "columns"),
            ((NUMBER[0], *(NUMBER[1],) * 4), "dims of x"),
        )
    ),
    *(
        (function, (*arguments, *more), named)
        for function, more in ((bias_activation, ("relu",)), (geglu, ()), (swiglu, ()))
        for arguments, named in (
            ((X.double(), None), "dtype of x"),
            ((X, ONES.long()), "dtype of bias"),
            ((X, ONES[:4]), "shape of bias"),
            ((X, ONES[None]), "shape of bias"),
            ((X, META), "device of bias"),
            (NONE, "columns"),
            ((NUMBER[0], None), "dims of x"),
        )
    ),
    (bias_activation, (X, None, "swish"), "activation"),
    (geglu, (X[:, :7], ONES[:7]), "columns"),
    (swiglu, (X[:, :7], ONES[:7]), "columns"),
]


def test_other_input_is_refused_in_one_line() -> None:
    for function, arguments, named in REFUSED:
        assert_refused(function, [(arguments, {}, named)])
    with pytest.raises(UnsupportedInputError, match=r"shape of bias: allowed \(8,\), got \(1,\)$"):
        residual_layer_norm(X, X, ONES, torch.ones(1), EPSILON)
