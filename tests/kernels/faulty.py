"""Kernels with the faults that the check of compilation is to find."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def narrow(x_ptr, y_ptr, N):
    place = tl.arange(0, 1024)
    tl.store(y_ptr + place, tl.load(x_ptr + place, mask=place < N), mask=place < N)


@triton.jit
def changing(x_ptr, N):
    total = 0
    for place in range(N):
        total += tl.load(x_ptr + place)
    tl.store(x_ptr, total)


@triton.jit
def crowded(x_ptr, y_ptr):
    place = tl.arange(0, 32_768)
    x = tl.load(x_ptr + place)
    tl.store(y_ptr + place, x - tl.sum(x, axis=0))


@triton.jit
def unrounded(x_ptr, y_ptr, factor):
    place = tl.arange(0, 512)
    tl.store(y_ptr + place, tl.load(x_ptr + place) * factor)
