"""Softmax of scaled and masked attention scores over the positions attended to, forward and backward.

Legend: B sequences, H heads, T positions, S positions attended to; scores_BHTS before scaling, weights_BHTS after the
softmax. A mask is given as what it is made of, so that no [T, S] tensor is read: causal, with or without a prefix that
attends to all of itself; the positions that see each one; ALiBi's slopes. Or as what it adds to the scaled scores.
Least bytes, b an element: forward 2 B H T S b, backward 3 B H T S b. A causal mask halves what is read, not what is
written, for the product that follows reads the zeros: forward 1.5 B H T S b, backward 2 B H T S b.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import contiguous, launchable, operator, require, require_float, runs_triton
from kernels.special_functions import exp
from kernels.tiles import require_columns, tile_of, warps_of

NAME = "masked_softmax"
LAPS = 8  # of a program whose mask is a vector over the columns, 16 bytes each: it is read once for so many rows


def reference(
    scores_BHTS: Tensor,
    scale: float,
    *,
    causal: bool = False,
    prefix_B: Tensor | None = None,
    slopes_H: Tensor | None = None,
    seen_B2S: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale scores - slope (t - s) + bias) over the s that t attends to, in fp32 or wider: masked_softmax's."""
    dtype = scores_BHTS.dtype
    wide = scores_BHTS if dtype == torch.float64 else scores_BHTS.float()
    length, seen_length = scores_BHTS.shape[-2:]
    place_T1 = torch.arange(length, device=scores_BHTS.device)[:, None]
    place_S = torch.arange(seen_length, device=scores_BHTS.device)
    hidden = torch.zeros(1, 1, length, seen_length, dtype=torch.bool, device=scores_BHTS.device)
    x_BHTS = wide * scale
    if slopes_H is not None:
        x_BHTS = x_BHTS - slopes_H.to(wide.dtype)[:, None, None] * (place_T1 - place_S)
    if bias is not None:
        x_BHTS = x_BHTS + bias
    if causal:
        hidden = hidden | (place_S > place_T1)
    if prefix_B is not None:
        hidden = hidden & (place_S >= prefix_B[:, None, None, None])
    if seen_B2S is not None:
        first_B11S, end_B11S = (edge[:, None, None] for edge in seen_B2S.unbind(1))
        hidden = hidden | (place_T1 < first_B11S) | (place_T1 >= end_B11S)
    return torch.softmax(x_BHTS.masked_fill(hidden, float("-inf")), dim=-1).to(dtype)


@triton.jit
def _reach(prefix_ptr, rows, batch, S, CAUSAL: tl.constexpr, HAS_PREFIX: tl.constexpr):
    """For each row the columns before which lies all that it attends to."""
    reach = rows + 1
    if not CAUSAL:
        reach = rows * 0 + S
    if HAS_PREFIX:
        reach = tl.maximum(reach, tl.load(prefix_ptr + batch).to(tl.int32))
    return reach


@triton.jit
def _fetched(reach, rows, columns, T, S):
    """Columns to read of the rows: to their reach, and on to a multiple of 16, for loads of 16 bytes."""
    end = (reach + 15) // 16 * 16
    return ((rows < T)[:, None] & (columns < S)[None, :]) & (columns[None, :] < end[:, None])


@triton.jit
def _forward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    scores_ptr,
    prefix_ptr,
    slopes_ptr,
    seen_ptr,
    bias_ptr,
    weights_ptr,
    scores_batch,
    scores_head,
    scores_row,
    bias_batch,
    bias_head,
    bias_row,
    scale,
    H,
    T,
    S,
    CAUSAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_SEEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LAPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    scale = tl.cast(scale, tl.float32)  # torch.compile hands Python's numbers over in fp64
    programs = tl.cdiv(T, ROWS * LAPS)
    start = tl.program_id(0) % programs * (ROWS * LAPS)
    place = (tl.program_id(0) // programs).to(tl.int64)
    batch = place // H
    head = place % H
    columns = tl.arange(0, BLOCK)
    scores_ptr += batch * scores_batch + head * scores_head
    weights_ptr += place * T * S
    bias_ptr += batch * bias_batch + head * bias_head
    if HAS_SLOPES:
        slope = tl.load(slopes_ptr + head)
    if HAS_SEEN:
        edges = seen_ptr + batch * 2 * S + columns
        seen_from = tl.load(edges, mask=columns < S, other=0).to(tl.int32)
        seen_until = tl.load(edges + S, mask=columns < S, other=0).to(tl.int32)
    for first in range(start, tl.minimum(start + ROWS * LAPS, T), ROWS):
        rows = first + tl.arange(0, ROWS)
        wide_rows = rows[:, None].to(tl.int64)
        reach = _reach(prefix_ptr, rows, batch, S, CAUSAL, HAS_PREFIX)
        fetched = _fetched(reach, rows, columns, T, S)
        inside = fetched & (columns[None, :] < reach[:, None])
        if HAS_SEEN:
            inside = inside & (seen_from[None, :] <= rows[:, None]) & (rows[:, None] < seen_until[None, :])
        x = tl.load(scores_ptr + wide_rows * scores_row + columns[None, :], mask=fetched, other=0.0).to(tl.float32)
        x = x * scale
        if HAS_SLOPES:
            x -= slope * (rows[:, None] - columns[None, :]).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias_ptr + wide_rows * bias_row + columns[None, :], mask=fetched, other=0.0)
        x = tl.where(inside, x, float("-inf"))
        top = tl.max(x, axis=1)
        top = tl.where(top == float("-inf"), 0.0, top)
        x = exp(x - top[:, None])
        total = tl.sum(x, axis=1)
        # a row that attends to nothing has no softmax: not a number, as PyTorch's
        share = tl.where(total == 0.0, float("nan"), 1.0 / tl.where(total == 0.0, 1.0, total))
        weights = (x * share[:, None]).to(weights_ptr.dtype.element_ty)
        stored = (rows < T)[:, None] & (columns < S)[None, :]
        tl.store(weights_ptr + wide_rows * S + columns[None, :], weights, mask=stored)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    upstream_ptr,
    weights_ptr,
    prefix_ptr,
    gradient_ptr,
    upstream_batch,
    upstream_head,
    upstream_row,
    scale,
    H,
    T,
    S,
    CAUSAL: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    scale = tl.cast(scale, tl.float32)
    programs = tl.cdiv(T, ROWS)
    rows = tl.program_id(0) % programs * ROWS + tl.arange(0, ROWS)
    place = (tl.program_id(0) // programs).to(tl.int64)
    batch = place // H
    columns = tl.arange(0, BLOCK)
    upstream_ptr += batch * upstream_batch + place % H * upstream_head
    own = place * T * S + rows[:, None].to(tl.int64) * S + columns[None, :]
    reach = _reach(prefix_ptr, rows, batch, S, CAUSAL, HAS_PREFIX)
    fetched = _fetched(reach, rows, columns, T, S)
    others = rows[:, None].to(tl.int64) * upstream_row + columns[None, :]
    upstream = tl.load(upstream_ptr + others, mask=fetched, other=0.0).to(tl.float32)
    upstream = tl.where(columns[None, :] < reach[:, None], upstream, 0.0)
    weights = tl.load(weights_ptr + own, mask=fetched, other=0.0).to(tl.float32)
    along = tl.sum(upstream * weights, axis=1)
    gradient = weights * (upstream - along[:, None]) * scale
    stored = (rows < T)[:, None] & (columns < S)[None, :]
    tl.store(gradient_ptr + own, gradient.to(gradient_ptr.dtype.element_ty), mask=stored)


@operator(NAME)
def _forward(
    scores_BHTS: Tensor,
    scale: float,
    causal: bool,
    prefix_B: Tensor | None,
    slopes_H: Tensor | None,
    seen_B2S: Tensor | None,
    bias_BHTS: Tensor | None,
) -> Tensor:
    batch, heads, length, columns = scores_BHTS.shape
    weights = torch.empty(scores_BHTS.shape, dtype=scores_BHTS.dtype, device=scores_BHTS.device)
    at_once, block, _ = tile_of(columns, values=2)
    laps = 1 if seen_B2S is None else LAPS
    programs = batch * heads * triton.cdiv(length, at_once * laps)
    if programs:
        launchable(_forward_kernel)[(programs,)](
            scores_BHTS,
            scores_BHTS if prefix_B is None else prefix_B,
            scores_BHTS if slopes_H is None else slopes_H,
            scores_BHTS if seen_B2S is None else seen_B2S,
            scores_BHTS if bias_BHTS is None else bias_BHTS,
            weights,
            *scores_BHTS.stride()[:3],
            *((0, 0, 0) if bias_BHTS is None else bias_BHTS.stride()[:3]),
            scale,
            heads,
            length,
            columns,
            CAUSAL=causal,
            HAS_PREFIX=prefix_B is not None,
            HAS_SLOPES=slopes_H is not None,
            HAS_SEEN=seen_B2S is not None,
            HAS_BIAS=bias_BHTS is not None,
            LAPS=laps,
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block // 2, scores_BHTS.device),
        )
    return weights


@operator(f"{NAME}_backward")
def _backward(
    upstream_BHTS: Tensor, weights_BHTS: Tensor, scale: float, causal: bool, prefix_B: Tensor | None
) -> Tensor:
    batch, heads, length, columns = weights_BHTS.shape
    gradient = torch.empty(weights_BHTS.shape, dtype=weights_BHTS.dtype, device=weights_BHTS.device)
    at_once, block, _ = tile_of(columns)
    programs = batch * heads * triton.cdiv(length, at_once)
    if programs:
        launchable(_backward_kernel)[(programs,)](
            upstream_BHTS,
            weights_BHTS,
            weights_BHTS if prefix_B is None else prefix_B,
            gradient,
            *upstream_BHTS.stride()[:3],
            scale,
            heads,
            length,
            columns,
            CAUSAL=causal,
            HAS_PREFIX=prefix_B is not None,
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block, weights_BHTS.device),
        )
    return gradient


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.scale, ctx.causal, prefix_B, *_ = inputs
    ctx.save_for_backward(output, prefix_B)


def _gradients(ctx: Any, upstream_BHTS: Tensor) -> tuple[Tensor | None, ...]:
    weights_BHTS, prefix_B = ctx.saved_tensors
    gradient = _backward(_with_columns_together(upstream_BHTS), weights_BHTS, ctx.scale, ctx.causal, prefix_B)
    return gradient, None, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)


def _with_columns_together(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_mask(
    name: str, mask: Tensor | None, device: torch.device, dtypes: tuple[torch.dtype, ...], shapes: list[tuple[int, ...]]
) -> None:
    if mask is None:
        return
    words = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    require(mask.dtype in dtypes, NAME, f"dtype of {name}", words, mask.dtype)
    require(mask.device == device, NAME, f"device of {name}", f"scores', {device}", mask.device)
    require(mask.shape in shapes, NAME, f"shape of {name}", f"{shapes[0]} to {shapes[-1]}", tuple(mask.shape))
    require(not mask.requires_grad, NAME, name, "no gradient", "requires_grad")


def masked_softmax(
    scores_BHTS: Tensor,
    scale: float,
    *,
    causal: bool = False,
    prefix_B: Tensor | None = None,
    slopes_H: Tensor | None = None,
    seen_B2S: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention weights of each position for each other, in the scores' dtype, computed in fp32:

        softmax over the s that t attends to of scale scores[t, s] - slope (t - s) + bias[t, s]

    and 0 for the other s; not a number where t attends to none, as PyTorch's softmax. The backward pass computes from
    these weights, rounded as they are. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Args:
        causal: t attends to s <= t; T is S.
        prefix_B: with `causal`, positions of each sequence that all t attend to, integers.
        slopes_H: ALiBi's, fp32.
        seen_B2S: t attends to s where seen[0, s] <= t < seen[1, s], integers.
        bias: [1 or H, T, S] or [1 or B, 1 or H, T, S], fp32; -inf where t does not attend to s.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take, or a mask that needs a gradient.
    """
    require_float(NAME, scores=scores_BHTS)
    require(scores_BHTS.dim() == 4, NAME, "shape of scores", "[B, H, T, S]", tuple(scores_BHTS.shape))
    batch, heads, length, columns = scores_BHTS.shape
    require_columns(NAME, columns)
    require(not causal or length == columns, NAME, "positions of a causal mask", f"as many, {columns}", length)
    require(causal or prefix_B is None, NAME, "prefix", "with a causal mask", "without")
    if bias is not None and bias.dim() == 3:
        bias = bias[None]
    integers, floats, device = (torch.int32, torch.int64), (torch.float32,), scores_BHTS.device
    _check_mask("prefix", prefix_B, device, integers, [(batch,)])
    _check_mask("slopes", slopes_H, device, floats, [(heads,)])
    _check_mask("seen", seen_B2S, device, integers, [(batch, 2, columns)])
    _check_mask("bias", bias, device, floats, [(b, h, length, columns) for b in (1, batch) for h in (1, heads)])
    if not runs_triton(scores_BHTS):
        return reference(
            scores_BHTS, scale, causal=causal, prefix_B=prefix_B, slopes_H=slopes_H, seen_B2S=seen_B2S, bias=bias
        )
    weights: Tensor = _forward(
        _with_columns_together(scores_BHTS),
        scale,
        causal,
        contiguous(prefix_B),
        contiguous(slopes_H),
        contiguous(seen_B2S),
        None if bias is None else _with_columns_together(bias).expand(batch, heads, -1, -1),
    )
    return weights
