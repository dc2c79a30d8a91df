"""Operators that a step executes: kind, sizes, flop, bytes, and what they keep for the backward pass."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OperatorKind(StrEnum):
    """Kind of operator: it decides what limits its time."""

    GEMM = "gemm"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENT_WISE = "element-wise"
    CAST = "cast"
    PERMUTATION = "permutation"  # copies, gathers and scatters: bytes without arithmetic
    COLLECTIVE = "collective"
    HOST = "host"  # the host waits for a number


class TracePhase(StrEnum):
    """Part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTATION = "recomputation"
    UPDATE = "update"


class TracedOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one operator that are alike, in a step of one rank.

    Args:
        operator: PyTorch's name, such as aten.mm.
        sizes: of its tensor arguments.
        dtype: of what it returns, such as bfloat16; empty: no tensor.
        module: path of the module that executes it or, in the backward pass, executed what it is the gradient of; a
            number in a list of modules is *. Empty: no module.
        calls: how many there are.
        flop: of one call: 2 M N K of a product; of fused attention the full square. Element-wise operators have none.
        read_bytes: of the tensors that one call reads, `written_bytes` of those that it writes, each once.
        kept_bytes: that the forward pass keeps for the backward pass of what these calls return, together.
    """

    operator: str
    kind: OperatorKind
    phase: TracePhase
    module: str
    sizes: tuple[tuple[int, ...], ...]
    dtype: str
    calls: int
    flop: int
    read_bytes: int
    written_bytes: int
    kept_bytes: int = 0
