"""Work of the host for a line of suite/execute/model besides the operators that a calibration times by themselves.

Seen in PyTorch 2.13 by a dispatch mode (views, calls) and in the graph of autograd (nodes, without "Backward0").
tests/predict/simulation/test_host_calls.py compares the names with what PyTorch does here.
"""

from __future__ import annotations

from typing import NamedTuple


class HostCalls(NamedTuple):
    """Calls of modules, views of tensors, and nodes of the backward pass, each by its name."""

    modules: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


# A copy (clone) is timed as "permuted", and a node that hands its gradient on by a copy is counted nowhere.
LINEAR = HostCalls(modules=("Linear",), views=("view", "t", "view"), nodes=("View", "T", "Addmm", "View"))
# by cuBLASLt: the views of `kernels.linear_epilogues`
EPILOGUE_LINEAR = HostCalls(modules=("Linear",), views=("view", "t", "view"), nodes=("_FusedLinear",))
BEFORE_GELU = HostCalls(views=("view",), nodes=("_BeforeGelu",))
AFTER_GELU = HostCalls(views=("t", "view"), nodes=("_AfterGelu", "View"))
SPLIT_PROJECTION = HostCalls(  # x.view(...).permute(...).unbind(0)
    views=("view", "permute", "unbind"), nodes=("View", "Permute", "Unbind")
)
SPLIT_GROUPS = HostCalls(  # of grouped queries: x.view(...).permute(...).split(...), keys and values without the heads
    views=("view", "permute", "split_with_sizes", "view", "view"),
    nodes=("View", "Permute", "SplitWithSizes", "View", "View"),
)
HEADS = HostCalls(views=("view", "transpose"), nodes=("View", "Transpose"))  # x.unflatten(-1, ...).transpose(1, 2)
SPLIT_HEADS = HostCalls(  # the same, split
    views=("view", "transpose", "split_with_sizes"), nodes=("View", "Transpose", "SplitWithSizes")
)
SPLIT_STATE = HostCalls(  # of a compressed state, whose second part is a key of all heads: x.split(...), x.unsqueeze(1)
    views=("split_with_sizes", "unsqueeze"), nodes=("SplitWithSizes", "Unsqueeze")
)
SHARED_KEY = HostCalls(views=("expand",), nodes=("Expand", "Cat"))  # cat([x.expand(...), y])
PADDED_HEADS = HostCalls(nodes=("ConstantPadNd",))  # or of a slice, whose view is not counted
SCORES = HostCalls(  # matmul(q, k.transpose(-1, -2)); the last view is of the softmax's output, which autograd keeps
    views=("transpose", "expand", "_unsafe_view", "expand", "_unsafe_view", "_unsafe_view", "detach"),
    nodes=("Transpose", "Expand", "UnsafeView", "Expand", "UnsafeView", "Bmm", "UnsafeView"),
)
SOFTMAX = HostCalls(nodes=("Div", "Add", "Softmax"))
SOFTMAX_OF_HALF = HostCalls(nodes=("ToCopy", "Div", "Add", "Softmax", "ToCopy"))
ONE_OPERATOR_SOFTMAX = HostCalls(nodes=("CppSoftmax",))
CONTEXT = HostCalls(  # matmul(weights, v).transpose(1, 2).flatten(2)
    views=("expand", "view", "expand", "_unsafe_view", "_unsafe_view", "transpose", "_unsafe_view"),
    nodes=("Expand", "View", "Expand", "UnsafeView", "Bmm", "UnsafeView", "Transpose", "UnsafeView"),
)
FUSED_ATTENTION = HostCalls(  # scaled_dot_product_attention(...).transpose(1, 2).flatten(2)
    views=("transpose", "view"), nodes=("ScaledDotProductFlashAttentionForCpu", "Transpose", "View")
)
PACKED_ATTENTION = HostCalls(  # packed_attention(x, ...).transpose(1, 2).flatten(2)
    views=("view", "permute", "unbind", "transpose", "view"), nodes=("_PackedAttention", "Transpose", "View")
)
# Assumed: two views and three nodes more than PyTorch 2.13 has, so that a slice is a view of a view with a node of its
# own. No measurement contradicts it.
ROTATION = HostCalls(
    views=("unbind", "slice", "slice", "split", "assumed", "assumed"),
    nodes=("Slice", "Slice", "Split", "Neg", "Cat", "Mul", "Mul", "Add", "Cat", "assumed", "assumed", "assumed"),
)
ELEMENT_WISE = HostCalls(nodes=("the operator's",))
FAST_GELU = HostCalls(nodes=("Abs", "Mul", "Exp", "Add", "Div", "Sub", "Mul", "Exp", "Mul"))
GATED = HostCalls(nodes=("View", "Unbind", "Gelu", "Mul"))  # its views are in the timing of "geglu"
NORM = HostCalls(modules=("LayerNorm",), nodes=("NativeLayerNorm",))
RMS_NORM = HostCalls(modules=("RMSNorm",), nodes=("Pow", "MeanBackward1", "AddBackward1", "Rsqrt", "Mul", "Mul"))
EMBEDDING = HostCalls(modules=("Embedding",), nodes=("Embedding",))
POSITIONS = HostCalls(nodes=("Slice", "Split", "Add", "AccumulateGrad"))  # x + weight[first:last].chunk(parts)[part]
LOSS = HostCalls(
    modules=("CrossEntropy",), views=("view", "view", "detach"), nodes=("ToCopy", "View", "LogSoftmax", "NllLoss")
)
CHUNKED_LOSS = HostCalls(nodes=("View", "_ChunkedLoss", "AccumulateGrad"))
BLOCK = HostCalls(modules=("Block", "Attention", "FeedForward"))  # of its other modules the operators say themselves

# Small operators, each a call. The loss of a chunk: those over tokens, then three of the four passes over its logits,
# of which the timing of "cross_entropy" has one call.
LOSS_CHUNK = (
    *("clamp", "gather", "ne", "log", "sub", "mul", "sum", "add_", "full_like", "scatter_add_", "div"),
    *("amax", "sub_", "exp_"),
)
MASK = ("arange", "unsqueeze", "unsqueeze", "zeros", "lift_fresh", "unsqueeze", "unsqueeze", "neg")
MASK_PASSES = ("sub", "mul", "lt", "masked_fill")  # over all scores, each timed as "scale"
ANGLES = ("arange", "_to_copy", "neg", "div", "pow", "unsqueeze")
ANGLES_PASSES = ("mul", "cat", "cos", "sin", "stack")
