"""Linear layers whose three products have factors of 8 bits, each with one scale from its own largest element.

Factors of the forward pass are e4m3, gradients of outputs e5m2; sums are in fp32 (of forward products on Hopper in
fewer bits), and a product has the dtype of what
was cast. Weights, biases and everything else stay as they are.
Source: Micikevicius et al. 2022, arXiv 2209.05433, sections 3 and 4 (both formats, scales of tensors); NVIDIA
Transformer Engine, transformer_engine.common.recipe.Float8CurrentScaling, with its Format.HYBRID.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

FORWARD, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {dtype: torch.finfo(dtype).max for dtype in (FORWARD, GRADIENT)}
LEAST = 1e-30  # of a largest element, so that a tensor of zeros has a scale


def cast(x_RC: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in 8 bits and the scale, [1, 1], that it is to be multiplied by: its largest element over that of `dtype`.

    The quotient is in fp32, and so rounded twice; its largest element rounds to the largest of `dtype`.
    """
    largest = torch.linalg.vector_norm(x_RC, torch.inf, keepdim=True, dtype=torch.float32)
    scale = largest.clamp_(min=LEAST).div_(LARGEST[dtype])
    return (x_RC / scale).to(dtype), scale


def transposed(x_RC: Tensor) -> Tensor:
    """The transpose, stored by its own rows: PyTorch multiplies by a second factor that is stored by columns."""
    return x_RC.t().contiguous()


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """As torch.backends.mkldnn.flags, which warns of TF32 where it restores what was (torch 2.13)."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def product(
    a_MK: tuple[Tensor, Tensor], b_NK: tuple[Tensor, Tensor], dtype: torch.dtype, *, fast_sum: bool = False
) -> Tensor:
    """a by the transpose of b, [M, N], both in 8 bits with their scales.

    With `fast_sum` Hopper's tensor cores keep partial sums with fewer bits than fp32, and need not move them to
    registers every few instructions. Forward products alone are summed so, as in NVIDIA Transformer Engine
    (Float8CurrentScaling: fprop without split accumulator, dgrad and wgrad with it) and torchao (Float8GemmConfig).

    On a CPU by PyTorch's own kernel: oneDNN's for two factors of e4m3 is its reference where the processor has AMX for
    other types alone, and takes 49 ms for 64 x 64 x 256 where PyTorch's takes 0.2 (an Intel Xeon, 2026-11-26).
    """
    a, a_scale = a_MK
    b, b_scale = b_NK
    own = a.device.type == "cpu" and not torch.compiler.is_compiling()  # a graph holds no such switch
    with without_onednn() if own else contextlib.nullcontext():
        scales = {"scale_a": a_scale, "scale_b": b_scale}
        out: Tensor = torch._scaled_mm(a, b.t(), **scales, out_dtype=dtype, use_fast_accum=fast_sum)
    return out


class ScaledProduct(torch.autograd.Function):
    """x_NK by the transpose of weight_MK, plus the bias: [N, M]. Keeps x in 8 bits, and the weight as it is."""

    @staticmethod
    def forward(ctx: Any, x_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None) -> Tensor:
        x = cast(x_NK, FORWARD)
        ctx.save_for_backward(*x, weight_MK)
        ctx.has_bias = bias_M is not None
        out_NM = product(x, cast(weight_MK, FORWARD), x_NK.dtype, fast_sum=True)
        return out_NM if bias_M is None else out_NM.add_(bias_M)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x_NK, x_scale, weight_MK = ctx.saved_tensors
        dtype = weight_MK.dtype
        gradient_NM, scale = cast(gradients[0].contiguous(), GRADIENT)
        of_x = product((gradient_NM, scale), _transposed(cast(weight_MK, FORWARD)), dtype)
        of_weight = product(_transposed((gradient_NM, scale)), _transposed((x_NK, x_scale)), dtype)
        return of_x, of_weight, gradients[0].sum(0) if ctx.has_bias else None


def _transposed(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return transposed(x[0]), x[1]


class ScaledLinear(nn.Linear):
    """A linear layer whose products are `ScaledProduct`."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = ScaledProduct.apply(x.flatten(0, -2), self.weight, self.bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return out.view(*x.shape[:-1], -1)


def scale_products(layers: nn.Module) -> None:
    """Have every linear layer in `layers` multiply in 8 bits from now on; their parameters stay."""
    for module in layers.modules():
        if type(module) is nn.Linear:
            module.__class__ = ScaledLinear


def how_computed(device: torch.device) -> str:
    """How the factors are multiplied on `device`, in words for the record."""
    by = "by the device, forward ones with fast sums" if device.type == "cuda" else "emulated by the CPU"
    return f"layers' products in 8 bits, {by}"
