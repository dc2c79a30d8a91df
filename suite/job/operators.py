"""Operators that a step executes: kind, sizes, flop, bytes, and what they keep for the backward pass."""

from __future__ import annotations

from enum import StrEnum

import msgspec

_GEMMS = {"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution", "convolution_backward", "_scaled_mm"}
_GEMMS |= {"chunk_scan", "chunk_scan_backward"}  # of state-space layers
_COPIES = {"clone", "cat", "stack", "index", "index_select", "gather", "embedding", "constant_pad_nd", "repeat", "roll"}
_COPIES |= {"split_with_sizes_copy", "_chunk_cat", "index_put", "index_put_", "_index_put_impl_", "scatter", "flip"}
_COPIES |= {"index_add", "index_add_", "scatter_add", "embedding_dense_backward", "slice_backward", "select_backward"}
_COPIES |= {
    "copy_",
    "_foreach_copy_",
    "sort",
    "topk",
    "repeat_interleave",
    "slice_scatter",
    "select_scatter",
    "_to_copy",
}
_HOST = {"_local_scalar_dense", "nonzero", "item", "equal"}
# operators that make a view or take memory, and compute nothing
# fmt: off
_METADATA = frozenset((
    "alias", "as_strided", "broadcast_to", "chunk", "detach", "diagonal", "empty", "empty_like", "empty_permuted",
    "empty_strided", "expand", "expand_as", "flatten", "is_nonzero", "item", "lift_fresh", "movedim", "narrow",
    "new_empty", "new_empty_strided", "permute", "positive", "record_stream", "reshape", "reshape_as", "resize_",
    "resolve_conj", "resolve_neg", "result_type", "select", "set_", "slice", "split", "split_with_sizes",
    "squeeze", "squeeze_", "t", "tensor_split", "transpose", "unbind", "unflatten", "unfold", "unsafe_split",
    "unsqueeze", "unsqueeze_", "view", "view_as", "view_as_complex", "view_as_real", "zeros_like", "zeros", "ones",
    "ones_like", "full", "new_zeros", "_local_scalar_dense", "_nested_view", "_reshape_alias", "_reshape_copy",
    "_unsafe_view", "detach_",
))
# fmt: on
# operators that only call others: their own time is dispatch
# fmt: off
_COMPOSITE = frozenset((
    "_to_copy", "clone", "contiguous", "cross_entropy_loss", "dropout", "embedding", "feature_dropout",
    "layer_norm", "linear", "log_softmax", "matmul", "nll_loss", "nll_loss_nd", "pad", "softmax", "stack", "to",
    "type_as", "zero_",
))
# fmt: on


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


def kind_of_name(name: str) -> OperatorKind:
    """Kind of an operator by its name alone; of copies, which may be casts, see `_kind`."""
    if "scaled_dot_product" in name or "flash_attention" in name or "efficient_attention" in name:
        return OperatorKind.ATTENTION
    if name in _GEMMS or "grouped_mm" in name:
        return OperatorKind.GEMM
    if name in _HOST:
        return OperatorKind.HOST
    if name in _COPIES:
        return OperatorKind.PERMUTATION
    if "norm" in name or "softmax" in name:
        return OperatorKind.NORM
    return OperatorKind.ELEMENT_WISE


def only_dispatches(name: str) -> bool:
    """Whether an operator computes nothing itself: it makes a view, takes memory, or calls others."""
    return name in _METADATA or name in _COMPOSITE
