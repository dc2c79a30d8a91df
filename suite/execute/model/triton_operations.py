"""Operations of a decoder besides matrix multiplications, by Triton kernels, or where none runs by their references."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from kernels.bias_activation import bias_activation
from kernels.geglu import geglu
from kernels.layer_norm import layer_norm
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.masked_softmax import masked_softmax
from kernels.operator import INTERPRETED
from kernels.parallel_layer_norms import parallel_layer_norms
from kernels.residual_layer_norm import residual_layer_norm
from kernels.residual_rms_norm import residual_rms_norm
from kernels.rms_norm import rms_norm
from kernels.rotary import rotary
from kernels.swiglu import swiglu
from reference_runs.run import Activation, Architecture, Mask, Position
from suite.execute.model.loss import NOT_LEARNED
from suite.execute.model.position import DealtPositions, alibi_slopes, rotated
from suite.execute.model.torch_operations import NormModule

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: partial(bias_activation, bias=None, activation="gelu"),
    Activation.GELU_TANH: partial(bias_activation, bias=None, activation="gelu_tanh"),
    Activation.FAST_GELU: partial(bias_activation, bias=None, activation="fast_gelu"),
    Activation.RELU: partial(bias_activation, bias=None, activation="relu"),
    Activation.RELU_SQUARED: partial(bias_activation, bias=None, activation="relu_squared"),
    Activation.GEGLU: partial(geglu, bias=None),
    Activation.GEGLU_TANH: partial(geglu, bias=None, tanh=True),
    Activation.SWIGLU: partial(swiglu, bias=None),
}


class ChunkedTritonCrossEntropy(nn.Module):
    """Mean cross-entropy of the learned targets, in nats a token, with logits of one chunk of tokens at a time.

    The forward pass computes the gradients, times `upstream`: in fp16 small ones would be lost before the loss scale.
    """

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, upstream: float) -> Tensor:
        return linear_cross_entropy(
            x_BTD.flatten(0, 1), head.weight, targets_BT.flatten(), ignore_index=NOT_LEARNED, scale=upstream
        )


class TritonOperations:
    """Triton kernels, each for several operators of `TorchOperations`; `check_kernels` says of which models.

    The mask is slopes [H] with ALiBi, `seen_B2S` with a prefix (see `prefix_bias`), and otherwise empty.
    """

    def __init__(self, architecture: Architecture) -> None:
        self._prefix = architecture.mask is Mask.PREFIX
        self._slopes = alibi_slopes(architecture.heads) if architecture.position is Position.ALIBI else None
        self._activation = ACTIVATIONS[architecture.activation]

    def mask(
        self,
        *,
        heads: slice,
        length: int,  # noqa: ARG002  # the protocol's
        device: torch.device,
        seen_B2S: Tensor | None,
        documents_BT: Tensor | None,
        positions: DealtPositions | None,
    ) -> Tensor:
        assert positions is None
        assert documents_BT is None
        if self._prefix:
            assert seen_B2S is not None
            return seen_B2S
        return torch.tensor([] if self._slopes is None else self._slopes[heads], device=device)

    def normalised(self, norm: NormModule, x: Tensor) -> Tensor:
        if isinstance(norm, nn.RMSNorm):
            assert norm.eps is not None
            return rms_norm(x, norm.weight, norm.eps)
        return layer_norm(x, norm.weight, norm.bias, norm.eps)

    def both_normalised(self, first: NormModule, second: NormModule, x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        if isinstance(first, nn.RMSNorm) or isinstance(second, nn.RMSNorm):
            return self.normalised(first, x), lambda: self.normalised(second, x)
        one, other = parallel_layer_norms(x, first.weight, first.bias, second.weight, second.bias, first.eps)
        return one, lambda: other

    def added_and_normalised(self, norm: NormModule, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(norm, nn.RMSNorm):
            assert norm.eps is not None
            normal, total = residual_rms_norm(x, branch, norm.weight, norm.eps)
            return total, normal
        normal, total = residual_layer_norm(x, branch, norm.weight, norm.bias, norm.eps, keep_sum=True)
        return total, normal

    def normalised_sum(self, norm: NormModule, alpha: float, x: Tensor, branch: Tensor) -> Tensor:
        assert isinstance(norm, nn.LayerNorm)
        return residual_layer_norm(x, branch, norm.weight, norm.bias, norm.eps, alpha=alpha)

    def activated(self, expanded_BTF: Tensor) -> Tensor:
        return self._activation(expanded_BTF)

    def turned(self, q_BHTK: Tensor, k_BHTK: Tensor, rotation_2TR: Tensor) -> tuple[Tensor, Tensor]:
        if q_BHTK.shape[-1] != k_BHTK.shape[-1]:  # latent attention's shared part of keys: the kernel knows one size
            return rotated(q_BHTK, rotation_2TR), rotated(k_BHTK, rotation_2TR)
        return rotary(q_BHTK, k_BHTK, rotation_2TR)

    def attention_weights(self, scores_BHTS: Tensor, divisor: float, mask: Tensor) -> Tensor:
        scale = 1 / divisor
        if self._prefix:
            return masked_softmax(scores_BHTS, scale, seen_B2S=mask)
        return masked_softmax(scores_BHTS, scale, causal=True, slopes_H=None if self._slopes is None else mask)

    def loss(self) -> nn.Module:
        return ChunkedTritonCrossEntropy()


def how_computed(device: torch.device) -> str:
    """Code that runs on `device` for `--kernels triton`, in words for the record."""
    if device.type == "cuda":
        return "Triton kernels"
    return "Triton kernels, interpreted" if INTERPRETED else "plain references of the Triton kernels: no GPU"
