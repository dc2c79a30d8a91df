"""Norm of all gradients together: the square root of the sum of squares over many tensors, in two passes.

Legend: N elements of all tensors, P programs. Each adds up the squares of neighbouring chunks in fp32, then one program
adds up their P sums: always in the same order, so that equal gradients have equal norms on one kind of device.
Least bytes, b an element: forward N b. There is no backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import operator, require, require_float, runs_triton
from kernels.tensor_table import CHUNK, EACH, address_in_role, require_one_memory, tensor_of_chunk, tensor_table
from kernels.tiles import programs_over_rows, warps_of

NAME = "gradient_norm"
SUMS = 1024  # partial sums that the second pass holds at once


def reference(gradients: Sequence[Tensor]) -> Tensor:
    """Square root of the sum of all squares, in fp32 at least, or in the gradients' wider dtype."""
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    return torch.stack([gradient.to(dtype).square().sum() for gradient in gradients]).sum().sqrt()


@triton.jit
def _squares_kernel(
    gradient_ptr,
    table_ptr,
    sums_ptr,
    tensors,
    elements,
    chunks,
    MANY: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    begin = program * chunks // tl.num_programs(0)
    end = (program + 1) * chunks // tl.num_programs(0)
    place = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    if MANY:
        column = tensor_of_chunk(table_ptr, tensors, begin)
        while begin < end:
            first = tl.load(table_ptr + column)
            own = tl.load(table_ptr + tensors + column)
            pointer = address_in_role(table_ptr, tensors, column, 0, gradient_ptr, ALIGNED)
            last = tl.minimum(end, first + tl.cdiv(own, BLOCK))
            sums = _with_squares(sums, pointer, begin - first, last - first, own, place, BLOCK)
            begin = last
            column += 1
    else:
        sums = _with_squares(sums, gradient_ptr, begin, end, elements, place, BLOCK)
    tl.store(sums_ptr + program, tl.sum(sums, axis=0))


@triton.jit
def _with_squares(sums, pointer, begin, end, elements, place, BLOCK: tl.constexpr):
    """The sums, and in them the squares of chunks `begin` to `end` of one tensor: whole ones need no mask."""
    whole = tl.minimum(end, elements // BLOCK)
    for chunk in range(begin, whole):
        x = tl.load(pointer + chunk * BLOCK + place).to(tl.float32)
        sums += x * x
    for chunk in range(tl.maximum(begin, whole), end):
        x = tl.load(pointer + chunk * BLOCK + place, mask=place < elements - chunk * BLOCK, other=0.0).to(tl.float32)
        sums += x * x
    return sums


@triton.jit
def root_kernel(sums_ptr, root_ptr, count, divisor, BLOCK: tl.constexpr):
    """Store the square root of the sum of `count` sums over `divisor`; one program."""
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, count, BLOCK):
        place = first + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + place, mask=place < count, other=0.0)
    tl.store(root_ptr, tl.sqrt(tl.sum(total, axis=0) / tl.cast(divisor, tl.float32)))


def programs_over_chunks(chunks: int, device: torch.device) -> int:
    """Programs that divide chunks among them, at least 1: at most 16 a multiprocessor, 32 interpreted."""
    return min(max(1, chunks), 8 * programs_over_rows(chunks, 1, device))


@operator(NAME, opaque=True)
def _norm(gradients: Sequence[Tensor]) -> Tensor:
    elements = sum(gradient.numel() for gradient in gradients)
    table = tensor_table(gradients) if len(gradients) > 1 and elements else None
    chunks = table.chunks if table else triton.cdiv(elements, CHUNK)
    programs = programs_over_chunks(chunks, gradients[0].device)
    sums = torch.empty(programs, dtype=torch.float32, device=gradients[0].device)
    _squares_kernel[(programs,)](
        gradients[0],
        table.rows if table else gradients[0],
        sums,
        table.tensors if table else 1,
        elements,
        chunks,
        MANY=table is not None,
        ALIGNED=table is not None and table.aligned,
        BLOCK=CHUNK,
        num_warps=warps_of(CHUNK, gradients[0].device, each=EACH),
    )
    norm = torch.empty((), dtype=torch.float32, device=sums.device)
    root_kernel[(1,)](sums, norm, programs, 1.0, BLOCK=SUMS, num_warps=warps_of(SUMS, sums.device, each=EACH))
    return norm


@_norm.register_fake
def _norm_shape(gradients: Sequence[Tensor]) -> Tensor:
    return gradients[0].new_empty((), dtype=torch.float32)


def gradient_norm(gradients: Tensor | Sequence[Tensor]) -> Tensor:
    """Square root of the sum of squares over one tensor or many, as a 0-dim fp32 tensor on their device.

    Not finite where an element is not, and where the sum of squares is beyond fp32's range: a norm above 1.8e19. The
    kernels on CUDA, or interpreted; elsewhere the plain reference. No gradient flows through it, and the host waits for
    nothing.

    Raises:
        UnsupportedInputError: no tensor, or a dtype or device that the kernel does not take.
    """
    tensors = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    require(len(tensors) >= 1, NAME, "number of gradients", "1 or more", 0)
    require_float(NAME, gradients=tensors[0])
    one = tensors[0]
    for tensor in tensors:
        if tensor.dtype != one.dtype or tensor.device != one.device:
            require(tensor.dtype == one.dtype, NAME, "dtype of gradients", f"{one.dtype} for all", tensor.dtype)
            require(False, NAME, "device of gradients", f"the first one's, {one.device}", tensor.device)
    require_one_memory(NAME, one.device)
    with torch.no_grad():
        if not runs_triton(one):
            return reference(tensors)
        norm: Tensor = _norm([tensor.contiguous() for tensor in tensors])
        return norm
