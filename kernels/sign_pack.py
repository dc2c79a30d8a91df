"""One-bit compression with error feedback: packed signs and one scale, and the mean of several ranks' signs.

Legend: N elements, p ranks; c = value + error what is compressed. Bit k, from the lowest, of byte j is 1 where element
8 j + k of c is not negative (0 counts as positive, NaN as negative) and 0 after the last element.
Least bytes, b an element of value: forward (b + 4) N to find the scale, then (b + 8) N + N / 8, thus 20.125 N in fp32;
unpack and mean p N / 8 + 4 N. There is no backward pass.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.bits import BITS, pack_bits, unpack_signs
from kernels.gradient_norm import SUMS, programs_over_chunks, root_kernel
from kernels.operator import launchable, operator, require, require_float, runs_triton

NAME = "sign_pack"
UNPACK = "sign_unpack"
BLOCK = 1024  # elements of a program at once: two loads of 16 bytes in each of 128 threads, fp32
WARPS = 4


def reference(value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Packed signs and scale of c = value + error in the arithmetic of the error's dtype; the error is overwritten.

        scale  = ||c|| / sqrt(N)
        error := c - scale sign(c), with sign(0) = +1

    Source: Tang et al. 2021, arXiv 2102.02888, algorithm 1, whose scale is that of its implementation in DeepSpeed
    0.19.6. Differs from mean |c|, the scale with the least error of one step, which is never larger.
    """
    compensated = value.to(error.dtype) + error
    scale = torch.linalg.vector_norm(compensated) / math.sqrt(compensated.numel())
    positive = compensated >= 0
    error.copy_(torch.where(positive, compensated - scale, compensated + scale))
    return pack_bits(positive.flatten()), scale


def reference_unpack(packed: Tensor, scales: Tensor, elements: int) -> Tensor:
    """Mean over ranks of scale times sign [elements], from packed signs [p, bytes] and scales [p], in their dtype."""
    return (unpack_signs(packed, elements, scales.dtype) * scales.unsqueeze(-1)).mean(0)


@triton.jit
def _squares_kernel(value_ptr, error_ptr, sums_ptr, elements, chunks, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    end = (program + 1) * chunks // tl.num_programs(0)
    place = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for chunk in range(program * chunks // tl.num_programs(0), end):
        first = chunk * BLOCK
        if first + BLOCK <= elements:  # a mask that may cut anywhere forbids loads of 16 bytes
            c = tl.load(value_ptr + first + place).to(tl.float32) + tl.load(error_ptr + first + place)
        else:
            inside = place < elements - first
            c = tl.load(value_ptr + first + place, mask=inside, other=0.0).to(tl.float32)
            c += tl.load(error_ptr + first + place, mask=inside, other=0.0)
        sums += c * c
    tl.store(sums_ptr + program, tl.sum(sums, axis=0))


@triton.jit
def _pack_kernel(value_ptr, error_ptr, scale_ptr, packed_ptr, elements, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    byte = tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    place = byte[:, None] * 8 + bit[None, :]
    scale = tl.load(scale_ptr)
    value_ptr += first
    error_ptr += first
    packed_ptr += first // 8
    if first + BLOCK <= elements:
        c = tl.load(value_ptr + place).to(tl.float32) + tl.load(error_ptr + place)
        tl.store(error_ptr + place, tl.where(c >= 0, c - scale, c + scale))
        bits = tl.where(c >= 0, 1, 0) << bit[None, :]
        tl.store(packed_ptr + byte, tl.sum(bits, axis=1).to(tl.uint8))
    else:
        inside = place < elements - first
        c = tl.load(value_ptr + place, mask=inside, other=-1.0).to(tl.float32)
        c += tl.load(error_ptr + place, mask=inside, other=0.0)
        tl.store(error_ptr + place, tl.where(c >= 0, c - scale, c + scale), mask=inside)
        bits = tl.where(c >= 0, 1, 0) << bit[None, :]
        tl.store(packed_ptr + byte, tl.sum(bits, axis=1).to(tl.uint8), mask=byte * 8 < elements - first)


@triton.jit
def _unpack_kernel(packed_ptr, scales_ptr, mean_ptr, packed_row, ranks, elements, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    byte = tl.arange(0, BLOCK // 8)
    bit = tl.arange(0, 8)
    place = byte[:, None] * 8 + bit[None, :]
    packed_ptr += first // 8
    total = tl.zeros([BLOCK // 8, 8], dtype=tl.float32)
    for _ in range(ranks):
        signs = tl.load(packed_ptr + byte, mask=byte * 8 < elements - first, other=0).to(tl.int32)
        scale = tl.load(scales_ptr)
        total += tl.where((signs[:, None] >> bit[None, :]) & 1 == 1, scale, -scale)
        packed_ptr += packed_row
        scales_ptr += 1
    mean = total / ranks
    mean_ptr += first
    if first + BLOCK <= elements:
        tl.store(mean_ptr + place, mean)
    else:
        tl.store(mean_ptr + place, mean, mask=place < elements - first)


@operator(NAME, mutates=("error_N",))
def _pack(value_N: Tensor, error_N: Tensor) -> tuple[Tensor, Tensor]:
    elements = value_N.numel()
    chunks = triton.cdiv(elements, BLOCK)
    programs = programs_over_chunks(chunks, value_N.device)
    sums = torch.empty(programs, dtype=torch.float32, device=value_N.device)
    scale = torch.empty((), dtype=torch.float32, device=value_N.device)
    packed = torch.empty(triton.cdiv(elements, BITS), dtype=torch.uint8, device=value_N.device)
    launchable(_squares_kernel)[(programs,)](value_N, error_N, sums, elements, chunks, BLOCK=BLOCK, num_warps=WARPS)
    launchable(root_kernel)[(1,)](sums, scale, programs, float(elements), BLOCK=SUMS, num_warps=WARPS)
    launchable(_pack_kernel)[(chunks,)](value_N, error_N, scale, packed, elements, BLOCK=BLOCK, num_warps=WARPS)
    return packed, scale


@operator(UNPACK)
def _unpack(packed_PB: Tensor, scales_P: Tensor, elements: int) -> Tensor:
    mean = torch.empty(elements, dtype=torch.float32, device=packed_PB.device)
    if elements:
        launchable(_unpack_kernel)[(triton.cdiv(elements, BLOCK),)](
            packed_PB, scales_P, mean, packed_PB.stride(0), packed_PB.shape[0], elements, BLOCK=BLOCK, num_warps=WARPS
        )
    return mean


def sign_pack(value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Packed signs [ceil(N / 8)], uint8, and fp32 scale (0-dim) of value + error; the fp32 error is overwritten.

    The new error is what the signs missed, see `reference`. Signs and error are not finite where an element is not: so
    is the scale, which says so for all. The kernels on CUDA, or interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device, shape or stride that the kernel does not take, or no element.
    """
    require_float(NAME, value=value, error=error)
    require(error.dtype == torch.float32, NAME, "dtype of error", "float32", error.dtype)
    require(value.numel() >= 1, NAME, "elements", "1 or more", 0)
    require(error.shape == value.shape, NAME, "shape of error", str(tuple(value.shape)), tuple(error.shape))
    require(error.is_contiguous(), NAME, "strides of error", "contiguous", error.stride())
    with torch.no_grad():
        if not runs_triton(value):
            return reference(value, error)
        packed, scale = _pack(value.contiguous().view(-1), error.view(-1))
        return packed, scale


def sign_unpack(packed: Tensor, scales: Tensor, elements: int) -> Tensor:
    """Mean over p ranks of scale times sign, fp32 [elements], of packed signs [p, bytes] and fp32 scales [p].

    Ranks are added up in their order, so that every rank that does it has the same mean. The kernel on CUDA, or
    interpreted; elsewhere the plain reference.

    Raises:
        UnsupportedInputError: a dtype, device or shape that the kernel does not take.
    """
    require(packed.dtype == torch.uint8, UNPACK, "dtype of packed", "uint8", packed.dtype)
    require(scales.dtype == torch.float32, UNPACK, "dtype of scales", "float32", scales.dtype)
    allowed = f"packed's, {packed.device}"
    require(scales.device == packed.device, UNPACK, "device of scales", allowed, scales.device)
    require(packed.dim() == 2, UNPACK, "dims of packed", "2", packed.dim())
    ranks, size = packed.shape
    require(ranks >= 1, UNPACK, "ranks", "1 or more", ranks)
    require(scales.shape == (ranks,), UNPACK, "shape of scales", f"({ranks},)", tuple(scales.shape))
    fits = elements >= 0 and size == (elements + BITS - 1) // BITS
    require(fits, UNPACK, "elements", f"{max(0, BITS * size - BITS + 1)} to {BITS * size}", elements)
    with torch.no_grad():
        if not runs_triton(packed):
            return reference_unpack(packed, scales, elements)
        packed = packed if packed.stride(1) == 1 else packed.contiguous()
        mean: Tensor = _unpack(packed, scales.contiguous(), elements)
        return mean
