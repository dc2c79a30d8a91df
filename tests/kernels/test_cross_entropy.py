from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import cross_entropy as module
from kernels.cross_entropy import (
    AT_ONCE,
    CACHED_BYTES,
    IGNORED,
    _rows_at_once,
    cross_entropy,
    loss_and_gradient,
    losses_alone,
    reference,
)
from kernels.operator import UnsupportedInputError
from tests.kernels.agreement import DEVICE, DTYPES, assert_as_exact_as_torch, assert_refused, normal
from tests.kernels.launches import recorded_launches
from tests.kernels.tokens import tokens


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        *((6, 37, dtype) for dtype in DTYPES),
        *((5, 1023, dtype) for dtype in DTYPES),
        *((2, 50_257, dtype) for dtype in DTYPES),
        (1, 1, torch.float32),
        (4, 255, torch.bfloat16),
        (3, 256, torch.float16),
        (7, 257, torch.bfloat16),
        (4, 768, torch.float32),
        (2, 1500, torch.float16),
        (3, 4096, torch.bfloat16),
        (2, 16_385, torch.float32),
        (1, 250_880, torch.bfloat16),
        (1, 250_880, torch.float16),
    ],
    ids=str,
)
def test_loss_and_gradient_are_as_exact_as_torchs(rows: int, columns: int, dtype: torch.dtype) -> None:
    targets, scale = tokens(rows, columns), 24.0  # fp16 gradients of a mean over V tokens need a scale, as PyTorch's
    assert_as_exact_as_torch(
        lambda x: cross_entropy(x.clone(), targets, scale=scale),
        lambda x: reference(x, targets),
        [3 * normal(rows, columns, dtype=dtype)],
        [torch.tensor(scale, device=DEVICE)],
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_gradient_than_announced_multiplies_once_more(dtype: torch.dtype) -> None:
    # two roundings, twice the one of the bound; by 2 it would be none
    targets = tokens(2, 50_257)
    assert_as_exact_as_torch(
        lambda x: cross_entropy(x.clone(), targets, scale=7.0),
        lambda x: reference(x, targets),
        [normal(2, 50_257, dtype=dtype)],
        [torch.tensor(9.3, device=DEVICE)],
    )


def test_small_probabilities_keep_their_bits_in_fp16_under_the_loss_scale() -> None:
    # 4096 logits that are alike but for one: gradients of 2^-12 / 8 rows = 2^-15, below fp16's least normal number
    # 2^-14; times 2^12 each is off by one rounding, 2^-11 of itself, and by the exponentials in fp32, 64 2^-24
    logits = normal(8, 4096, dtype=torch.float16)
    targets = torch.zeros(8, dtype=torch.int64, device=DEVICE)
    exact = logits.double().requires_grad_()
    (true,) = torch.autograd.grad(reference(exact, targets), exact)
    (scaled,) = torch.autograd.grad(
        cross_entropy((leaf := logits.clone().requires_grad_()) * 1, targets, scale=4096.0) * 4096.0, leaf
    )
    error = (scaled.double() / 4096 - true).abs() / true.abs()
    assert float(error.max()) <= 2**-11 + 64 * 2**-24
    (bare,) = torch.autograd.grad(cross_entropy((leaf := logits.clone().requires_grad_()) * 1, targets), leaf)
    assert float(((bare.double() - true).abs() / true.abs()).max()) > 2**-8


@pytest.mark.parametrize("ignored", [IGNORED, 3])
def test_the_reference_is_pytorchs(ignored: int) -> None:
    logits, targets = normal(6, 33, dtype=torch.float64), torch.tensor([0, 3, IGNORED, 32, 3, 5], device=DEVICE)
    targets = torch.where(targets == IGNORED, ignored, targets)
    expected = functional.cross_entropy(logits, targets, ignore_index=ignored)
    assert torch.allclose(reference(logits, targets, ignore_index=ignored), expected, rtol=1e-14, atol=0)
    own = cross_entropy(logits.float(), targets, ignore_index=ignored)
    # a loss is log(sum) + maximum - logit: at most 6 roundings of numbers that are below 8 here
    assert abs(float(own) - float(expected)) <= 6 * 8 * 2**-24


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "vocabulary"), [(48, 37), (300, 1), (16_500, 16_383), (40_000, 16_390)])
def test_columns_that_are_no_tokens_do_not_count(columns: int, vocabulary: int, dtype: torch.dtype) -> None:
    targets = tokens(3, vocabulary)
    logits = normal(3, columns, dtype=dtype)
    logits[:, vocabulary:] = math.nan
    leaf, part = (x.clone().requires_grad_() for x in (logits, logits[:, :vocabulary]))
    loss, expected = cross_entropy(leaf * 1, targets, vocabulary=vocabulary), cross_entropy(part * 1, targets)
    (gradient,), (expected_gradient,) = torch.autograd.grad(loss, leaf), torch.autograd.grad(expected, part)
    for own, other in ((loss, expected), (gradient[:, :vocabulary], expected_gradient)):
        # rows that lie in another way are summed in another order: 4 roundings of the largest value
        most = 4 * torch.finfo(own.dtype).eps / 2 * float(other.detach().abs().max())
        assert torch.allclose(own, other, rtol=0, atol=most)
    assert not gradient[:, vocabulary:].any()
    assert torch.equal(cross_entropy(logits, targets, vocabulary=vocabulary), loss)
    plain = reference(logits, targets, vocabulary=vocabulary)
    assert torch.equal(plain, reference(logits[:, :vocabulary], targets))


def test_the_gradient_lies_where_the_logits_were() -> None:
    logits, targets = normal(5, 40, dtype=torch.float32), tokens(5, 40)
    leaf = logits.clone().requires_grad_()
    overwritten = leaf * 1
    loss = cross_entropy(overwritten, targets, scale=2.0)
    (gradient,) = torch.autograd.grad(loss, leaf, torch.tensor(2.0, device=DEVICE))
    assert torch.equal(gradient, overwritten)
    again, same = loss_and_gradient(logits, targets, scale=2.0)
    assert same.data_ptr() == logits.data_ptr()
    assert torch.equal(same, gradient)
    assert torch.equal(again, loss)
    assert not again.requires_grad


def test_logits_that_need_no_gradient_stay() -> None:
    logits, targets = normal(5, 40, dtype=torch.bfloat16), tokens(5, 40)
    kept = logits.clone()
    loss = cross_entropy(logits, targets)
    with torch.no_grad():
        assert torch.equal(cross_entropy(logits.requires_grad_(), targets), loss)
    assert torch.equal(logits, kept)
    assert torch.equal(loss, cross_entropy(logits * 1, targets))


def test_autograd_refuses_what_the_overwriting_would_falsify() -> None:
    targets = tokens(3, 20)
    leaf = normal(3, 20, dtype=torch.float32).requires_grad_()
    loss = cross_entropy(leaf.exp(), targets)  # whose own gradient is computed from its values
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = cross_entropy(leaf * 1, targets)
    loss.backward(torch.tensor(3.0, device=DEVICE), retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(UnsupportedInputError, match="logits: .* got a leaf of autograd"):
        cross_entropy(leaf[1:].flatten().view(2, 20), targets[1:])


def test_rows_that_are_not_learned() -> None:
    leaf = normal(3, 20, dtype=torch.float32).requires_grad_()
    none = torch.full((3,), IGNORED, device=DEVICE)
    loss = cross_entropy(leaf * 1, none)
    assert loss.isnan()
    assert functional.cross_entropy(leaf, none).isnan()
    assert not torch.autograd.grad(loss, leaf)[0].any()
    no_rows = leaf[:0].detach().requires_grad_()
    loss = cross_entropy(no_rows * 1, none[:0])
    assert loss.isnan()
    assert torch.autograd.grad(loss, no_rows)[0].shape == (0, 20)


@pytest.mark.parametrize("target", [20, -1, 2**40, 18])
def test_a_target_that_is_no_token_is_not_a_number(target: int) -> None:
    leaf = normal(3, 20, dtype=torch.float32).requires_grad_()
    loss = cross_entropy(leaf * 1, torch.tensor([3, target, 4], device=DEVICE), vocabulary=18)
    assert loss.isnan()
    assert torch.autograd.grad(loss, leaf)[0].isnan().any(1).tolist() == [False, True, False]


def test_logits_beyond_the_range_of_the_exponential() -> None:
    logits = normal(3, 40_000, dtype=torch.float16)
    logits[0, 7] = 60_000.0
    logits[1, :17_000] = -math.inf  # more than one lap
    logits[2, 20_000:] = -60_000.0
    targets = torch.tensor([7, 39_999, 0], device=DEVICE)
    assert_as_exact_as_torch(
        lambda x: cross_entropy(x.clone(), targets),
        lambda x: reference(x, targets),
        [logits],
        [torch.tensor(1.0, device=DEVICE)],
    )


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide = normal(6, 80, dtype=torch.float32)
    targets = tokens(12, 40)[::2]
    for view in (
        lambda x: x[:, :40],
        lambda x: x[:, ::2],
        lambda x: x.view(80, 6).t()[:, :40],
        lambda x: x[:1, :40].expand(6, 40),
    ):
        leaf, gradients, losses = wide.clone().requires_grad_(), [], []
        together = view(leaf).clone(memory_format=torch.contiguous_format)
        for logits, aims in ((view(leaf), targets), (together, targets.contiguous())):
            losses.append(cross_entropy(logits.detach(), aims))
            gradients.append(torch.autograd.grad(cross_entropy(logits, aims), leaf)[0])
        assert torch.equal(*losses)
        assert torch.equal(*gradients)
        assert torch.equal(leaf, wide)


def test_the_operators_keep_pytorchs_rules() -> None:
    logits, targets, factor = normal(3, 8, dtype=torch.float32), tokens(3, 8), torch.tensor(0.5, device=DEVICE)
    operations = torch.ops.llm_reference_runs
    torch.library.opcheck(operations.cross_entropy_with_gradient, (logits, targets, factor, IGNORED, 8))
    torch.library.opcheck(operations.cross_entropy_without_gradient, (logits, targets, IGNORED, 8))
    torch.library.opcheck(operations.cross_entropy_multiply, (logits, factor))


# torch.compile itself makes an object of torch.autograd.Function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_compiles_into_one_graph() -> None:
    weight, targets = normal(20, 6, dtype=torch.float32).requires_grad_(), tokens(5, 20)
    hidden = normal(5, 6, dtype=torch.float32, seed=1).requires_grad_()

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return cross_entropy(hidden @ weight.t(), targets, scale=4.0) * 4.0

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    results = [torch.autograd.grad(function(hidden, weight), (hidden, weight)) for function in (loss, compiled)]
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


FOUR, TARGETS = torch.ones(3, 4, device=DEVICE), torch.zeros(3, dtype=torch.int64, device=DEVICE)


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        cross_entropy,
        [
            ((FOUR.double(), TARGETS), {}, "dtype of logits"),
            ((FOUR[None], TARGETS), {}, "shape of logits"),
            ((FOUR[0], TARGETS), {}, "shape of logits"),
            ((FOUR[:, :0], TARGETS), {}, "columns"),
            ((FOUR, TARGETS.int()), {}, "dtype of targets"),
            ((FOUR, TARGETS.to("meta")), {}, "device of targets"),
            ((FOUR, TARGETS[:2]), {}, "shape of targets"),
            ((FOUR, TARGETS[:, None]), {}, "shape of targets"),
            ((FOUR, TARGETS), {"vocabulary": 5}, "vocabulary"),
            ((FOUR, TARGETS), {"vocabulary": 0}, "vocabulary"),
            ((FOUR, TARGETS), {"scale": 0.0}, "scale"),
            ((FOUR, TARGETS), {"scale": math.inf}, "scale"),
            ((FOUR.clone().requires_grad_(), TARGETS), {}, "logits"),
        ],
    )


def test_a_multiprocessor_works_on_as_many_rows_as_stay_in_the_cache() -> None:
    for rows, fewer in ((16, 8), (8, 4), (4, 2)):
        row_bytes = CACHED_BYTES // (rows * 132)
        assert (_rows_at_once(row_bytes), _rows_at_once(row_bytes + 1)) == (rows, fewer)
    assert (_rows_at_once(2), _rows_at_once(10**6)) == (16, 2)


def test_programs_take_several_rows_and_blocks_as_wide_as_few_programs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = recorded_launches(module, monkeypatch)
    for rows, columns, programs, block in (
        (100, 50_304, 4, AT_ONCE // 2),
        (3, 50_304, 3, AT_ONCE // 2),
        (100, 1000, 32, 1024),
    ):
        logits = torch.zeros(rows, columns, dtype=torch.bfloat16, device=DEVICE)
        losses_alone(logits, torch.zeros(rows, dtype=torch.int64, device=DEVICE), IGNORED, columns)
        assert (launches[-1].programs, launches[-1].settings["BLOCK"]) == (programs, block)
