"""Linear layers of blocks by cuBLASLt: GELU and gradients of biases in its GEMMs, weight gradients by tuned ones.

Kept for the backward pass is what `nn.Linear` and GELU keep. `kernels.linear_epilogues` needs Triton's package, and so
is imported where it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from reference_runs.run import Activation
from suite.execute.model.block import FeedForward
from suite.execute.model.decoder import Decoder
from suite.job.options import Optimization

MULTIPLE = 8  # of rows and columns of a weight: 16 bytes of 16-bit elements, which the library's fast kernels read


class EpilogueLinear(nn.Linear):
    """A linear layer whose gradients are computed by cuBLASLt.

    Attributes:
        product: of x, weight and bias.
    """

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


def fuse_gemms(chunks: Iterable[Decoder], optimizations: Sequence[Optimization], device: torch.device) -> None:
    """Have the linear layers in the blocks compute as the optimizations say, where the device can; parameters stay."""
    epilogues, tuned = Optimization.EPILOGUES in optimizations, Optimization.TUNED_GEMMS in optimizations
    if (epilogues or tuned) and not _why_not(device):
        for chunk in chunks:
            through_gelu = epilogues and chunk.architecture.activation is Activation.GELU_TANH
            fuse_layers(chunk.blocks, through_gelu=through_gelu, sums_biases=epilogues, tuned=tuned)


def fuse_layers(layers: nn.Module, *, through_gelu: bool, sums_biases: bool, tuned: bool) -> None:
    """Have the linear layers in `layers` compute by `kernels.linear_epilogues` from now on.

    Args:
        through_gelu: whether feed-forward parts are one: their activation must be GELU by tanh's approximation.
        sums_biases: whether the gradient of a bias is summed by the GEMM of the weight's.
        tuned: whether GEMMs are by the fastest of the library's algorithms.
    """
    from kernels.linear_epilogues import fused_linear, gelu_feed_forward

    for module in layers.modules():
        if type(module) is nn.Linear and _fits(module) and (tuned or (sums_biases and module.bias is not None)):
            module.__class__ = EpilogueLinear
            assert isinstance(module, EpilogueLinear)
            module.product = partial(fused_linear, fused=sums_biases, tuned=tuned)
        elif isinstance(module, FeedForward) and through_gelu and _fits(module.expansion):
            module.through_gelu = partial(gelu_feed_forward, tuned=tuned)


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0


def _why_not(device: torch.device) -> str:
    from kernels.linear_epilogues import why_not

    return why_not(device)


def how_computed(optimizations: Sequence[Optimization], device: torch.device) -> str:
    """How linear layers compute with the optimizations on `device`, in words for the record; empty without them."""
    words = {
        Optimization.EPILOGUES: "GELU and gradients of biases in cuBLASLt's epilogues",
        Optimization.TUNED_GEMMS: "weight gradients by the fastest of cuBLASLt's algorithms",
    }
    asked = [name for name in words if name in optimizations]
    if not asked:
        return ""
    if reason := _why_not(device):
        return f"without {', '.join(asked)}: {reason}"
    return "; ".join(words[name] for name in asked)
