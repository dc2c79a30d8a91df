from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import rms_norm as module
from kernels.operator import UnsupportedInputError
from kernels.rms_norm import reference, rms_norm
from kernels.row_norm import MOST_SUMS
from tests.kernels.agreement import DEVICE, DTYPES, assert_same, norm_is_as_exact_as_torchs, normal

EPSILON = 1e-5


def _kernel(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, EPSILON)


def _plain(x: Tensor, weight: Tensor) -> Tensor:
    return reference(x, weight, EPSILON)


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    return [normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2),
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
    norm_is_as_exact_as_torchs(_kernel, _plain, _inputs(*shape, dtype=dtype), [normal(*shape, dtype=dtype, seed=3)])


def test_there_may_be_one_column() -> None:
    # epsilon is as large as x^2: beside a small one the gradient is a difference of nearly equal numbers
    norm_is_as_exact_as_torchs(
        lambda x, weight: rms_norm(x, weight, 1.0),
        lambda x, weight: reference(x, weight, 1.0),
        _inputs(6, 1, dtype=torch.float32),
        [normal(6, 1, dtype=torch.float32, seed=3)],
    )


def test_a_mean_is_not_taken_away() -> None:
    x, ones = normal(4, 512, dtype=torch.float32) + 1000, torch.ones(512, device=DEVICE)
    y = rms_norm(x, ones, EPSILON)
    assert float((y - 1).abs().max()) < 0.01  # x is 1000 give or take 4
    norm_is_as_exact_as_torchs(_kernel, _plain, [x, ones], [normal(4, 512, dtype=torch.float32, seed=1)])


def test_queries_of_a_fused_projection_are_normed_head_by_head() -> None:
    fused = normal(2, 5, 3 * 4 * 16, dtype=torch.float32).view(2, 5, 3, 4, 16).permute(0, 2, 3, 1, 4)
    q, weight = fused[:, :, :2], normal(16, dtype=torch.float32, seed=1)
    results = []
    for change in (Tensor.detach, Tensor.contiguous):
        leaves = [change(tensor).detach().requires_grad_() for tensor in (q, weight)]
        y = rms_norm(*leaves, EPSILON)
        results.append([y, *torch.autograd.grad(y, leaves, fused[:, :, 2:])])
    for own, contiguous in zip(*results, strict=True):
        assert_same(own, contiguous)


def test_gradients_are_the_same_bits_every_time() -> None:
    leaves = [tensor.requires_grad_() for tensor in _inputs(5, 300, dtype=torch.float32)]
    upstream = normal(5, 300, dtype=torch.float32, seed=3)
    first, second = (torch.autograd.grad(rms_norm(*leaves, EPSILON), leaves, upstream) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_backward_pass_keeps_the_input_and_one_number_a_row() -> None:
    x, weight = (tensor.requires_grad_() for tensor in _inputs(6, 40, dtype=torch.float32))
    saved: list[Tensor] = []

    def packed(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        rms_norm(x, weight, EPSILON)
    assert [tensor.numel() for tensor in saved] == [6 * 40, 40, 6]
    assert saved[0].data_ptr() == x.data_ptr()


def test_a_weight_in_fp32_keeps_its_gradient_in_fp32() -> None:
    x, weight = normal(6, 40, dtype=torch.bfloat16), normal(40, dtype=torch.float32, seed=1)
    norm_is_as_exact_as_torchs(_kernel, _plain, [x, weight], [normal(6, 40, dtype=torch.bfloat16, seed=2)])


def test_the_reference_is_pytorchs() -> None:
    x, weight = _inputs(6, 33, dtype=torch.float64)
    assert torch.allclose(_plain(x, weight), functional.rms_norm(x, (33,), weight, EPSILON), rtol=1e-12)


def test_the_references_gradients_are_its_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 7, dtype=torch.float64)]
    assert torch.autograd.gradcheck(_plain, inputs)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    assert torch.equal(_kernel(*inputs), _plain(*inputs))


def test_the_operators_keep_pytorchs_rules() -> None:
    x, weight = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    operators = torch.ops.llm_reference_runs
    torch.library.opcheck(operators.row_norm, (x, None, weight, None, None, None, EPSILON, 1.0, False, True))
    x, weight, row = x.detach(), weight.detach(), torch.ones(5, device=DEVICE)
    arguments = (x, None, None, x, None, weight, None, None, row, 1.0)
    torch.library.opcheck(operators.row_norm_backward, arguments)


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
    with pytest.raises(UnsupportedInputError, match=f"^rms_norm: {named}: allowed .*, got .*$"):
        rms_norm(x, weight, EPSILON)
