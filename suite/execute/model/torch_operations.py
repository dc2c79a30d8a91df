"""Operations of a decoder besides matrix multiplications, by PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from reference_runs.run import Activation, Architecture, Mask
from suite.execute.model.loss import ChunkedCrossEntropy, CrossEntropy
from suite.execute.model.position import DealtPositions, prefix_bias, rotated, score_bias
from suite.job.options import DEFAULT_OPTIONS, TrainingOptions

NormModule = nn.LayerNorm | nn.RMSNorm


class Operations(Protocol):
    """Operators that memory bandwidth limits: PyTorch's here, Triton's in `triton_operations`."""

    def mask(
        self,
        *,
        heads: slice,
        length: int,
        device: torch.device,
        seen_B2S: Tensor | None,
        documents_BT: Tensor | None,
        positions: DealtPositions | None,
    ) -> Tensor:
        """The mask that `attention_weights` takes, for the `heads` and positions that are computed here."""

    def normalised(self, norm: NormModule, x: Tensor) -> Tensor:
        """The norm of x."""

    def both_normalised(self, first: NormModule, second: NormModule, x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """A norm of x, and a function that returns another one when it is needed, later."""

    def added_and_normalised(self, norm: NormModule, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream x + branch, and its norm."""

    def normalised_sum(self, norm: NormModule, alpha: float, x: Tensor, branch: Tensor) -> Tensor:
        """The norm of alpha x + branch."""

    def activated(self, expanded_BTF: Tensor) -> Tensor:
        """The activation of the expansion's output; a gated one halves its width, see `FeedForward`."""

    def turned(self, q_BHTK: Tensor, k_BHTK: Tensor, rotation_2TR: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys at their positions."""

    def attention_weights(self, scores_BHTS: Tensor, divisor: float, mask: Tensor) -> Tensor:
        """Softmax of the scores over `divisor`, masked, computed in fp32, in the scores' dtype."""

    def loss(self) -> nn.Module:
        """Mean cross-entropy of the learned targets, in nats a token: of head, x_BTD, targets_BT, upstream gradient."""


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


def _fast_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), in the form whose exponentials cannot overflow in fp16 (CodeGeeX, PanGu-alpha)."""
    size = x.abs()
    return x / (1 + torch.exp(-1.702 * size)) * torch.exp(0.851 * (x - size))


def _relu_squared(x: Tensor) -> Tensor:
    positive = relu(x)
    return positive * positive


# of a gated one: the gate's
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.FAST_GELU: _fast_gelu,
    Activation.RELU: relu,
    Activation.RELU_SQUARED: _relu_squared,
    Activation.GEGLU: gelu,
    Activation.GEGLU_TANH: _gelu_tanh,
    Activation.SWIGLU: silu,
}


class TorchOperations:
    """PyTorch's own operators.

    Args:
        script: whether they write into their inputs, and in how many parts the loss is computed: with a bias of the
            head in one.
    """

    def __init__(self, architecture: Architecture, script: TrainingOptions = DEFAULT_OPTIONS) -> None:
        self._architecture = architecture
        self._in_place = script.in_place
        self._loss_chunks = 1 if architecture.head_bias else script.loss_chunks
        self._fused_weights = None
        if script.cpp_operator:
            from suite.execute.model.cpp_softmax import attention_weights  # compiles at first

            self._fused_weights = attention_weights
        self._activation = ACTIVATIONS[architecture.activation]
        self._gated = architecture.activation.gated

    def mask(
        self,
        *,
        heads: slice,
        length: int,
        device: torch.device,
        seen_B2S: Tensor | None,
        documents_BT: Tensor | None,
        positions: DealtPositions | None,
    ) -> Tensor:
        if self._architecture.mask is Mask.PREFIX:
            assert seen_B2S is not None
            return prefix_bias(seen_B2S)
        return score_bias(
            self._architecture,
            heads=heads,
            length=length,
            device=device,
            positions=positions,
            documents_BT=documents_BT,
        )

    def normalised(self, norm: NormModule, x: Tensor) -> Tensor:
        out: Tensor = norm(x)
        return out

    def both_normalised(self, first: NormModule, second: NormModule, x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        return first(x), lambda: second(x)

    def added_and_normalised(self, norm: NormModule, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
        x = branch.add_(x) if self._in_place else x + branch  # autograd does not keep the output of a matrix
        return x, norm(x)

    def normalised_sum(self, norm: NormModule, alpha: float, x: Tensor, branch: Tensor) -> Tensor:
        out: Tensor = norm(alpha * x + branch)
        return out

    def activated(self, expanded_BTF: Tensor) -> Tensor:
        if not self._gated:
            return self._activation(expanded_BTF)
        gate_BTF, gated_BTF = expanded_BTF.unflatten(-1, (-1, 2)).unbind(-1)
        out: Tensor = self._activation(gate_BTF) * gated_BTF
        return out

    def turned(self, q_BHTK: Tensor, k_BHTK: Tensor, rotation_2TR: Tensor) -> tuple[Tensor, Tensor]:
        return rotated(q_BHTK, rotation_2TR), rotated(k_BHTK, rotation_2TR)

    def attention_weights(self, scores_BHTS: Tensor, divisor: float, mask: Tensor) -> Tensor:
        if self._fused_weights is not None:
            return self._fused_weights(scores_BHTS, mask, 1 / divisor)
        # no name for the wide scores: it would keep them beside the scaled ones, the biased ones and the weights
        if self._in_place:
            weights = torch.softmax(scores_BHTS.float().div_(divisor).add_(mask), dim=-1)
        else:
            weights = torch.softmax(scores_BHTS.float() / divisor + mask, dim=-1)
        return weights.to(scores_BHTS.dtype)

    def loss(self) -> nn.Module:
        return CrossEntropy() if self._loss_chunks == 1 else ChunkedCrossEntropy(self._loss_chunks)
