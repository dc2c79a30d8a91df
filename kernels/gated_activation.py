"""The kernels of GeGLU and SwiGLU, y = act(gate) * gated of an interleaved expansion with its bias in one pass.

The expansion is [F, 2], gate and gated unit by unit: neighbours in memory. act(x) = x p(x) has the derivative
p(x) + x p'(x): of GELU p is the distribution function of standard normal numbers, of SiLU the sigmoid.

Legend: M rows, F units; x_MP the expansion, P = 2 F, dy_MF the gradient of the output, R rows and one block of units
that a program holds at once: a row may have any length.
Least bytes, b an element: forward 3 M F b; backward 5 M F b and the partial sums of the bias' gradient. The backward
pass recomputes the activation from x.
Source: Shazeer 2020, arXiv 2002.05202.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import contiguous, launchable, operator, require, require_vectors
from kernels.special_functions import GELU, GELU_TANH, SILU, fraction
from kernels.tiles import programs_over_tiles, rows_of, stages_of, tile_of, warps_of

NAME = "gated_activation"
Gate = Literal["gelu", "gelu_tanh", "silu"]
_GATES = {"gelu": GELU.value, "gelu_tanh": GELU_TANH.value, "silu": SILU.value}
MOST_UNITS_AT_ONCE = 1024  # of a program: with 8 warps 4 pairs a thread, which it reads at once and need not exchange


@triton.jit
def _forward_kernel(
    x_ptr,
    bias_ptr,
    y_ptr,
    x_row,
    M,
    F,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    EXACT: tl.constexpr = (x_ptr.dtype.element_ty == tl.float32) or (bias_ptr.dtype.element_ty == tl.float32)
    blocks = tl.cdiv(F, BLOCK)
    rows = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) % blocks * BLOCK
    pairs = 2 * unit + tl.arange(0, 2 * BLOCK)
    inside = (rows < M)[:, None] & (pairs < 2 * F)[None, :]
    x = tl.load(x_ptr + rows[:, None] * x_row + pairs[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias_ptr + pairs, mask=pairs < 2 * F, other=0.0).to(tl.float32)[None, :]
    gate, gated = tl.split(tl.reshape(x, (ROWS, BLOCK, 2)))
    part, _ = fraction(gate, ACTIVATION, EXACT)
    y = gate * part * gated
    units = unit + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (units < F)[None, :]
    tl.store(y_ptr + rows[:, None] * F + units[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(  # noqa: PLR0913  # pointers, strides and sizes of one launch
    dy_ptr,
    x_ptr,
    bias_ptr,
    dx_ptr,
    sums_ptr,
    dy_row,
    x_row,
    M,
    F,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    EXACT: tl.constexpr = (x_ptr.dtype.element_ty == tl.float32) or (bias_ptr.dtype.element_ty == tl.float32)
    blocks = tl.cdiv(F, BLOCK)
    program = tl.program_id(0) // blocks
    programs = tl.num_programs(0) // blocks
    unit = tl.program_id(0) % blocks * BLOCK
    units = unit + tl.arange(0, BLOCK)
    pairs = 2 * unit + tl.arange(0, 2 * BLOCK)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + pairs, mask=pairs < 2 * F, other=0.0).to(tl.float32)
        gate_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        gated_sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for first in tl.range(program * ROWS, M, programs * ROWS, num_stages=STAGES):
        rows = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows < M)[:, None] & (pairs < 2 * F)[None, :]
        x = tl.load(x_ptr + rows[:, None] * x_row + pairs[None, :], mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            x += bias[None, :]
        gate, gated = tl.split(tl.reshape(x, (ROWS, BLOCK, 2)))
        inside_y = (rows < M)[:, None] & (units < F)[None, :]
        dy = tl.load(dy_ptr + rows[:, None] * dy_row + units[None, :], mask=inside_y, other=0.0).to(tl.float32)
        part, slope = fraction(gate, ACTIVATION, EXACT)
        dgate = dy * gated * (part + gate * slope)
        dgated = dy * (gate * part)
        dx = tl.reshape(tl.join(dgate, dgated), (ROWS, 2 * BLOCK))
        tl.store(dx_ptr + rows[:, None] * 2 * F + pairs[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if HAS_BIAS:
            gate_sums += dgate
            gated_sums += dgated
    if HAS_BIAS:
        sums = tl.reshape(tl.join(tl.sum(gate_sums, axis=0), tl.sum(gated_sums, axis=0)), (2 * BLOCK,))
        tl.store(sums_ptr + program * 2 * F + pairs, sums, mask=pairs < 2 * F)


@operator(NAME)
def _forward(x_MP: Tensor, bias_P: Tensor | None, gate: str) -> Tensor:
    rows, units = x_MP.shape[0], x_MP.shape[1] // 2
    y = torch.empty((rows, units), dtype=x_MP.dtype, device=x_MP.device)
    if rows:
        at_once, block, blocks = tile_of(units, MOST_UNITS_AT_ONCE)
        launchable(_forward_kernel)[(triton.cdiv(rows, at_once) * blocks,)](
            x_MP,
            x_MP if bias_P is None else bias_P,
            y,
            x_MP.stride(0),
            rows,
            units,
            HAS_BIAS=bias_P is not None,
            ACTIVATION=_GATES[gate],
            ROWS=at_once,
            BLOCK=block,
            num_warps=warps_of(2 * at_once * block, x_MP.device),
        )
    return y


@operator(f"{NAME}_backward")
def _backward(dy_MF: Tensor, x_MP: Tensor, bias_P: Tensor | None, gate: str) -> tuple[Tensor, Tensor]:
    """Gradients of x and bias (empty without one)."""
    rows, units = dy_MF.shape
    dx = torch.empty((rows, 2 * units), dtype=x_MP.dtype, device=x_MP.device)
    at_once, block, blocks = tile_of(units, MOST_UNITS_AT_ONCE, values=2)
    programs = programs_over_tiles(rows, at_once, 2 * block, blocks, x_MP.device)
    sums = torch.empty((0 if bias_P is None else programs, 2 * units), dtype=torch.float32, device=x_MP.device)
    launchable(_backward_kernel)[(programs * blocks,)](
        dy_MF,
        x_MP,
        x_MP if bias_P is None else bias_P,
        dx,
        sums,
        dy_MF.stride(0),
        x_MP.stride(0),
        rows,
        units,
        HAS_BIAS=bias_P is not None,
        ACTIVATION=_GATES[gate],
        STAGES=stages_of(at_once * block * x_MP.element_size() * 3),
        ROWS=at_once,
        BLOCK=block,
        num_warps=warps_of(4 * at_once * block, x_MP.device),
    )
    return dx, x_MP.new_empty(0) if bias_P is None else sums.sum(0).to(bias_P.dtype)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor | None, str], **_: Tensor) -> None:
    x_MP, bias_P, ctx.gate = inputs
    ctx.save_for_backward(x_MP, bias_P)


def _gradients(ctx: Any, dy_MF: Tensor) -> tuple[Tensor | None, ...]:
    x_MP, bias_P = ctx.saved_tensors
    dx, dbias = _backward(rows_of(dy_MF), x_MP, bias_P, ctx.gate)
    return dx, None if bias_P is None else dbias, None


_forward.register_autograd(_gradients, setup_context=_keep)


def require_pairs(kernel: str, x: Tensor, bias: Tensor | None) -> None:
    """Nothing where x [..., 2 F] and its bias [2 F] are an expansion that the kernels take.

    Raises:
        UnsupportedInputError: their dtype, device or shape is another.
    """
    columns = require_vectors(kernel, x, bias=bias)
    require(columns >= 2 and columns % 2 == 0, kernel, "columns", "2, 4, 6, ...", columns)


def gated(x: Tensor, bias: Tensor | None, gate: Gate) -> Tensor:
    """act(gate) * gated [..., F] of the expansion x [..., 2 F], whose last dim is [F, 2], plus its bias [2 F]."""
    y: Tensor = _forward(rows_of(x), contiguous(bias), gate)
    return y.view(*x.shape[:-1], x.shape[-1] // 2)
