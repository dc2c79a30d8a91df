"""The two LayerNorms of a parallel residual from one read of their input, forward and backward.

y1 and y2 are LayerNorm(x) with weights and biases of their own; mean and 1 / deviation are common to both.

Legend: M rows, N columns; x_MN the input, dy1_MN and dy2_MN the gradients of the outputs, R rows that a program holds
at once.
Least bytes, b an element: forward 3 M N b; backward 4 M N b and the partial sums of the four weights' gradients. Two
LayerNorms and the sum of their gradients move 4 M N b and 9 M N b.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import (
    block_of,
    launchable,
    operator,
    programs_over_tiles,
    require,
    require_columns,
    require_float,
    rows_at_once,
    rows_of,
    runs_triton,
    stages_of,
    warps_of,
)

NAME = "parallel_layer_norms"
# Columns whose four sums one program of the backward pass holds: with 16 warps 94 to 122 registers a thread; twice as
# many 128 and 72 to 192 bytes next to them (compiled for sm_90 by Triton 3.6.0 and 3.7.1, 2026-11-22).
MOST_SUMMED = 4096


def reference(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Two LayerNorms in the arithmetic of x's dtype: (x - mean) / sqrt(variance + eps) * weight + bias, last dim N."""
    centred = x - x.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y1, y2 = normal * weight1, normal * weight2
    return y1 if bias1 is None else y1 + bias1, y2 if bias2 is None else y2 + bias2


@triton.jit
def _wide(pointers, inside):
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _forward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    x_ptr,
    weight1_ptr,
    bias1_ptr,
    weight2_ptr,
    bias2_ptr,
    y1_ptr,
    y2_ptr,
    mean_ptr,
    rstd_ptr,
    x_row,
    M,
    N,
    eps,
    HAS_BIASES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    x = _wide(x_ptr + rows[:, None] * x_row + columns[None, :], inside)
    mean = tl.sum(x, axis=1) / N
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / N + eps)
    normal = centred * rstd[:, None]
    y1 = normal * _wide(weight1_ptr + columns, columns < N)[None, :]
    y2 = normal * _wide(weight2_ptr + columns, columns < N)[None, :]
    if HAS_BIASES:
        y1 += _wide(bias1_ptr + columns, columns < N)[None, :]
        y2 += _wide(bias2_ptr + columns, columns < N)[None, :]
    place = rows[:, None] * N + columns[None, :]
    tl.store(y1_ptr + place, y1.to(y1_ptr.dtype.element_ty), mask=inside)
    tl.store(y2_ptr + place, y2.to(y2_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + rows, mean, mask=rows < M)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # long: one Triton program, its pointers and strides
    dy1_ptr,
    dy2_ptr,
    x_ptr,
    weight1_ptr,
    weight2_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    sums_ptr,
    dy1_row,
    dy2_row,
    x_row,
    M,
    N,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Where a row is longer than a block, neighbouring programs share it: each reads it whole for the two means, all but
    # one of them from the L2 cache, and has the sums and the gradient of one block of columns.
    program = tl.program_id(0) // PARTS
    programs = tl.num_programs(0) // PARTS
    columns = tl.program_id(0) % PARTS * BLOCK + tl.arange(0, BLOCK)
    weight1_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    bias1_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    weight2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    bias2_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(program * ROWS, M, programs * ROWS, num_stages=STAGES if PARTS == 1 else 1):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        mean = tl.load(mean_ptr + rows, mask=rows < M, other=0.0)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        if PARTS > 1:
            along_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
            level_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
            for start in tl.range(0, N, BLOCK, num_stages=STAGES):
                others = start + tl.arange(0, BLOCK)
                inside = (rows < M)[:, None] & (others < N)[None, :]
                x = _wide(x_ptr + rows[:, None] * x_row + others[None, :], inside)
                dy1 = _wide(dy1_ptr + rows[:, None] * dy1_row + others[None, :], inside)
                dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + others[None, :], inside)
                scaled = dy1 * _wide(weight1_ptr + others, others < N)[None, :]
                scaled += dy2 * _wide(weight2_ptr + others, others < N)[None, :]
                along_sums += scaled * ((x - mean[:, None]) * rstd[:, None])
                level_sums += scaled
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        x = _wide(x_ptr + rows[:, None] * x_row + columns[None, :], inside)
        dy1 = _wide(dy1_ptr + rows[:, None] * dy1_row + columns[None, :], inside)
        dy2 = _wide(dy2_ptr + rows[:, None] * dy2_row + columns[None, :], inside)
        normal = (x - mean[:, None]) * rstd[:, None]
        scaled = dy1 * _wide(weight1_ptr + columns, columns < N)[None, :]
        scaled += dy2 * _wide(weight2_ptr + columns, columns < N)[None, :]
        if PARTS == 1:
            along_sums = scaled * normal
            level_sums = scaled
        along = tl.sum(along_sums, axis=1) / N
        level = tl.sum(level_sums, axis=1) / N
        dx = (scaled - normal * along[:, None] - level[:, None]) * rstd[:, None]
        tl.store(dx_ptr + rows[:, None] * N + columns[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
        weight1_sums += dy1 * normal
        bias1_sums += dy1
        weight2_sums += dy2 * normal
        bias2_sums += dy2
    place = program * 4 * N + columns
    tl.store(sums_ptr + place, tl.sum(weight1_sums, axis=0), mask=columns < N)
    tl.store(sums_ptr + place + N, tl.sum(bias1_sums, axis=0), mask=columns < N)
    tl.store(sums_ptr + place + 2 * N, tl.sum(weight2_sums, axis=0), mask=columns < N)
    tl.store(sums_ptr + place + 3 * N, tl.sum(bias2_sums, axis=0), mask=columns < N)


@operator(NAME)
def _forward(
    x_MN: Tensor, weight1_N: Tensor, bias1_N: Tensor | None, weight2_N: Tensor, bias2_N: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x_MN.shape
    y1 = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    y2 = torch.empty_like(y1)
    mean = torch.empty(rows, dtype=torch.float32, device=x_MN.device)
    rstd = torch.empty_like(mean)
    if rows:
        block = block_of(columns)
        at_once = rows_at_once(block)
        launchable(_forward_kernel)[(triton.cdiv(rows, at_once),)](
            x_MN,
            weight1_N,
            weight1_N if bias1_N is None else bias1_N,
            weight2_N,
            weight2_N if bias2_N is None else bias2_N,
            y1,
            y2,
            mean,
            rstd,
            x_MN.stride(0),
            rows,
            columns,
            eps,
            HAS_BIASES=bias1_N is not None,
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(at_once * block),
        )
    return y1, y2, mean, rstd


@operator(f"{NAME}_backward")
def _backward(
    dy1_MN: Tensor, dy2_MN: Tensor, x_MN: Tensor, weight1_N: Tensor, weight2_N: Tensor, mean_M: Tensor, rstd_M: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight1, bias1, weight2 and bias2."""
    rows, columns = x_MN.shape
    dx = torch.empty((rows, columns), dtype=x_MN.dtype, device=x_MN.device)
    block = min(block_of(columns), MOST_SUMMED)
    parts = triton.cdiv(columns, block)
    at_once = rows_at_once(block)
    programs = programs_over_tiles(rows, at_once, 2 * block, parts, x_MN.device)  # twice the usual sums
    sums = torch.empty((programs, 4, columns), dtype=torch.float32, device=x_MN.device)
    launchable(_backward_kernel)[(programs * parts,)](
        dy1_MN,
        dy2_MN,
        x_MN,
        weight1_N,
        weight2_N,
        mean_M,
        rstd_M,
        dx,
        sums,
        dy1_MN.stride(0),
        dy2_MN.stride(0),
        x_MN.stride(0),
        rows,
        columns,
        PARTS=parts,
        STAGES=stages_of(at_once * block * x_MN.element_size() * 3),
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(2 * at_once * block),
    )
    dtypes = (weight1_N.dtype, weight1_N.dtype, weight2_N.dtype, weight2_N.dtype)
    dweight1, dbias1, dweight2, dbias2 = (sums[:, n].sum(0).to(dtype) for n, dtype in enumerate(dtypes))
    return dx, dweight1, dbias1, dweight2, dbias2


@_forward.register_fake
def _forward_shapes(x_MN: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y1_MN, y2_MN = (x_MN.new_empty(x_MN.shape) for _ in range(2))
    mean_M, rstd_M = (x_MN.new_empty(x_MN.shape[0], dtype=torch.float32) for _ in range(2))
    return y1_MN, y2_MN, mean_M, rstd_M


@_backward.register_fake
def _backward_shapes(
    _: Tensor, __: Tensor, x_MN: Tensor, weight1_N: Tensor, weight2_N: Tensor, *___: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dweight1, dbias1, dweight2, dbias2 = (torch.empty_like(t) for t in (weight1_N, weight1_N, weight2_N, weight2_N))
    return x_MN.new_empty(x_MN.shape), dweight1, dbias1, dweight2, dbias2


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x_MN, weight1_N, bias1_N, weight2_N, _, _ = inputs
    ctx.has_biases = bias1_N is not None
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.save_for_backward(x_MN, weight1_N, weight2_N, output[2], output[3])


def _gradients(ctx: Any, dy1_MN: Tensor, dy2_MN: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dx, dweight1, dbias1, dweight2, dbias2 = _backward(rows_of(dy1_MN), rows_of(dy2_MN), *ctx.saved_tensors)
    if not ctx.has_biases:
        return dx, dweight1, None, dweight2, None, None
    return dx, dweight1, dbias1, dweight2, dbias2, None


_forward.register_autograd(_gradients, setup_context=_keep)


def parallel_layer_norms(
    x: Tensor, weight1: Tensor, bias1: Tensor | None, weight2: Tensor, bias2: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Two LayerNorms over the last dim of x [..., N], each with a weight and a bias [N], or both without bias.

    Mean and 1 / deviation are kept in fp32. The kernel on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    vectors = {"weight1": weight1, "bias1": bias1, "weight2": weight2, "bias2": bias2}
    given = {name: tensor for name, tensor in vectors.items() if tensor is not None}
    require_float(NAME, x=x, **given)
    require(x.dim() >= 1, NAME, "dims of x", "1 or more", x.dim())
    columns = x.shape[-1]
    require_columns(NAME, columns)
    for name, tensor in given.items():
        require(tensor.shape == (columns,), NAME, f"shape of {name}", f"({columns},)", tuple(tensor.shape))
    require((bias1 is None) == (bias2 is None), NAME, "biases", "both or none", "one")
    if not runs_triton(x):
        return reference(x, weight1, bias1, weight2, bias2, eps)
    bias1, bias2 = (None if bias is None else bias.contiguous() for bias in (bias1, bias2))
    y1, y2, _, _ = _forward(rows_of(x), weight1.contiguous(), bias1, weight2.contiguous(), bias2, eps)
    return y1.view(x.shape), y2.view(x.shape)
