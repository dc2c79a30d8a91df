"""Causal attention over a fused projection's output, whose backward pass writes one gradient: that of this output.

PyTorch's operators return the gradients of queries, keys and values apart. Joining them in the projection's order reads
and writes each once more: 12 bytes an element of the hidden states in 16 bit. The libraries write tensors of any
strides, so that theirs are views of the one gradient: cuDNN, through the Python package of its front end, with
PyTorch's forward pass by the same library; or FlashAttention 3, where PyTorch's own flash attention is replaced by it.
A CPU has PyTorch's kernel, and copies.

Rows of the projection's output are [H, 3, K]: of each head its query, key and value.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl
from torch.nn.functional import scaled_dot_product_attention

from suite.execute.measure.counters import counts_as_attention_backward
from suite.job.options import Optimization

_aten = torch.ops.aten
_LIBRARY = torch.library.Library("llm_reference_runs", "FRAGMENT")
_NAME = "packed_attention_backward"
_LIBRARY.define(
    f"{_NAME}(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logarithms, float scale) -> Tensor"
)


def packed_attention(packed_BTX: Tensor, head_dim: int, scale: float) -> Tensor:
    """Causal attention of all heads, [B, H, T, K], without dropout.

    Args:
        packed_BTX: [B, T, H * 3 * K].
        scale: of the scores.
    """
    context: Tensor = _PackedAttention.apply(packed_BTX, head_dim, scale)  # type: ignore[no-untyped-call]
    return context


torch.compiler.allow_in_graph(packed_attention)  # AOTAutograd traces it; Dynamo would instantiate the function


def has_flash_attention_3() -> bool:
    """Whether FlashAttention 3 computes PyTorch's flash attention in this process."""
    return current_flash_attention_impl() == "FA3"


def use_flash_attention_3() -> None:
    """Have FlashAttention 3 compute fused attention in this process from now on."""
    activate_flash_attention_impl("FA3")
    torch.backends.cuda.enable_cudnn_sdp(False)  # which PyTorch prefers on Hopper


def _parts(packed_BTX: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _ = packed_BTX.shape
    q_BHTK, k_BHTK, v_BHTK = packed_BTX.view(batch, length, -1, 3, head_dim).permute(3, 0, 2, 1, 4).unbind(0)
    return q_BHTK, k_BHTK, v_BHTK


def _forward(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Context, and the logarithm of each row's sum of exponentials, fp32."""
    parts = q_BHTK, k_BHTK, v_BHTK
    if q_BHTK.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu(*parts, 0.0, True, scale=scale)[:2]  # type: ignore[no-any-return]
    if has_flash_attention_3():
        return _aten._scaled_dot_product_flash_attention(*parts, 0.0, True, scale=scale)[:2]  # type: ignore[no-any-return]
    return _aten._scaled_dot_product_cudnn_attention(*parts, None, True, 0.0, True, scale=scale)[:2]  # type: ignore[no-any-return]


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed_BTX: Tensor, head_dim: int, scale: float) -> Tensor:
        out_BHTK, logarithms = _forward(*_parts(packed_BTX, head_dim), scale)
        ctx.save_for_backward(packed_BTX, out_BHTK, logarithms)
        ctx.head_dim, ctx.scale = head_dim, scale
        return out_BHTK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        packed_BTX, out_BHTK, logarithms = ctx.saved_tensors
        parts = _parts(packed_BTX, ctx.head_dim)
        operator = torch.ops.llm_reference_runs.packed_attention_backward
        return operator(gradients[0], *parts, out_BHTK, logarithms, ctx.scale), None, None


def _packed_gradient(q_BHTK: Tensor) -> Tensor:
    batch, heads, length, head_dim = q_BHTK.shape
    return q_BHTK.new_empty(batch, length, heads * 3 * head_dim)


def _shape(_gradient: Tensor, q_BHTK: Tensor, *_others: Any) -> Tensor:
    return _packed_gradient(q_BHTK)


def _on_cpu(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logarithms: Tensor, scale: float) -> Tensor:
    operator = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = operator(gradient, q, k, v, out, logarithms, 0.0, True, scale=scale)
    packed = _packed_gradient(q)
    for part, written in zip(_parts(packed, q.shape[-1]), found, strict=True):
        part.copy_(written)
    return packed


def _on_cuda(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logarithms: Tensor, scale: float
) -> Tensor:
    packed = _packed_gradient(q)
    if gradient.stride(-1) != 1 or 0 in gradient.stride():  # of an expanded tensor, say: the libraries read rows
        gradient = gradient.contiguous()
    given = (gradient, q, k, v, out, logarithms)
    parts = _parts(packed, q.shape[-1])
    if has_flash_attention_3():
        _by_flash_attention_3(given, parts, scale)
    else:
        _by_cudnn(given, parts, scale)
    return packed


CHECKED = (2, 256, 3)  # samples, positions and heads of the self-check


@cache
def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Why attention does not write one gradient on `device`, in words; empty: it does.

    At the first call a small gradient is compared with that of PyTorch's own attention.
    """
    try:
        wrong = _disagreements(device, dtype, head_dim)
    except Exception as error:  # of a package, a library or CUDA: there is the plain way
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return f"wrong gradients of {', '.join(wrong)}" if wrong else ""


def how_computed(optimizations: Sequence[Optimization], device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """How attention's gradients are written, in words for the record; empty where nothing else was asked."""
    if Optimization.PACKED_GRADIENTS not in optimizations:
        return ""
    reason = why_not(device, dtype, head_dim)
    if reason:
        return f"without {Optimization.PACKED_GRADIENTS}: {reason}"
    return "attention writes one gradient of queries, keys and values"


def _disagreements(device: torch.device, dtype: torch.dtype, head_dim: int) -> list[str]:
    """The parts whose gradients are apart from those of PyTorch's own attention by more than roundings."""
    batch, length, heads = CHECKED
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) - 0.5).to(dtype).to(device)

    values = drawn(batch, length, heads * 3 * head_dim)
    upstream = drawn(batch, length, heads, head_dim).transpose(1, 2)  # as in training

    def gradients(attention: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        leaf = values.clone().requires_grad_()
        (packed,) = torch.autograd.grad(attention(leaf), leaf, upstream)
        return tuple(part.float() for part in _parts(packed, head_dim))

    with torch.enable_grad():
        packed = gradients(lambda leaf: packed_attention(leaf, head_dim, 1.0))
        plain = gradients(lambda leaf: scaled_dot_product_attention(*_parts(leaf, head_dim), is_causal=True, scale=1.0))
    bounds = _bounds(values, upstream, head_dim)
    names = ("queries", "keys", "values")
    return [
        name
        for name, found, right, bound in zip(names, packed, plain, bounds, strict=True)
        if bool((~((found - right).abs() <= bound)).any())
    ]


def _bounds(values: Tensor, upstream: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """By how much two gradients may be apart whose sums are in fp32, of weights P and a context O = P v.

    Numbers are rounded by u of them: P, O, dS = P (dO v^T - rows' sums of dO O) and the results. Each gradient is off
        of O        u (P |v| + |O|), at most 2 u P |v|: so the sum of a row by R = 2 u sum of |dO| P |v|
        of dS       E = u |dS| + P R
        of results  q: E |k| + u |dq|; k: E^T |q| + u |dk|; v: u P^T |dO| + u |dv|
    and two by twice that; as much again for fp32's sums and exponentials, which are off by far less.
    """
    unit = torch.finfo(values.dtype).eps / 2
    q, k, v = _parts(values.float(), head_dim)
    do = upstream.float()
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    p = (q @ k.mT).masked_fill(later, -torch.inf).softmax(-1)
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    of_rows = 2 * unit * (do.abs() * (p @ v.abs())).sum(-1, keepdim=True)
    of_ds = unit * ds.abs() + p * of_rows
    return (
        4 * (of_ds @ k.abs() + unit * (ds @ k).abs()),
        4 * (of_ds.mT @ q.abs() + unit * (ds.mT @ q).abs()),
        4 * unit * (p.mT @ do.abs() + (p.mT @ do).abs()),
    )


def _by_flash_attention_3(given: tuple[Tensor, ...], parts: tuple[Tensor, ...], scale: float) -> None:
    """Gradients by its operator, which has positions before heads; arguments as torch/nn/attention/_fa3.py has them."""
    gradient, q, k, v, out = (x.transpose(1, 2) for x in given[:5])
    length = q.shape[1]
    written = [part.transpose(1, 2) for part in parts]
    torch.ops.flash_attn_3.bwd(
        *(gradient, q, k, v, out, given[5]),
        *written,
        *(None, None, None, None, length, length, scale, True, -1, -1, 0.0, False, 0),
    )


class _TensorLayout(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _CudnnPlan(NamedTuple):
    """A graph of cuDNN that was built for some layouts of its tensors.

    Args:
        tensors: the graph's names of what it reads, then of what it writes.
    """

    graph: Any
    tensors: tuple[Any, ...]
    workspace_bytes: int
    handle: Any


def _by_cudnn(given: tuple[Tensor, ...], parts: tuple[Tensor, ...], scale: float) -> None:
    tensors = (*given, *parts)
    device = given[0].device
    layouts = tuple(_TensorLayout(tuple(x.shape), x.stride()) for x in tensors)
    plan = _plan(layouts, given[0].dtype, scale, device.index)
    cudnn = importlib.import_module("cudnn")
    cudnn.set_stream(handle=plan.handle, stream=torch.cuda.current_stream(device).cuda_stream)
    workspace = torch.empty(max(plan.workspace_bytes, 1), dtype=torch.uint8, device=device)
    plan.graph.execute(dict(zip(plan.tensors, tensors, strict=True)), workspace, handle=plan.handle)


@cache
def _handle(_device: int) -> Any:
    return importlib.import_module("cudnn").create_handle()


@cache
def _plan(layouts: tuple[_TensorLayout, ...], dtype: torch.dtype, scale: float, device: int) -> _CudnnPlan:
    """The backward pass of causal attention; nine layouts, those of what is read first."""
    cudnn = importlib.import_module("cudnn")
    narrow = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[dtype]
    wide, handle = cudnn.data_type.FLOAT, _handle(device)
    graph = cudnn.pygraph(io_data_type=narrow, intermediate_data_type=wide, compute_data_type=wide, handle=handle)
    dtypes = (narrow,) * 5 + (wide,)
    gradient, q, k, v, out, logarithms = (
        graph.tensor(dim=[*layout.shape], stride=[*layout.strides], data_type=kind)
        for layout, kind in zip(layouts[:6], dtypes, strict=True)
    )
    written = graph.sdpa_backward(
        q=q, k=k, v=v, o=out, dO=gradient, stats=logarithms, attn_scale=scale, use_causal_mask=True
    )
    for tensor, layout in zip(written, layouts[6:], strict=True):
        tensor.set_output(True).set_dim([*layout.shape]).set_stride([*layout.strides]).set_data_type(narrow)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return _CudnnPlan(graph, (gradient, q, k, v, out, logarithms, *written), graph.get_workspace_size(), handle)


_LIBRARY.impl(_NAME, _on_cpu, "CPU")
_LIBRARY.impl(_NAME, _on_cuda, "CUDA")
torch.library.register_fake(f"llm_reference_runs::{_NAME}", _shape, lib=_LIBRARY)
counts_as_attention_backward(torch.ops.llm_reference_runs.packed_attention_backward)
