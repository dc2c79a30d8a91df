"""Kernels of other packages that transformers calls where they are installed, as operators that have shapes alone.

Without them transformers executes state-space layers token by token (Mamba) or with every intermediate tensor
(Mamba-2), which nobody trains with. An operator here reads, returns and keeps what the published kernel does, and has
its flop. Arguments that change no shape are left out: transformers passes those alone that a kernel takes.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

PACKAGE = "mamba_ssm"
CHUNK = 2048  # positions, of which the selective scan keeps a state: csrc/selective_scan/selective_scan.cpp
_SCAN = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? bias"
_CHUNKS = "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? bias"


def install() -> None:
    """Let what transformers imports from now on find the operators under the names of their package."""
    module = ModuleType(PACKAGE)
    module.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None)
    module.selective_scan_fn = selective_scan_fn  # type: ignore[attr-defined]  # as the package has it
    module.mamba_chunk_scan_combined = mamba_chunk_scan_combined  # type: ignore[attr-defined]
    sys.modules[PACKAGE] = module


def selective_scan_fn(
    u_BDT: Tensor,
    delta_BDT: Tensor,
    A_DN: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    return_last_state: bool = False,
) -> Any:
    """The selective scan of Mamba: outputs [batch, width, positions], and the last states where they are asked for.

    Source: mamba_ssm 2, ops/selective_scan_interface.py.
    """
    scanned: Any = _SelectiveScan  # torch leaves `apply` untyped
    out_BDT = scanned.apply(u_BDT, delta_BDT, A_DN, B, C, D, z, delta_bias)
    return (out_BDT, A_DN.new_empty(*u_BDT.shape[:2], A_DN.shape[1])) if return_last_state else out_BDT


def mamba_chunk_scan_combined(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    return_final_states: bool = False,
) -> Any:
    """The scan of Mamba-2 by chunks: outputs [batch, positions, heads, width], and the last states where asked for.

    Source: mamba_ssm 2, ops/triton/ssd_combined.py.
    """
    scanned: Any = _ChunkScan  # torch leaves `apply` untyped
    out_BTHP = scanned.apply(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, D, z, dt_bias, chunk_size)
    B, _, H, P = x_BTHP.shape
    states = x_BTHP.new_empty(B, H, P, B_BTGN.shape[-1], dtype=torch.float32)
    return (out_BTHP, states) if return_final_states else out_BTHP


class _SelectiveScan(torch.autograd.Function):
    """Keeps its inputs, its output before the gate, and a state of each chunk."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor | None) -> Any:
        out, states, gated = torch.ops.mamba_ssm.selective_scan(*inputs)
        ctx.save_for_backward(*inputs, states, out)
        return out if inputs[6] is None else gated

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        *inputs, states, out = ctx.saved_tensors
        found = iter(torch.ops.mamba_ssm.selective_scan_backward(gradients[0], *inputs, states, out))
        return tuple(None if each is None else next(found) for each in inputs)


class _ChunkScan(torch.autograd.Function):
    """Keeps its inputs, its output, and the sums of decays; states of chunks are computed again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        out, sums = torch.ops.mamba_ssm.chunk_scan(*inputs)
        ctx.chunk = inputs[-1]
        ctx.save_for_backward(*inputs[:-1], sums, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        *inputs, sums, out = ctx.saved_tensors
        found = iter(torch.ops.mamba_ssm.chunk_scan_backward(gradients[0], *inputs, ctx.chunk, sums, out))
        return (*(None if each is None else next(found) for each in inputs), None)


def _scanned(u: Tensor, _delta: Tensor, A: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    chunks = math.ceil(u.shape[-1] / CHUNK)
    states = A.new_empty(u.shape[0], u.shape[1], chunks, 2 * A.shape[1])
    gated = rest[3]
    return torch.empty_like(u), states, u.new_empty(0) if gated is None else torch.empty_like(u)


def _chunk_scanned(x: Tensor, dt: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    B, T, H = dt.shape
    chunk = rest[-1]
    return torch.empty_like(x), dt.new_empty(B, H, math.ceil(T / chunk), chunk, dtype=torch.float32)


def _gradients(_gradient: Tensor, *saved: Any) -> list[Tensor]:
    """A gradient of each input, without what the forward pass kept besides: the last two tensors."""
    tensors = [each for each in saved if isinstance(each, Tensor)]
    return [torch.empty_like(each) for each in tensors[:-2]]


def chunk_scan_flop(x: Any, _dt: Any, _A: Any, B: Any, _C: Any, *rest: Any, **_: Any) -> int:
    """Products of a forward pass of the scan by chunks, full squares within a chunk.

    2 b t Q G N     scores: outputs' C with inputs' B within a chunk of Q positions, once for each of G groups
    2 b t Q H P     scores with x
    2 b t N H P     the state after each chunk, from B and x
    2 b t N H P     outputs from the state before a chunk, with C

    Source: Dao and Gu 2024, arXiv 2405.21060, section 6.
    """
    (b, t, H, P), (_, _, G, N) = x, B
    Q = min(t, next(each for each in reversed(rest) if isinstance(each, int)))
    return int(2 * b * t * (Q * (G * N + H * P) + 2 * N * H * P))


def _backward_flop(_gradient: Any, *saved: Any, **named: Any) -> int:
    """Twice those of the forward pass: what the kernel computes again is left out."""
    return 2 * chunk_scan_flop(*saved[:9], **{key: value for key, value in named.items() if key != "out_val"})


def _define() -> None:
    library: dict[str, tuple[str, Callable[..., Any]]] = {
        "selective_scan": (f"({_SCAN}) -> (Tensor, Tensor, Tensor)", _scanned),
        "selective_scan_backward": (f"(Tensor gradient, {_SCAN}, Tensor states, Tensor out) -> Tensor[]", _gradients),
        "chunk_scan": (f"({_CHUNKS}, int chunk) -> (Tensor, Tensor)", _chunk_scanned),
        "chunk_scan_backward": (
            f"(Tensor gradient, {_CHUNKS}, int chunk, Tensor sums, Tensor out) -> Tensor[]",
            _gradients,
        ),
    }
    for name, (schema, shapes) in library.items():
        torch.library.define(f"{PACKAGE}::{name}", schema)
        torch.library.register_fake(f"{PACKAGE}::{name}", shapes)
    register_flop_formula(torch.ops.mamba_ssm.chunk_scan)(chunk_scan_flop)
    register_flop_formula(torch.ops.mamba_ssm.chunk_scan_backward)(_backward_flop)


_define()
