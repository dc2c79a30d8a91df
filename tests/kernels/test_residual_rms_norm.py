from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import residual_rms_norm as module
from kernels.operator import UnsupportedInputError
from kernels.residual_rms_norm import reference, residual_rms_norm
from kernels.row_norm import MOST_SUMS
from tests.kernels.agreement import DEVICE, DTYPES, assert_same, norm_is_as_exact_as_torchs, normal

EPSILON = 1e-5


def _kernel(x: Tensor, f: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return residual_rms_norm(x, f, weight, EPSILON)


def _plain(x: Tensor, f: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return reference(x, f, weight, EPSILON)


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    """Summands whose sums every dtype holds: eighths below 4, sums of 7 bits; and a weight."""
    numbers = [torch.randint(-31, 32, shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    return [*(x.to(DEVICE, dtype) / 8 for x in numbers), normal(shape[-1], dtype=dtype, seed=2)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 2), (3, 37), (5, 256), (2, 2, 257), (21, 768), (2, 1500), (3, MOST_SUMS // 2 + 900), (0, 8), (9,)],
    ids=str,
)
def test_outputs_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    upstream = [normal(*shape, dtype=dtype, seed=seed) for seed in (4, 5)]
    norm_is_as_exact_as_torchs(_kernel, _plain, _inputs(*shape, dtype=dtype), upstream)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_the_outputs_may_go_nowhere(used: int) -> None:
    inputs, upstream = _inputs(6, 40, dtype=torch.float32), normal(6, 40, dtype=torch.float32, seed=4)
    if used == 0:
        norm_is_as_exact_as_torchs(lambda *x: _kernel(*x)[0], lambda *x: _plain(*x)[0], inputs, [upstream])
        return
    x, f, weight = (tensor.requires_grad_() for tensor in inputs)
    dx, df, of_weight = torch.autograd.grad(_kernel(x, f, weight)[1], (x, f, weight), upstream, allow_unused=True)
    assert torch.equal(dx, upstream)
    assert torch.equal(df, upstream)
    assert of_weight is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_is_rounded_before_its_norm(dtype: torch.dtype) -> None:
    x, f = (normal(5, 300, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = normal(300, dtype=dtype, seed=2)
    y, total = _kernel(x, f, weight)
    assert torch.equal(total, x + f)
    again, _ = _kernel(total, torch.zeros_like(f), weight)
    assert torch.equal(y, again)


def test_the_reference_is_pytorchs() -> None:
    x, f, weight = _inputs(6, 33, dtype=torch.float64)
    y, total = _plain(x, f, weight)
    assert torch.equal(total, x + f)
    assert torch.allclose(y, functional.rms_norm(x + f, (33,), weight, EPSILON), rtol=1e-12)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    for own, plain in zip(_kernel(*inputs), _plain(*inputs), strict=True):
        assert torch.equal(own, plain)


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide, other = normal(6, 80, dtype=torch.float32), normal(6, 96, dtype=torch.float32, seed=1)
    for x, f in ((wide[:, :40], other[:, 3:43]), (wide[:, ::2], other[:, :80:2])):
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, f, wide[0, ::2])]
            outputs = _kernel(*leaves)
            results.append([*outputs, *torch.autograd.grad(outputs, leaves, [change(f), change(x)])])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


def test_the_operator_keeps_pytorchs_rules() -> None:
    x, f, weight = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    arguments = (x, f, weight, None, None, None, EPSILON, 1.0, True, True)
    operator = torch.ops.llm_reference_runs.row_norm
    torch.library.opcheck(operator, arguments)
    assert [output.requires_grad for output in operator(*arguments)] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("x", "f", "weight", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(2, 8), torch.ones(8), "dtype of x"),
        (torch.ones(2, 8), torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8), "dtype of f"),
        (torch.ones(2, 8), torch.ones(8), torch.ones(8), "shape of f"),
        (torch.ones(2, 8), torch.ones(2, 8), torch.ones(7), "shape of weight"),
        (torch.ones(2, 8), torch.ones(2, 8, device="meta"), torch.ones(8), "device of f"),
        (torch.ones(2, 0), torch.ones(2, 0), torch.ones(0), "columns"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, f: Tensor, weight: Tensor, named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=rf"^residual_rms_norm: {named}: allowed .*, got .*$"):
        residual_rms_norm(x, f, weight, EPSILON)
