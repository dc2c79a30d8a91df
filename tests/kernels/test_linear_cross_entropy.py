from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernels.cross_entropy import IGNORED
from kernels.cross_entropy import reference as cross_entropy_reference
from kernels.linear_cross_entropy import linear_cross_entropy, reference, rows_of_a_chunk
from tests.kernels.agreement import (
    DEVICE,
    DTYPES,
    assert_as_exact_as_torch,
    assert_as_exact_as_torch_in_the_mean,
    assert_refused,
    normal,
    outputs_and_gradients,
)
from tests.kernels.tokens import tokens


class Allocations(TorchDispatchMode):
    """Bytes of the tensors that operators return, while they live, and the elements of the largest.

    What an operator of ours allocates within is not seen: one fp32 number a row.
    """

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                self.largest = max(self.largest, tensor.numel())
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def _free(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.live -= size


def inputs(rows: int, size: int, columns: int, dtype: torch.dtype, *, seed: int = 0) -> list[Tensor]:
    """Hidden states, and a weight whose logits have a deviation of about 3."""
    weight = 3 * size**-0.5 * normal(columns, size, dtype=torch.float32, seed=seed)
    return [normal(rows, size, dtype=dtype, seed=seed), weight.to(dtype)]


@pytest.mark.parametrize(
    ("rows", "size", "columns", "chunk"),
    [(1, 1, 1, None), (37, 16, 255, None), (9, 40, 256, 4), (6, 7, 1500, 6), (5, 768, 257, 100), (3, 4, 20_000, 1)],
)
def test_loss_and_gradients_are_as_exact_as_torchs_in_fp32(
    rows: int, size: int, columns: int, chunk: int | None
) -> None:
    """torch's own error is that of products with as many rows: its product of one row rounds up to 4 times as much as
    one of three (2 cores of an Intel Xeon, 2026-11-26)."""
    targets = tokens(rows, columns)
    assert_as_exact_as_torch_in_the_mean(
        lambda h, w: linear_cross_entropy(h, w, targets, chunk_rows=chunk),
        lambda h, w: cross_entropy_reference(torch.cat([part @ w.t() for part in h.split(chunk or rows)]), targets),
        [inputs(rows, size, columns, torch.float32, seed=seed) for seed in range(8)],
        [torch.tensor(1.5, device=DEVICE)],
    )


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    ("rows", "size", "columns", "chunk"), [(37, 16, 255, None), (9, 40, 256, 4), (6, 7, 1023, 6), (5, 96, 4096, 1)]
)
def test_loss_and_gradients_are_as_exact_as_torchs_in_16_bits(
    rows: int, size: int, columns: int, chunk: int | None, dtype: torch.dtype
) -> None:
    # at most twice as far off as PyTorch from the same 16-bit logits, or one rounding of the largest value
    targets, both, upstream = tokens(rows, columns), inputs(rows, size, columns, dtype), [torch.tensor(24.0).to(DEVICE)]

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        return reference(hidden, weight, targets)

    def chunked(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, scale=24.0, chunk_rows=chunk)

    exact = outputs_and_gradients(plain, [tensor.double() for tensor in both], upstream)
    torchs = outputs_and_gradients(plain, both, upstream)
    for place, (own, same, true) in enumerate(
        zip(outputs_and_gradients(chunked, both, upstream), torchs, exact, strict=True)
    ):
        assert own.dtype == same.dtype
        error, bound = (float((x.double() - true).abs().max()) for x in (own, same))
        assert error <= 2 * max(bound, torch.finfo(own.dtype).eps / 2 * float(true.abs().max())), place


def test_the_weights_gradient_keeps_small_parts_beside_large_ones() -> None:
    # 39 parts of 1 beside one of 512, of which bf16 next holds 516: each would be lost. Here each part, the logits'
    # gradient in it and the sum are rounded once, by 2^-8 of itself; exponentials in fp32 by 64 2^-24
    hidden, weight, targets = torch.ones(40, 3), torch.zeros(16, 3), torch.zeros(40, dtype=torch.int64)
    hidden[0] = 512.0
    hidden, weight = (x.to(torch.bfloat16).to(DEVICE).requires_grad_() for x in (hidden, weight))
    (gradient,) = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets.to(DEVICE), chunk_rows=1), weight)
    expected = torch.full((16, 3), 1 / 16, dtype=torch.float64)
    expected[0] -= 1
    expected *= (512 + 39) / 40
    error = (gradient.double().cpu() - expected).abs() / expected.abs()
    assert float(error.max()) <= 3 * 2**-8 + 64 * 2**-24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_are_counted_as_those_of_the_layer(dtype: torch.dtype) -> None:
    rows, size, columns = 9, 8, 37
    hidden, weight = (tensor.requires_grad_() for tensor in inputs(rows, size, columns, dtype))
    product = 2 * rows * size * columns

    def flop(hidden: Tensor, weight: Tensor, *, backward: bool) -> int:
        with FlopCounterMode(display=False) as counter:
            loss = linear_cross_entropy(hidden, weight, tokens(rows, columns), chunk_rows=4)
            if backward:
                loss.backward()
        return int(counter.get_total_flops())

    with torch.no_grad():
        assert flop(hidden, weight, backward=False) == product
    assert flop(hidden.detach(), weight.detach(), backward=False) == product
    assert flop(hidden, weight, backward=True) == 3 * product
    assert flop(hidden.detach(), weight, backward=True) == 2 * product
    assert flop(hidden, weight.detach(), backward=True) == 2 * product


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_logits_of_all_rows_never_exist(dtype: torch.dtype) -> None:
    rows, size, columns, chunk = 40, 16, 500, 8
    both, targets, bytes_each = inputs(rows, size, columns, dtype), tokens(rows, columns), dtype.itemsize
    hidden, weight = (tensor.requires_grad_() for tensor in both)

    def peak(loss: Callable[[], Tensor], *, backward: bool) -> Allocations:
        with Allocations(hidden, weight, targets) as allocations:
            found = loss()
            if backward:
                torch.autograd.grad(found, both)
        return allocations

    def chunked() -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, chunk_rows=chunk)

    own = peak(chunked, backward=True)
    # C V b + M D b + V D b, and 4 V D in 16 bits; beside it a loss for each row, two masks of as many bytes as they
    # have rows and a few numbers
    derived = (chunk * columns + rows * size + columns * size) * bytes_each
    derived += 4 * columns * size if bytes_each == 2 else 0
    assert derived <= own.peak <= derived + (4 + 2) * rows + 100
    assert own.largest == columns * size
    with torch.no_grad():
        alone = peak(chunked, backward=False)
    assert alone.largest == chunk * columns
    assert chunk * columns * bytes_each <= alone.peak <= chunk * columns * bytes_each + (4 + 2) * rows + 100
    torchs = peak(
        lambda: functional.cross_entropy((hidden @ weight.t()).float(), targets, ignore_index=IGNORED), backward=True
    )
    assert torchs.largest == rows * columns
    assert 12 * rows * columns <= torchs.peak <= 12 * rows * columns + 100
    # by its own choice too: at most half of the rows
    with Allocations(hidden, weight, targets) as allocations:
        linear_cross_entropy(hidden, weight, targets).backward()
    assert allocations.largest < rows * columns


@pytest.mark.parametrize(
    ("rows", "size", "columns", "chunk"),
    [
        (32_768, 768, 50_304, 8192),
        (1_048_576, 768, 50_304, 16_009),  # as large as the hidden states: 1,048,576 * 768 / 50,304
        (2048, 14_336, 250_880, 1024),
        (4096, 4096, 51_200, 2048),
        (3, 8, 4, 2),
        (1, 8, 4, 1),
        (0, 8, 4, 1),
    ],
)
def test_rows_of_a_chunk(rows: int, size: int, columns: int, chunk: int) -> None:
    assert rows_of_a_chunk(rows, size, columns) == chunk


def test_the_reference_is_pytorchs() -> None:
    hidden, weight = inputs(6, 5, 33, torch.float64)
    targets = torch.tensor([0, 3, 7, 32, 3, 5], device=DEVICE)
    expected = functional.cross_entropy(hidden @ weight[:32].t(), targets % 32, ignore_index=7)
    assert torch.allclose(reference(hidden, weight, targets % 32, ignore_index=7, vocabulary=32), expected, rtol=1e-13)


@pytest.mark.parametrize("gradients", [True, False])
def test_columns_that_are_no_tokens_do_not_count(gradients: bool) -> None:
    hidden, weight = inputs(9, 8, 48, torch.float32)
    targets = tokens(9, 37)
    targets[2] = 5

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, vocabulary=37, ignore_index=5, chunk_rows=2)

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        return reference(hidden, weight[:37], torch.where(targets == IGNORED, 0, targets), ignore_index=5)

    targets = torch.where(targets == IGNORED, 0, targets)
    if gradients:
        assert_as_exact_as_torch(loss, plain, [hidden, weight], [torch.tensor(1.0, device=DEVICE)])
        return
    # two roundings of each of 8 products and sums up to about 16, and 4 of the loss
    assert abs(float(loss(hidden, weight)) - float(plain(hidden.double(), weight.double()))) <= (16 + 4) * 16 * 2**-24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_of_the_two_may_need_no_gradient(dtype: torch.dtype) -> None:
    hidden, weight = inputs(9, 8, 37, dtype)
    targets = tokens(9, 37)
    both = outputs_and_gradients(
        lambda h, w: linear_cross_entropy(h, w, targets, chunk_rows=4),
        [hidden, weight],
        [torch.ones((), device=DEVICE)],
    )
    leaf = hidden.clone().requires_grad_()
    linear_cross_entropy(leaf, weight, targets, chunk_rows=4).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, both[1])
    leaf = weight.clone().requires_grad_()
    linear_cross_entropy(hidden, leaf, targets, chunk_rows=4).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, both[2])
    assert torch.equal(linear_cross_entropy(hidden, weight, targets, chunk_rows=4), both[0])


def test_rows_that_are_not_learned_and_no_rows() -> None:
    hidden, weight = (tensor.requires_grad_() for tensor in inputs(3, 8, 20, torch.bfloat16))
    for rows in (3, 0):
        targets = torch.full((rows,), IGNORED, device=DEVICE)
        loss = linear_cross_entropy(hidden[:rows], weight, targets)
        assert loss.isnan()
        assert linear_cross_entropy(hidden[:rows].detach(), weight.detach(), targets).isnan()
        for gradient in torch.autograd.grad(loss, (hidden, weight)):
            assert not gradient.any()
    assert linear_cross_entropy(hidden, weight, torch.tensor([1, 20, 2], device=DEVICE)).isnan()


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    hidden, weight = inputs(6, 24, 40, torch.float32)
    by_column = normal(6, 12, dtype=torch.float32).view(12, 6).t()
    targets = tokens(12, 40)[::2]
    for h, w in ((hidden[:, ::2], weight[:, :12]), (by_column, weight.view(24, 40).t()[:, 5:17])):
        assert_as_exact_as_torch(
            lambda h, w: linear_cross_entropy(h, w, targets, scale=3.0, chunk_rows=4),
            lambda h, w: reference(h, w, targets),
            [h, w],
            [torch.tensor(2.0, device=DEVICE)],
        )


# torch.compile itself makes an object of torch.autograd.Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_compiles_into_one_graph() -> None:
    both, targets = [tensor.requires_grad_() for tensor in inputs(9, 8, 37, torch.bfloat16)], tokens(9, 37)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, scale=4.0, chunk_rows=4) * 4.0

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    results = [torch.autograd.grad(function(*both), both) for function in (loss, compiled)]
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


HIDDEN, WEIGHT, TARGETS = torch.ones(3, 2), torch.ones(4, 2), torch.zeros(3, dtype=torch.int64)


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        linear_cross_entropy,
        [
            ((HIDDEN.double(), WEIGHT, TARGETS), {}, "dtype of hidden"),
            ((HIDDEN, WEIGHT.half(), TARGETS), {}, "dtype of weight"),
            ((HIDDEN, WEIGHT.to("meta"), TARGETS), {}, "device of weight"),
            ((HIDDEN[None], WEIGHT, TARGETS), {}, "shape of hidden"),
            ((HIDDEN[0], WEIGHT, TARGETS), {}, "shape of hidden"),
            ((HIDDEN, WEIGHT[None], TARGETS), {}, "shape of weight"),
            ((HIDDEN, WEIGHT[:, :1], TARGETS), {}, "shape of weight"),
            ((HIDDEN, WEIGHT[0], TARGETS), {}, "shape of weight"),
            ((HIDDEN, WEIGHT[:0], TARGETS), {}, "columns"),
            ((HIDDEN, WEIGHT, TARGETS.int()), {}, "dtype of targets"),
            ((HIDDEN, WEIGHT, TARGETS.to("meta")), {}, "device of targets"),
            ((HIDDEN, WEIGHT, TARGETS[:2]), {}, "shape of targets"),
            ((HIDDEN, WEIGHT, TARGETS), {"vocabulary": 5}, "vocabulary"),
            ((HIDDEN, WEIGHT, TARGETS), {"scale": math.nan}, "scale"),
            ((HIDDEN, WEIGHT, TARGETS), {"chunk_rows": 0}, "rows of a chunk"),
        ],
    )
