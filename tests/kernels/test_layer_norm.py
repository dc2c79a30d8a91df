from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.layer_norm import layer_norm, reference
from kernels.operator import UnsupportedInputError
from kernels.row_norm import MOST_SUMS
from tests.kernels.agreement import DEVICE, DTYPES, assert_same, norm_is_as_exact_as_torchs, normal, of_one_column

EPSILON = 1e-5


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (1, 37),
        (5, 255),
        (3, 256),
        (4, 257),
        (2, 3, 768),
        (70, 16),
        (21, 700),
        (2, 4096),
        (9, 5000),
        (3, MOST_SUMS // 2 + 900),
        (5, MOST_SUMS + 700),
        (0, 8),
        (9,),
    ],
    ids=str,
)
def test_output_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    columns = shape[-1]
    inputs = [normal(*shape, dtype=dtype), normal(columns, dtype=dtype, seed=1), normal(columns, dtype=dtype, seed=2)]

    def kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(x, weight, bias, EPSILON)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return reference(x, weight, bias, EPSILON)

    upstream = normal(*shape, dtype=dtype, seed=3)
    cancelling = of_one_column(upstream, inputs[1], EPSILON) if columns == 1 else 0.0
    norm_is_as_exact_as_torchs(kernel, plain, inputs, [upstream], cancelling=cancelling)


@pytest.mark.parametrize("shape", [(5, 300), (3, MOST_SUMS // 2 + 900)], ids=str)
def test_gradients_are_the_same_bits_every_time(shape: tuple[int, ...]) -> None:
    leaves = [normal(*s, dtype=torch.float32).requires_grad_() for s in (shape, shape[1:], shape[1:])]
    upstream = normal(*shape, dtype=torch.float32, seed=3)
    first, second = (torch.autograd.grad(layer_norm(*leaves, EPSILON), leaves, upstream) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_reference_is_pytorchs() -> None:
    x, weight, bias = (normal(*shape, dtype=torch.float64) for shape in ((6, 33), (33,), (33,)))
    assert torch.allclose(reference(x, weight, bias, 1e-5), functional.layer_norm(x, (33,), weight, bias), rtol=1e-12)


def test_there_may_be_no_bias() -> None:
    inputs = [normal(6, 40, dtype=torch.float32), normal(40, dtype=torch.float32, seed=1)]
    norm_is_as_exact_as_torchs(
        lambda x, weight: layer_norm(x, weight, None, EPSILON),
        lambda x, weight: reference(x, weight, None, EPSILON),
        inputs,
        [normal(6, 40, dtype=torch.float32, seed=2)],
    )


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    x = normal(4, 512, dtype=torch.float32) + 1000
    ones, zeros = torch.ones(512, device=DEVICE), torch.zeros(512, device=DEVICE)
    norm_is_as_exact_as_torchs(
        lambda x: layer_norm(x, ones, zeros, EPSILON),
        lambda x: reference(x, ones.to(x.dtype), zeros.to(x.dtype), EPSILON),
        [x],
        [normal(4, 512, dtype=torch.float32, seed=1)],
    )


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide = normal(6, 80, dtype=torch.float32)
    weight, bias = normal(40, dtype=torch.float32, seed=1), normal(40, dtype=torch.float32, seed=2)
    for x in (wide[:, :40], wide[:, ::2], wide.t()[:, :6].t()[:, :40]):
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, weight, bias)]
            y = layer_norm(*leaves, EPSILON)
            results.append([y, *torch.autograd.grad(y, leaves, change(wide[:, 3:43]))])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


def test_the_operator_keeps_pytorchs_rules() -> None:
    x, weight = (normal(*shape, dtype=torch.float32).requires_grad_() for shape in ((5, 8), (8,)))
    inputs = (x, None, weight, weight, None, None)
    torch.library.opcheck(torch.ops.llm_reference_runs.row_norm, (*inputs, EPSILON, 1.0, False, False))


@pytest.mark.parametrize(
    ("x", "weight", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(8), "dtype of x"),
        (torch.ones(2, 8), torch.ones(7), "shape of weight"),
        (torch.ones(2, 8), torch.ones(8, device="meta"), "device of weight"),
        (torch.ones(2, 0), torch.ones(0), "columns"),
        (torch.ones(1, 65_537), torch.ones(65_537), "columns"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, weight: Tensor, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=f"^layer_norm: {named}: allowed .*, got .*$"):
        layer_norm(x, weight, None, EPSILON)
