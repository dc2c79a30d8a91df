from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.rotary import reference, rotary
from tests.kernels.agreement import DEVICE, DTYPES, FAST_CHECKS, assert_as_exact_as_torch, assert_refused, normal


def table(*places: int, size: int) -> Tensor:
    """Cosines and sines of pairs (i, i + size / 2) at base 10000, [2, T, size]."""
    turns = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
    angles = torch.tensor(places)[:, None] * turns
    angles = torch.cat([angles, angles], dim=-1)
    return torch.stack([angles.cos(), angles.sin()]).to(DEVICE)


def fused(batch: int, length: int, heads: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries and keys as they lie in one projection's output [B, T, H * 3 * K], each [B, H, T, K]."""
    both = normal(batch, length, heads * 3 * size, dtype=dtype).view(batch, length, heads, 3, size)
    q, k, _ = both.permute(3, 0, 2, 1, 4).unbind(0)
    return q, k


@pytest.mark.parametrize(
    ("batch", "heads", "length", "size", "turning", "dtype"),
    [
        *((2, 3, 37, 64, 64, dtype) for dtype in DTYPES),
        *((1, 2, 70, 96, 24, dtype) for dtype in DTYPES),  # GPT-NeoX-20B's quarter of a head, in several programs
        (2, 5, 33, 128, 128, torch.float16),  # a second program for the fifth head
        (1, 1, 1, 2, 2, torch.float32),
        (1, 9, 5, 37, 10, torch.bfloat16),
        (1, 1, 3, 1023, 1022, torch.float32),
        (1, 2, 257, 16, 8, torch.bfloat16),
        (1, 3, 0, 8, 8, torch.float32),
        (0, 3, 4, 8, 8, torch.float16),
    ],
    ids=str,
)
def test_output_and_gradients_are_as_exact_as_torchs(
    batch: int, heads: int, length: int, size: int, turning: int, dtype: torch.dtype
) -> None:
    rotation = table(*range(length), size=turning)
    upstream = [normal(batch, heads, length, size, dtype=dtype, seed=seed) for seed in (1, 2)]
    assert_exact(fused(batch, length, heads, size, dtype), upstream, rotation)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions_may_differ_by_sequence(dtype: torch.dtype) -> None:
    places = [[0, 1, 2, 3, 4], [7, 7, 7, 900, 0], [2047, 1, 0, 5, 5]]
    rotation = torch.stack([table(*row, size=8) for row in places], dim=1)[:, :, None]
    upstream = [normal(3, 2, 5, 12, dtype=dtype, seed=seed) for seed in (1, 2)]
    assert_exact(fused(3, 5, 2, 12, dtype), upstream, rotation)
    of_groups = [normal(3, 2, share, 5, 12, dtype=dtype, seed=share) for share in (3, 1)]
    assert_exact(grouped(3, 5, 2, 3, 12, dtype), of_groups, rotation[:, :, :, None])


def assert_exact(inputs: Sequence[Tensor], upstream: Sequence[Tensor], rotation: Tensor) -> None:
    assert_as_exact_as_torch(
        lambda q, k: rotary(q, k, rotation), lambda q, k: reference(q, k, rotation), inputs, upstream
    )


def test_keys_may_have_fewer_heads() -> None:
    inputs, upstream = (
        [normal(2, heads, 6, 8, dtype=torch.float32, seed=seed + heads) for heads in (9, 2)] for seed in (0, 1)
    )
    assert_exact(inputs, upstream, table(*range(6), size=8))


def grouped(batch: int, length: int, groups: int, share: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[B, G, S, T, K] and [B, G, 1, T, K] as they lie in one projection's output [B, T, G * (S + 2) * K]."""
    fused = normal(batch, length, groups * (share + 2) * size, dtype=dtype)
    x = fused.view(batch, length, groups, share + 2, size).permute(0, 2, 3, 1, 4)
    queries, keys, _ = x.split((share, 1, 1), dim=2)
    return queries, keys


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "groups", "share", "length", "size", "turning"),
    [
        (2, 3, 4, 37, 64, 64),  # a program has one group
        (1, 2, 7, 70, 16, 16),  # or parts of two
        (2, 5, 3, 9, 37, 10),  # or one and parts of others
        (2, 4, 2, 5, 8, 6),
        (2, 3, 1, 5, 8, 8),  # as many keys as queries
        (2, 1, 9, 5, 8, 8),  # one key for all
        (1, 2, 2, 0, 8, 8),
    ],
    ids=str,
)
def test_grouped_queries_are_as_exact_as_torchs(
    batch: int, groups: int, share: int, length: int, size: int, turning: int, dtype: torch.dtype
) -> None:
    rotation = table(*range(length), size=turning)
    shapes = (batch, groups, share, length, size), (batch, groups, 1, length, size)
    upstream = [normal(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes, 1)]
    assert_exact(grouped(batch, length, groups, share, size, dtype), upstream, rotation)


def test_grouped_queries_of_any_strides_give_the_same() -> None:
    rotation = table(*range(6), size=8)
    q, k = grouped(2, 6, 3, 4, 12, torch.float32)
    upstream = [normal(*x.shape[:-2], 12, 6, dtype=torch.float32, seed=1).transpose(-1, -2) for x in (q, k)]
    results = []
    for change in (Tensor.detach, Tensor.contiguous):
        leaves = [change(x).detach().requires_grad_() for x in (q, k)]
        outputs = rotary(*leaves, rotation)
        assert all(out.is_contiguous() for out in outputs)
        results.append([*outputs, *torch.autograd.grad(outputs, leaves, [change(x) for x in upstream])])
    for own, contiguous in zip(*results, strict=True):
        assert torch.equal(own, contiguous)


def test_a_table_whose_halves_differ_is_followed() -> None:
    rotation = normal(2, 5, 8, dtype=torch.float32, seed=5)
    upstream = [normal(2, 2, 5, 12, dtype=torch.float32, seed=seed) for seed in (1, 2)]
    assert_exact(fused(2, 5, 2, 12, torch.float32), upstream, rotation)


def test_a_pair_turns_by_position_over_base_to_the_power_of_its_place() -> None:
    # Su et al. 2021, arXiv 2104.09864, equation 34, as complex numbers: x_i e^(i t 10000^(-2 i / R))
    size, length = 16, 50
    q = normal(2, 3, length, size, dtype=torch.float64)
    turned, again = reference(q, q, table(*range(length), size=size).double())
    turns = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * turns
    pairs = torch.complex(q[..., : size // 2].cpu(), q[..., size // 2 :].cpu()) * torch.polar(
        torch.ones_like(angles), angles
    )
    # the table's angles, below 50, and their cosines are of fp32: off by at most 50 2^-24 + 2^-24 in each of two terms
    bound = 2 * 51 * 2**-24 * float(q.abs().max())
    assert torch.equal(turned, again)
    assert float((turned.cpu() - torch.cat([pairs.real, pairs.imag], dim=-1)).abs().max()) <= bound


def test_strides_of_any_kind_give_the_same() -> None:
    rotation = table(*range(6), size=8)
    tables = (rotation.repeat_interleave(2, -1)[..., ::2], torch.cat([rotation, -rotation], -1)[..., :8], rotation)
    wide = normal(2, 3, 6, 24, dtype=torch.bfloat16)
    by_column = normal(2, 3, 12, 6, dtype=torch.bfloat16).transpose(2, 3)
    for number, q in enumerate((wide[..., :12], wide[..., ::2], by_column, wide[:1, :1, :1, :12].expand(2, 3, 6, 12))):
        for got, expected in zip(
            rotary(q, by_column, tables[number % 3]),
            rotary(q.contiguous(), by_column.contiguous(), rotation),
            strict=True,
        ):
            assert torch.equal(got, expected)
            assert got.is_contiguous()


def test_gradients_of_any_strides_give_the_same() -> None:
    rotation = table(*range(6), size=8)
    upstream = normal(2, 3, 12, 6, dtype=torch.float32).transpose(2, 3)
    gradients = []
    for given in (upstream, upstream.contiguous(), upstream.contiguous()[:1, :1, :1].expand(2, 3, 6, 12)):
        q, k = (x.detach().requires_grad_() for x in fused(2, 6, 3, 12, torch.float32))
        gradients.append(torch.autograd.grad(rotary(q, k, rotation), (q, k), (given, given)))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])
    assert torch.equal(gradients[2][0][:, :, 0], gradients[2][1][:, :, 0])


def test_one_of_the_two_may_need_no_gradient() -> None:
    rotation = table(*range(4), size=8)
    q, k = fused(1, 4, 2, 8, torch.float32)
    leaf = q.detach().requires_grad_()
    rotary(leaf, k, rotation)[0].sum().backward()
    both = q.detach().requires_grad_()
    rotary(both, k.detach().requires_grad_(), rotation)[0].sum().backward()
    assert leaf.grad is not None
    assert both.grad is not None
    assert torch.equal(leaf.grad, both.grad)


def test_the_operator_keeps_pytorchs_rules() -> None:
    q, k = (x.detach().requires_grad_() for x in fused(2, 5, 2, 12, torch.float32))
    operation = torch.ops.llm_reference_runs.rotary
    torch.library.opcheck(operation, (q, k, table(*range(5), size=8), False), test_utils=FAST_CHECKS)
    q, k = grouped(2, 5, 2, 3, 12, torch.float32)
    q, k = q.detach().requires_grad_(), k.squeeze(2).detach().requires_grad_()
    torch.library.opcheck(operation, (q, k, table(*range(5), size=8), True))


SIX = torch.ones(1, 2, 4, 6)


def test_other_input_is_refused_in_one_line() -> None:
    assert_refused(
        rotary,
        [
            ((SIX.double(), SIX, torch.ones(2, 4, 6)), {}, "dtype of q"),
            ((SIX, SIX.half(), torch.ones(2, 4, 6)), {}, "dtype of k"),
            ((SIX, SIX.to("meta"), torch.ones(2, 4, 6)), {}, "device of k"),
            ((SIX[0], SIX, torch.ones(2, 4, 6)), {}, "shape of q"),
            ((SIX, SIX[0], torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX, SIX[:, :, :3], torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX, SIX[..., :4], torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX, SIX.expand(3, 2, 4, 6), torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX[:, :, None], SIX, torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX[:, :, None], SIX[:, :1, None], torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX[:, :, None], SIX[:, None], torch.ones(2, 4, 6)), {}, "shape of k"),
            ((SIX[:, :, None], SIX[:, :, None], torch.ones(2, 1, 1, 4, 6)), {}, "shape of rotation"),
            ((torch.ones(1, 1, 1, 1026), torch.ones(1, 1, 1, 1026), torch.ones(2, 1, 6)), {}, "head size"),
            ((SIX, SIX, torch.ones(2, 4, 6).half()), {}, "dtype of rotation"),
            ((SIX, SIX, torch.ones(2, 4, 6).to("meta")), {}, "device of rotation"),
            ((SIX, SIX, torch.ones(2, 4, 6).requires_grad_()), {}, "rotation"),
            ((SIX, SIX, torch.ones(2, 5, 6)), {}, "shape of rotation"),
            ((SIX, SIX, torch.ones(4, 6)), {}, "shape of rotation"),
            ((SIX, SIX, torch.ones(2, 2, 1, 4, 6)), {}, "shape of rotation"),
            ((SIX, SIX, torch.ones(2, 4, 3)), {}, "turned dims"),
            ((SIX, SIX, torch.ones(2, 4, 8)), {}, "turned dims"),
            ((SIX, SIX, torch.ones(2, 4, 0)), {}, "turned dims"),
        ],
    )
