"""Seconds of operators by their kind, sizes and bytes."""

from __future__ import annotations

import math

from suite.job.operators import OperatorKind, TracedOperator
from suite.predict.analytic.gemm import ProductTables, gemm_seconds
from suite.predict.analytic.machine import Machine

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_CAUSAL_SHARE = 0.5  # of the square, which a kernel computes under a causal mask


def operator_seconds(call: TracedOperator, machine: Machine, *, causal: bool) -> float:
    """Seconds of one call on the accelerator.

    gemm            max(2 M N K / (e P) ..., bytes / B), see `gemm_seconds`, for each matrix of a batch
    attention       max(flop / (e_attention P), bytes / B); under a causal mask half of the square's flop
    host            none: the accelerator waits
    others          bytes / B: each tensor is read or written once

    and the filling and draining of a kernel. Products in fp32 take as long as TF32's, half of the rate of 16 bits.

    Args:
        causal: whether attention sees the past alone.
    """
    if call.kind in (OperatorKind.HOST, OperatorKind.COLLECTIVE):
        return 0.0
    moved = (call.read_bytes + call.written_bytes) / machine.achievable_memory_bytes_per_second
    if call.kind is OperatorKind.GEMM and call.flop:
        return _products_seconds(call, machine) + machine.kernel_seconds
    if call.kind is OperatorKind.ATTENTION:
        flop = call.flop * (_CAUSAL_SHARE if causal else 1.0)
        rate = machine.fused_attention_efficiency * machine.peak_flop_per_second
        return max(flop / rate, moved) + machine.kernel_seconds
    return moved + machine.kernel_seconds


def _products_seconds(call: TracedOperator, machine: Machine) -> float:
    table = machine.matrix_efficiency
    element_bytes = _BYTES.get(call.dtype, 2)
    count, (M, N, K) = product_sizes(call)
    return count * gemm_seconds(
        M,
        N,
        K,
        element_bytes,
        table.forward if isinstance(table, ProductTables) else table,
        machine.peak_flop_per_second / (2 if element_bytes == 4 else 1),
        machine.achievable_memory_bytes_per_second,
        machine.matrix_saturation,
        machine.product_overlap,
    )


def product_sizes(call: TracedOperator) -> tuple[int, tuple[int, int, int]]:
    """Number of products and their M, N and K, from the sizes of a GEMM's arguments.

    Of a grouped product, whose rows a router shares out, every group has as many. Of what has other sizes, such as a
    convolution: one cube of the same flop.
    """
    matrices = [sizes for sizes in call.sizes if len(sizes) in (2, 3)][-2:]
    if len(matrices) == 2:
        left, right = matrices
        if len(left) == len(right) == 2 and left[1] == right[0]:
            return 1, (left[0], right[1], left[1])
        if len(left) == len(right) == 3 and left[2] == right[1]:
            return left[0], (left[1], right[2], left[2])
        if len(left) == 2 and len(right) == 3 and left[1] == right[1]:
            return right[0], (max(1, left[0] // right[0]), right[2], left[1])
    edge = max(1, round((call.flop / 2) ** (1 / 3)))
    return 1, (edge, edge, max(1, math.ceil(call.flop / (2 * edge * edge))))
