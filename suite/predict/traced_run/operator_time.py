"""Seconds of operators by their kind, sizes and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from suite.job.operators import OperatorKind, TracedOperator, TracePhase
from suite.predict.analytic.gemm import EfficiencyTable, IntensityTable, ProductTables, gemm_seconds
from suite.predict.analytic.layer_time import ALIGNED
from suite.predict.analytic.machine import Machine

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_CAUSAL_SHARE = 0.5  # of the square, which a kernel computes under a causal mask
_TRANSCENDENTAL = ("gelu", "silu", "sigmoid", "tanh", "exp", "cos", "sin", "softplus", "erf")
NORM, SOFTMAX, LOSS, ACTIVATION, SUM = "norm", "softmax", "loss", "activation", "sum"


class OperatorRates(NamedTuple):
    """Rates that price operators.

    Args:
        fp32_flop_per_second: peak of products in fp32; `machine` has the peak in the dtype of the step.
        is_fp32: whether the dtype of the step is fp32.
        causal: whether attention sees the past alone.
        tokens: of a micro-batch, by which products of the backward pass are distinguished.
        passes: seconds of memory-bound operators over what their bytes take at the memory's bandwidth, by `subject`;
            1 where there is none.
    """

    machine: Machine
    fp32_flop_per_second: float
    is_fp32: bool
    causal: bool
    tokens: int
    passes: Mapping[str, float] = {}


def operator_seconds(call: TracedOperator, rates: OperatorRates) -> float:
    """Seconds of one call on the accelerator.

    gemm            `gemm_seconds` of each matrix of a batch; with a dimension that is no multiple of 8, the machine's
                    `misalignment` times as long; of experts, its `expert_slowdown` times
    attention       max(flop / (e_attention P), bytes / B); under a causal mask half of the square's flop
    host            none: the accelerator waits
    others          p bytes / B: each tensor is read or written once, p times as slowly as the memory could

    and the filling and draining of a kernel.
    """
    machine = rates.machine
    if call.kind in (OperatorKind.HOST, OperatorKind.COLLECTIVE):
        return 0.0
    moved = (call.read_bytes + call.written_bytes) / machine.achievable_memory_bytes_per_second
    if call.kind is OperatorKind.GEMM and call.flop:
        return _products_seconds(call, rates) + machine.kernel_seconds
    if call.kind is OperatorKind.ATTENTION:
        flop = call.flop * (_CAUSAL_SHARE if rates.causal else 1.0)
        rate = machine.fused_attention_efficiency * machine.peak_flop_per_second
        return max(flop / rate, moved) + machine.kernel_seconds
    return rates.passes.get(subject(call), 1.0) * moved + machine.kernel_seconds


def subject(call: TracedOperator) -> str:
    """The operator of a calibration that is like a memory-bound one."""
    if "softmax" in call.operator or "nll_loss" in call.operator:
        return SOFTMAX if call.module else LOSS
    if call.kind is OperatorKind.NORM:
        return NORM
    return ACTIVATION if any(word in call.operator for word in _TRANSCENDENTAL) else SUM


def _products_seconds(call: TracedOperator, rates: OperatorRates) -> float:
    machine = rates.machine
    element_bytes = _BYTES.get(call.dtype, 2)
    count, (M, N, K) = product_sizes(call)
    full = rates.is_fp32 or element_bytes < _BYTES["float32"]
    seconds = gemm_seconds(
        M,
        N,
        K,
        element_bytes,
        _table(call, K, rates),
        machine.peak_flop_per_second if full else rates.fp32_flop_per_second,
        machine.achievable_memory_bytes_per_second,
        machine.matrix_saturation,
        machine.product_overlap,
    )
    slowed = machine.misalignment if any(size % ALIGNED for size in (M, N, K)) else 1.0
    of_experts = "grouped_mm" in call.operator or "experts" in call.module.split(".")
    return count * seconds * slowed * (machine.expert_slowdown if of_experts else 1.0)


def _table(call: TracedOperator, depth: int, rates: OperatorRates) -> EfficiencyTable | IntensityTable:
    """The efficiencies of a product: in the backward pass, the gradient of a weight sums over tokens."""
    tables = rates.machine.matrix_efficiency
    if not isinstance(tables, ProductTables):
        return tables
    if call.phase is not TracePhase.BACKWARD:
        return tables.forward
    return tables.weight_gradient if depth == rates.tokens else tables.input_gradient


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
