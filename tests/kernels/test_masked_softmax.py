from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.masked_softmax import masked_softmax, reference
from tests.kernels.agreement import DEVICE, DTYPES, assert_as_exact_as_torch, assert_refused, normal

Masks = dict[str, Tensor | bool]
SCALE = 1 / math.sqrt(96)


def packed(batch: int, length: int) -> Tensor:
    """Which places see a token, [B, 2, S]: two windows a sequence, which see all of their first half, then causally."""
    first, end = torch.zeros(batch, length, dtype=torch.int64), torch.zeros(batch, length, dtype=torch.int64)
    for row in range(batch):
        cut = (length + row) // 2
        for start, stop in ((0, cut), (cut, length)):
            places = torch.arange(start, stop)
            first[row, start:stop] = torch.where(places < (start + stop) // 2, start, places)
            end[row, start:stop] = stop
    return torch.stack([first, end], dim=1).to(DEVICE)


def causal_bias(heads: int, length: int) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    slopes = 0.5 ** torch.arange(1, heads + 1)
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -math.inf).to(DEVICE)


def slopes(heads: int) -> Tensor:
    return (0.7 ** torch.arange(1, heads + 1)).to(DEVICE)


def masks_named(name: str, shape: tuple[int, int, int, int]) -> Masks:
    batch, heads, length, columns = shape
    made: dict[str, Masks] = {
        "none": {},
        "causal": {"causal": True},
        "prefix": {"causal": True, "prefix_B": (torch.arange(batch) * columns // 2).to(DEVICE)},
        "alibi": {"causal": True, "slopes_H": slopes(heads)},
        "seen": {"seen_B2S": packed(batch, columns)},
        "bias": {"bias": causal_bias(heads, columns)},
        "one bias": {"bias": causal_bias(1, columns)},
        "biases": {"bias": normal(batch, 1, length, columns, dtype=torch.float32, seed=7)},
        "all": {
            "causal": True,
            "prefix_B": torch.full((batch,), columns, dtype=torch.int32).to(DEVICE),
            "slopes_H": slopes(heads),
            "seen_B2S": packed(batch, columns).int(),
            "bias": normal(1, heads, length, columns, dtype=torch.float32, seed=7),
        },
    }
    return made[name]


ALONE = ("causal", "prefix", "alibi", "seen", "bias", "one bias", "biases")


def assert_agrees(shape: tuple[int, int, int, int], masks: Masks, dtype: torch.dtype) -> None:
    assert_as_exact_as_torch(
        lambda x: masked_softmax(x, SCALE, **masks),  # type: ignore[arg-type]
        lambda x: reference(x, SCALE, **masks),  # type: ignore[arg-type]
        [8 * normal(*shape, dtype=dtype)],
        [normal(*shape, dtype=dtype, seed=1)],
    )


@pytest.mark.parametrize(
    ("masks", "dtype"),
    [
        *((masks, dtype) for masks in ("none", "all") for dtype in DTYPES),
        *((masks, DTYPES[number % 3]) for number, masks in enumerate(ALONE)),
    ],
    ids=str,
)
def test_weights_and_gradients_are_as_exact_as_torchs(masks: str, dtype: torch.dtype) -> None:
    shape = (3, 2, 37, 37)
    assert_agrees(shape, masks_named(masks, shape), dtype)


@pytest.mark.parametrize(
    ("shape", "masks", "dtype"),
    [
        ((1, 1, 1, 1), "all", torch.float32),
        ((2, 3, 1, 1500), "none", torch.bfloat16),
        ((1, 2, 5, 255), "none", torch.float16),
        ((1, 2, 3, 256), "none", torch.bfloat16),
        ((1, 1, 130, 130), "causal", torch.bfloat16),
        ((1, 2, 3, 257), "none", torch.float32),
        ((1, 2, 67, 67), "prefix", torch.float16),
        ((2, 2, 3, 768), "biases", torch.float32),
        ((1, 3, 2, 1023), "biases", torch.bfloat16),
        ((1, 1, 3, 4096), "none", torch.float32),
        ((1, 1, 2, 4097), "none", torch.bfloat16),
        ((2, 1, 300, 40), "seen", torch.float32),  # 32 rows a lap, 8 laps a program
        ((2, 9, 70, 16), "none", torch.float32),
        ((0, 2, 4, 4), "causal", torch.float32),
        ((2, 2, 0, 4), "biases", torch.bfloat16),
    ],
    ids=str,
)
def test_sizes_that_divide_nothing(shape: tuple[int, int, int, int], masks: str, dtype: torch.dtype) -> None:
    batch, _, length, columns = shape
    made = masks_named(masks, shape)
    if masks == "seen":  # more positions attend than are attended to; column 0 is seen by all
        first = torch.arange(columns).expand(batch, columns) * 5
        made = {"seen_B2S": torch.stack([first, torch.full_like(first, length)], dim=1).to(DEVICE)}
    assert_agrees(shape, made, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sharp_weights_are_as_exact_as_pytorchs_softmax_in_the_same_dtype(dtype: torch.dtype) -> None:
    # where one weight is almost 1, its rounding decides what is left of the gradient, here as in PyTorch, whose
    # backward pass starts from the rounded weights too; the last term is one rounding of the result
    x, upstream = 20 * normal(1, 4, 16, 37, dtype=dtype), normal(1, 4, 16, 37, dtype=dtype, seed=1)

    def gradient(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        leaf = x.detach().to(dtype).requires_grad_()
        (found,) = torch.autograd.grad(function(leaf), leaf, upstream.to(dtype))
        return found.double()

    exact = gradient(lambda x: torch.softmax(x, -1), torch.float64)
    torchs = float((gradient(lambda x: torch.softmax(x, -1), dtype) - exact).abs().max())
    own = float((gradient(lambda x: masked_softmax(x, 1.0), dtype) - exact).abs().max())
    assert own <= 2 * torchs + torch.finfo(dtype).eps / 2 * float(exact.abs().max())


def test_the_masks_are_what_they_say() -> None:
    batch, heads, length = 2, 2, 7
    scores = normal(batch, heads, length, length, dtype=torch.float64)
    prefix, slope, seen = torch.tensor([0, 4], device=DEVICE), slopes(heads), packed(batch, length)
    masks: dict[str, Masks] = {
        "none": {},
        "causal": {"causal": True},
        "prefix": {"causal": True, "prefix_B": prefix},
        "alibi": {"causal": True, "slopes_H": slope},
        "seen": {"seen_B2S": seen},
    }

    def attends(name: str, b: int, t: int, s: int) -> bool:
        return {
            "none": True,
            "causal": s <= t,
            "prefix": s <= t or s < int(prefix[b]),
            "alibi": s <= t,
            "seen": int(seen[b, 0, s]) <= t < int(seen[b, 1, s]),
        }[name]

    for name, made in masks.items():
        weights = reference(scores, 0.5, **made)  # type: ignore[arg-type]
        for b in range(batch):
            for h in range(heads):
                for t in range(length):
                    penalty = float(slope[h]) if name == "alibi" else 0.0
                    powers = [
                        math.exp(0.5 * float(scores[b, h, t, s]) - penalty * (t - s)) if attends(name, b, t, s) else 0.0
                        for s in range(length)
                    ]
                    expected = torch.tensor(powers, dtype=torch.float64, device=DEVICE) / sum(powers)
                    assert torch.allclose(weights[b, h, t], expected, rtol=1e-12, atol=0), (name, b, h, t)


def test_what_a_causal_mask_hides_decides_nothing() -> None:
    hidden = torch.ones(40, 40, dtype=torch.bool, device=DEVICE).triu(1)
    hidden = hidden & (torch.arange(40, device=DEVICE) >= 17)
    prefix = torch.tensor([17], device=DEVICE)
    gradients = []
    for value in (0.0, math.nan):
        leaf = normal(1, 2, 40, 40, dtype=torch.float32).masked_fill(hidden, value).requires_grad_()
        upstream = normal(1, 2, 40, 40, dtype=torch.float32, seed=1).masked_fill(hidden, value)
        weights = masked_softmax(leaf, SCALE, causal=True, prefix_B=prefix)
        gradients.append(torch.autograd.grad(weights, leaf, upstream)[0])
        assert not weights[..., hidden].any()
    assert torch.equal(*gradients)
    assert not gradients[0][..., hidden].any()


def test_a_position_that_attends_to_nothing_has_no_softmax() -> None:
    scores = normal(1, 2, 6, 6, dtype=torch.float32)
    bias = torch.zeros(1, 6, 6).index_fill(1, torch.tensor([2]), -math.inf).to(DEVICE)
    weights = masked_softmax(scores, 1.0, bias=bias)
    assert torch.equal(weights.isnan(), reference(scores, 1.0, bias=bias).isnan())
    assert weights[:, :, 2].isnan().all()


def test_scores_beyond_the_range_of_the_exponential() -> None:
    scores = torch.tensor([[[[60000.0, 59999.0, -60000.0]]]], device=DEVICE)
    share = 1 / (1 + math.exp(-1))
    expected = torch.tensor([share, 1 - share, 0.0], device=DEVICE)
    assert torch.allclose(masked_softmax(scores, 1.0)[0, 0, 0], expected, rtol=4 * 2**-24, atol=0)


def test_input_that_is_not_contiguous_gives_the_same() -> None:
    wide = normal(2, 3, 6, 24, dtype=torch.bfloat16)
    bias = normal(3, 6, 24, dtype=torch.float32, seed=1)
    for x, added in (
        (wide[..., :12], bias[..., ::2]),
        (wide[..., ::2], bias[..., :12]),
        (wide.transpose(0, 1)[:2, :1].expand(2, 3, 6, 24)[..., 12:], bias[:1, :1, :12].expand(3, 6, 12)),
    ):
        got = masked_softmax(x, SCALE, bias=added)
        assert torch.equal(got, masked_softmax(x.contiguous(), SCALE, bias=added.contiguous()))
        assert got.is_contiguous()
    gradients = []
    upstream = normal(3, 6, 2, 12, dtype=torch.float32, seed=2).permute(2, 0, 1, 3)
    for given in (upstream, upstream.contiguous()):
        leaf = wide[..., :12].float().requires_grad_()
        gradients.append(torch.autograd.grad(masked_softmax(leaf, SCALE), leaf, given)[0])
    assert torch.equal(*gradients)
    leaf = wide[..., :12].float().requires_grad_()
    masked_softmax(leaf, SCALE)[..., 0].sum().backward()
    assert leaf.grad is not None


def test_the_operator_keeps_pytorchs_rules() -> None:
    scores = normal(2, 2, 5, 5, dtype=torch.float32).requires_grad_()
    prefix, bias = torch.tensor([2, 3], device=DEVICE), normal(2, 2, 5, 5, dtype=torch.float32)
    operation = torch.ops.llm_reference_runs.masked_softmax
    torch.library.opcheck(operation, (scores, 0.5, True, prefix, slopes(2), packed(2, 5), bias))


SIX = torch.ones(2, 3, 6, 6)


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        masked_softmax,
        [
            ((SIX.double(), 1.0), {}, "dtype of scores"),
            ((SIX[0], 1.0), {}, "shape of scores"),
            ((SIX[None], 1.0), {}, "shape of scores"),
            ((SIX[..., :0], 1.0), {}, "columns"),
            ((torch.ones(1, 1, 1, 65_537), 1.0), {}, "columns"),
            ((SIX[:, :, :5], 1.0), {"causal": True}, "positions of a causal mask"),
            ((SIX, 1.0), {"prefix_B": torch.ones(2).int()}, "prefix"),
            ((SIX, 1.0), {"causal": True, "prefix_B": torch.ones(2)}, "dtype of prefix"),
            ((SIX, 1.0), {"causal": True, "prefix_B": torch.ones(3).int()}, "shape of prefix"),
            ((SIX, 1.0), {"slopes_H": torch.ones(3).half()}, "dtype of slopes"),
            ((SIX, 1.0), {"slopes_H": torch.ones(2)}, "shape of slopes"),
            ((SIX, 1.0), {"slopes_H": torch.ones(3, device="meta")}, "device of slopes"),
            ((SIX, 1.0), {"seen_B2S": torch.ones(2, 2, 6)}, "dtype of seen"),
            ((SIX, 1.0), {"seen_B2S": torch.ones(2, 6).int()}, "shape of seen"),
            ((SIX, 1.0), {"bias": torch.ones(3, 6, 6).half()}, "dtype of bias"),
            ((SIX, 1.0), {"bias": torch.ones(2, 6, 6)}, "shape of bias"),
            ((SIX, 1.0), {"bias": torch.ones(3, 3, 6, 6)}, "shape of bias"),
            ((SIX, 1.0), {"bias": torch.ones(6, 6)}, "shape of bias"),
            ((SIX, 1.0), {"bias": torch.ones(3, 6, 6).requires_grad_()}, "bias"),
        ],
    )
