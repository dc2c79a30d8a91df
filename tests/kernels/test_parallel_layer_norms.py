from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import parallel_layer_norms as module
from kernels.operator import UnsupportedInputError
from kernels.parallel_layer_norms import parallel_layer_norms, reference
from kernels.row_norm import MOST_SUMS
from tests.kernels.agreement import DEVICE, DTYPES, assert_same, norm_is_as_exact_as_torchs, normal, of_one_column

EPSILON = 1e-5


def _inputs(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    return [normal(*shape, dtype=dtype), *(normal(shape[-1], dtype=dtype, seed=seed) for seed in range(1, 5))]


def _upstream(*shape: int, dtype: torch.dtype) -> list[Tensor]:
    return [normal(*shape, dtype=dtype, seed=seed) for seed in (5, 6)]


def _kernel(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    return parallel_layer_norms(*inputs, EPSILON)


def _plain(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    return reference(*inputs, EPSILON)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 37), (5, 255), (3, 256), (4, 257), (2, 3, 768), (70, 16), (21, 1023), (2, 4096), (0, 8), (9,)],
    ids=str,
)
def test_outputs_and_gradients_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs, upstream = _inputs(*shape, dtype=dtype), _upstream(*shape, dtype=dtype)
    weights = (inputs[1], inputs[3])
    terms = [of_one_column(dy, weight, EPSILON) for dy, weight in zip(upstream, weights, strict=True) if shape[-1] == 1]
    norm_is_as_exact_as_torchs(_kernel, _plain, inputs, upstream, cancelling=sum(terms))


def test_programs_share_a_row_that_is_longer_than_a_block() -> None:
    shape = (3, MOST_SUMS // 2 + 900)
    inputs, upstream = _inputs(*shape, dtype=torch.float32), _upstream(*shape, dtype=torch.float32)
    norm_is_as_exact_as_torchs(_kernel, _plain, inputs, upstream)


def test_the_reference_is_pytorchs() -> None:
    x, weight1, bias1, weight2, bias2 = _inputs(6, 33, dtype=torch.float64)
    for own, weight, bias in zip(
        reference(x, weight1, bias1, weight2, bias2, EPSILON), (weight1, weight2), (bias1, bias2), strict=True
    ):
        assert torch.allclose(own, functional.layer_norm(x, (33,), weight, bias, EPSILON), rtol=1e-12)


def test_the_references_gradients_are_its_differences() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs(3, 7, dtype=torch.float64)]
    assert torch.autograd.gradcheck(_plain, inputs)


def test_the_reference_runs_where_triton_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _inputs(2, 3, 40, dtype=torch.float32)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    for own, plain in zip(_kernel(*inputs), _plain(*inputs), strict=True):
        assert torch.equal(own, plain)


def test_there_may_be_no_biases() -> None:
    x, weight1, _, weight2, _ = _inputs(6, 40, dtype=torch.float32)
    norm_is_as_exact_as_torchs(
        lambda x, weight1, weight2: parallel_layer_norms(x, weight1, None, weight2, None, EPSILON),
        lambda x, weight1, weight2: reference(x, weight1, None, weight2, None, EPSILON),
        [x, weight1, weight2],
        _upstream(6, 40, dtype=torch.float32),
    )


@pytest.mark.parametrize("output", [0, 1])
def test_one_of_the_outputs_may_go_nowhere(output: int) -> None:
    norm_is_as_exact_as_torchs(
        lambda *inputs: _kernel(*inputs)[output],
        lambda *inputs: _plain(*inputs)[output] + 0 * _plain(*inputs)[1 - output],
        _inputs(6, 40, dtype=torch.float32),
        [normal(6, 40, dtype=torch.float32, seed=5)],
    )


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    x, *weights = _inputs(4, 512, dtype=torch.float32)
    norm_is_as_exact_as_torchs(_kernel, _plain, [x + 1000, *weights], _upstream(4, 512, dtype=torch.float32))


def test_weights_in_fp32_keep_their_gradients_in_fp32() -> None:
    x, *_ = _inputs(6, 40, dtype=torch.bfloat16)
    weights = _inputs(6, 40, dtype=torch.float32)[1:]
    norm_is_as_exact_as_torchs(_kernel, _plain, [x, *weights], _upstream(6, 40, dtype=torch.bfloat16))


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide, other, third = (normal(6, 80, dtype=torch.float32, seed=seed) for seed in range(3))
    vectors = [vector[::2] for vector in _inputs(6, 80, dtype=torch.float32)[1:]]
    for x, *upstream in (
        [tensor[:, :40] for tensor in (wide, other, third)],
        [wide[:, ::2], other[:, 3:43], third[:, 1::2]],
        [tensor.view(3, 2, 80).transpose(0, 1)[..., :40] for tensor in (wide, other, third)],
    ):
        results = []
        for change in (Tensor.detach, Tensor.contiguous):
            leaves = [change(tensor).detach().requires_grad_() for tensor in (x, *vectors)]
            outputs = _kernel(*leaves)
            results.append([*outputs, *torch.autograd.grad(outputs, leaves, [change(tensor) for tensor in upstream])])
        for own, contiguous in zip(*results, strict=True):
            assert_same(own, contiguous)


def test_the_operators_keep_pytorchs_rules() -> None:
    x, *vectors = (tensor.requires_grad_() for tensor in _inputs(5, 8, dtype=torch.float32))
    operator = torch.ops.llm_reference_runs.row_norm
    arguments = (x, None, *vectors, EPSILON, 1.0, False, False)
    torch.library.opcheck(operator, arguments)
    assert [output.requires_grad for output in operator(*arguments)] == [True, True, False, False, False]
    x, weight1, _, weight2, _ = (tensor.detach() for tensor in (x, *vectors))
    row = torch.ones(5, device=DEVICE)
    backward = torch.ops.llm_reference_runs.row_norm_backward
    torch.library.opcheck(backward, (x, x, None, x, None, weight1, weight2, row, row, 1.0))


ONES = torch.ones(8)


@pytest.mark.parametrize(
    ("x", "vectors", "named"),
    [
        (torch.ones(2, 8, dtype=torch.float64), (ONES,) * 4, "dtype of x"),
        (torch.ones(2, 8), (ONES, ONES, ONES, ONES.int()), "dtype of bias2"),
        (torch.ones(2, 8), (torch.ones(7), ONES, ONES, ONES), "shape of weight1"),
        (torch.ones(2, 8), (ONES, torch.ones(1), ONES, ONES), "shape of bias1"),
        (torch.ones(2, 8), (ONES, ONES, torch.ones(2, 8), ONES), "shape of weight2"),
        (torch.ones(2, 8), (ONES, ONES, ONES, torch.ones(7)), "shape of bias2"),
        (torch.ones(2, 8), (ONES, ONES, torch.ones(8, device="meta"), ONES), "device of weight2"),
        (torch.ones(2, 8), (ONES, None, ONES, ONES), "biases"),
        (torch.ones(2, 8), (ONES, ONES, ONES, None), "biases"),
        (torch.ones(2, 0), (torch.ones(0),) * 4, "columns"),
        (torch.ones(1, 65_537), (torch.ones(65_537),) * 4, "columns"),
        (torch.ones(()), (torch.ones(1),) * 4, "dims of x"),
    ],
)
def test_other_input_is_refused_in_one_line(x: Tensor, vectors: tuple[Tensor, ...], named: str) -> None:
    with pytest.raises(UnsupportedInputError, match=f"^parallel_layer_norms: {named}: allowed .*, got .*$"):
        parallel_layer_norms(x, *vectors, EPSILON)
