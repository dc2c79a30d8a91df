"""Rotary position embedding of queries and keys, of the whole head or its leading dimensions.

Legend: B sequences, H heads (of queries and of keys), T positions, K head size, R leading dimensions that turn: pairs
(i, i + R / 2). rotation_2TR holds cosines and sines in fp32; [2, B, 1, T, R] where positions differ by sequence.
Grouped queries are [B, G, S, T, K], the S that share each of G keys, and their keys [B, G, 1, T, K]: they lie group by
group in one projection's output, and heads of different groups are further apart than those of one.
Least bytes, b an element, q and k elements, r = R / K: in place 2 r (q + k) b, forward and backward. This kernel writes
new, contiguous tensors [B, H, T, K], 2 (q + k) b: for r = 1 the same, and the matrix product that follows would copy
queries and keys that lie in one projection's output into this form in any case. It takes them, and their gradients,
with any strides, and reads the table once for every HEADS heads.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import launchable, operator, require, require_float, runs_triton
from kernels.tiles import block_of, warps_of

NAME = "rotary"
MOST_HEAD_SIZE = 1024
HEADS = 4  # that a program turns after it has read the table once, 16 bytes for each pair of 2 b


def reference(q_BHTK: Tensor, k_BHTK: Tensor, rotation_2TR: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys with their leading dimensions turned, computed in the wider of their and the table's dtype."""
    return _turned_plainly(q_BHTK, rotation_2TR), _turned_plainly(k_BHTK, rotation_2TR)


def _turned_plainly(x_BHTK: Tensor, rotation_2TR: Tensor) -> Tensor:
    size = rotation_2TR.shape[-1]
    cosine_TR, sine_TR = rotation_2TR.unbind(0)
    turned, passed = x_BHTK[..., :size], x_BHTK[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine_TR + torch.cat([-second, first], dim=-1) * sine_TR
    return torch.cat([turned.to(x_BHTK.dtype), passed], dim=-1)


@triton.jit
def _turn_heads(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    x_ptr,
    y_ptr,
    table_ptr,
    x_batch,
    x_head,
    x_row,
    x_column,
    table_part,
    table_row,
    batch,
    first_row,
    first_head,
    heads,
    T,
    K,
    GROUP: tl.constexpr,
    GROUP_STRIDE: tl.constexpr,
    R: tl.constexpr,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    PASSED: tl.constexpr,
):
    rows = (first_row + tl.arange(0, ROWS)).to(tl.int64)
    pairs = tl.arange(0, PAIRS)
    half: tl.constexpr = R // 2
    turning = (rows < T)[:, None] & (pairs < half)[None, :]
    table = table_ptr + rows[:, None] * table_row + pairs[None, :]
    cosine_first = tl.load(table, mask=turning, other=0.0)
    cosine_second = tl.load(table + half, mask=turning, other=0.0)
    sine_first = tl.load(table + table_part, mask=turning, other=0.0)
    sine_second = tl.load(table + table_part + half, mask=turning, other=0.0)
    if GROUP > 1:
        x_start = (first_head // GROUP).to(tl.int64) * GROUP_STRIDE + (first_head % GROUP).to(tl.int64) * x_head
    else:
        x_start = first_head.to(tl.int64) * x_head
    x_rows = x_ptr + batch * x_batch + x_start + rows[:, None] * x_row
    y_rows = y_ptr + ((batch * heads + first_head) * T + rows[:, None]) * K
    for head in range(first_head, tl.minimum(first_head + HEADS, heads)):
        x = x_rows + pairs[None, :].to(tl.int64) * x_column
        first = tl.load(x, mask=turning, other=0.0).to(tl.float32)
        second = tl.load(x + half * x_column, mask=turning, other=0.0).to(tl.float32)
        if INVERSE:  # the transposed matrix, also where a table differs between the halves
            turned_first = first * cosine_first + second * sine_second
            turned_second = second * cosine_second - first * sine_first
        else:
            turned_first = first * cosine_first - second * sine_first
            turned_second = second * cosine_second + first * sine_second
        tl.store(y_rows + pairs[None, :], turned_first.to(y_ptr.dtype.element_ty), mask=turning)
        tl.store(y_rows + half + pairs[None, :], turned_second.to(y_ptr.dtype.element_ty), mask=turning)
        if PASSED > 0:
            columns = R + tl.arange(0, PASSED)
            passing = (rows < T)[:, None] & (columns < K)[None, :]
            passed = tl.load(x_rows + columns[None, :].to(tl.int64) * x_column, mask=passing)
            tl.store(y_rows + columns[None, :], passed, mask=passing)
        x_rows += x_head
        if GROUP > 1:  # after the last head of a group comes the next group
            x_rows += tl.where((head + 1) % GROUP == 0, GROUP_STRIDE - GROUP * x_head, 0)
        y_rows += T * K


@triton.jit
def _kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    q_ptr,
    k_ptr,
    table_ptr,
    q_out_ptr,
    k_out_ptr,
    q_batch,
    q_head,
    q_row,
    q_column,
    k_batch,
    k_head,
    k_row,
    k_column,
    table_part,
    table_batch,
    table_row,
    q_heads,
    k_heads,
    T,
    K,
    GROUP: tl.constexpr,
    GROUP_STRIDE: tl.constexpr,
    R: tl.constexpr,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    PASSED: tl.constexpr,
):
    q_groups = tl.cdiv(q_heads, HEADS)
    groups = q_groups + tl.cdiv(k_heads, HEADS)
    tiles = tl.cdiv(T, ROWS)
    program = tl.program_id(0)
    group = program % groups
    first_row = program // groups % tiles * ROWS
    batch = (program // groups // tiles).to(tl.int64)
    table_ptr += batch * table_batch
    if group < q_groups:
        _turn_heads(
            q_ptr, q_out_ptr, table_ptr, q_batch, q_head, q_row, q_column, table_part, table_row,
            batch, first_row, group * HEADS, q_heads, T, K, GROUP, GROUP_STRIDE, R, INVERSE, HEADS, ROWS, PAIRS, PASSED,
        )  # fmt: skip
    else:
        _turn_heads(
            k_ptr, k_out_ptr, table_ptr, k_batch, k_head, k_row, k_column, table_part, table_row,
            batch, first_row, (group - q_groups) * HEADS, k_heads, T, K, 1, 0, R, INVERSE, HEADS, ROWS, PAIRS, PASSED,
        )  # fmt: skip


@operator(NAME)
def _turned(q_BHTK: Tensor, k_BHTK: Tensor, rotation: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
    """Queries, which may be [B, G, S, T, K], and keys [B, H, T, K], turned, or turned back."""
    batch, q_heads, length, size = q_BHTK.shape[0], prod(q_BHTK.shape[1:-2]), *q_BHTK.shape[-2:]
    grouped = q_BHTK.dim() == 5
    k_heads, turning = k_BHTK.shape[1], rotation.shape[-1]
    q_out = torch.empty(q_BHTK.shape, dtype=q_BHTK.dtype, device=q_BHTK.device)
    k_out = torch.empty(k_BHTK.shape, dtype=k_BHTK.dtype, device=k_BHTK.device)
    rows = max(1, 4096 // block_of(size))  # 32 of 128: gradients of neighbouring positions coalesce
    programs = batch * triton.cdiv(length, rows) * (triton.cdiv(q_heads, HEADS) + triton.cdiv(k_heads, HEADS))
    if programs:
        launchable(_kernel)[(programs,)](
            q_BHTK,
            k_BHTK,
            rotation,
            q_out,
            k_out,
            q_BHTK.stride(0),
            *q_BHTK.stride()[-3:],
            *k_BHTK.stride(),
            rotation.stride(0),
            rotation.stride(1) if rotation.dim() == 5 else 0,
            rotation.stride(-2),
            q_heads,
            k_heads,
            length,
            size,
            GROUP=q_BHTK.shape[2] if grouped else 1,
            GROUP_STRIDE=q_BHTK.stride(1) if grouped else 0,  # one number a model and sequence length
            R=turning,  # one number a model, whose factors of two are the alignment of what passes
            INVERSE=inverse,
            HEADS=HEADS,
            ROWS=rows,
            PAIRS=block_of(turning // 2),
            PASSED=block_of(size - turning) if size > turning else 0,
            num_warps=warps_of(rows * block_of(size), q_BHTK.device),
        )
    return q_out, k_out


def _keep(ctx: Any, inputs: tuple[Any, ...], **_: object) -> None:
    _, _, rotation, ctx.inverse = inputs
    ctx.save_for_backward(rotation)


def _gradients(ctx: Any, dq_BHTK: Tensor, dk_BHTK: Tensor) -> tuple[Tensor | None, ...]:
    (rotation,) = ctx.saved_tensors
    dq, dk = _turned(dq_BHTK, dk_BHTK, rotation, not ctx.inverse)
    return dq, dk, None, None


_turned.register_autograd(_gradients, setup_context=_keep)


def rotary(q_BHTK: Tensor, k_BHTK: Tensor, rotation_2TR: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys with their leading R dimensions turned, contiguous; dim i < R becomes, with R / 2 = h,

        q[i] cosine[i] - q[i + h] sine[i]        i < h
        q[i] cosine[i] + q[i - h] sine[i]        i >= h

    computed in fp32; the other dimensions pass. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Args:
        q_BHTK, k_BHTK: with grouped queries [B, G, S, T, K] and [B, G, 1, T, K].
        rotation_2TR: cosines and sines, fp32 without a gradient; or [2, B, 1, T, R], of grouped queries
            [2, B, 1, 1, T, R].

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require_float(NAME, q=q_BHTK, k=k_BHTK)
    require(k_BHTK.dtype == q_BHTK.dtype, NAME, "dtype of k", f"q's, {q_BHTK.dtype}", k_BHTK.dtype)
    shape, of_keys = tuple(q_BHTK.shape), tuple(k_BHTK.shape)
    require(len(shape) in (4, 5), NAME, "shape of q", "[B, H, T, K] or [B, G, S, T, K]", shape)
    (batch, groups), (length, size) = shape[:2], shape[-2:]
    keys = (groups, 1) if len(shape) == 5 else of_keys[1:2]  # as many as there are, where they are not grouped
    allowed = (batch, *keys, length, size)
    require(of_keys == allowed, NAME, "shape of k", str(allowed), of_keys)
    require(1 <= size <= MOST_HEAD_SIZE, NAME, "head size", f"1 to {MOST_HEAD_SIZE}", size)
    require(rotation_2TR.dtype == torch.float32, NAME, "dtype of rotation", "float32", rotation_2TR.dtype)
    device = q_BHTK.device
    require(rotation_2TR.device == device, NAME, "device of rotation", f"q's, {device}", rotation_2TR.device)
    require(not rotation_2TR.requires_grad, NAME, "rotation", "no gradient", "requires_grad")
    by_sequence = (2, batch, *(1,) * (len(shape) - 3), length)
    *leading, turning = tuple(rotation_2TR.shape) or (0,)
    allowed_tables = f"[2, {length}, R] or [{', '.join(map(str, by_sequence))}, R]"
    got = tuple(rotation_2TR.shape)
    require(tuple(leading) in ((2, length), by_sequence), NAME, "shape of rotation", allowed_tables, got)
    require(2 <= turning <= size and turning % 2 == 0, NAME, "turned dims", f"even, 2 to {size}", turning)
    if not runs_triton(q_BHTK):
        return reference(q_BHTK, k_BHTK, rotation_2TR)
    rotation = rotation_2TR if rotation_2TR.stride(-1) == 1 else rotation_2TR.contiguous()
    if len(shape) == 4:
        q, k = _turned(q_BHTK, k_BHTK, rotation, False)
        return q, k
    if rotation.dim() == 6:
        rotation = rotation.squeeze(2)
    q, k = _turned(q_BHTK.squeeze(2) if shape[2] == 1 else q_BHTK, k_BHTK.squeeze(2), rotation, False)
    return q.view(shape), k.view(of_keys)
