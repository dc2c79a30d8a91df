"""One decoder block: its variants are chosen in the constructor from closed enums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, relu

from reference_runs.run import Activation, Architecture, Norm, Recipe, Residual
from suite.execute.model.attention import Attention


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


def _fast_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), in the form whose exponentials cannot overflow in fp16 (CodeGeeX, PanGu-alpha)."""
    size = x.abs()
    return x / (1 + torch.exp(-1.702 * size)) * torch.exp(0.851 * (x - size))


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.FAST_GELU: _fast_gelu,
    Activation.RELU: relu,
}


def layer_norm(architecture: Architecture) -> nn.LayerNorm:
    """LayerNorm over hidden, with the architecture's choice of biases."""
    return nn.LayerNorm(architecture.hidden, eps=architecture.norm_epsilon, bias=architecture.biases)


class FeedForward(nn.Module):
    """Expansion, activation, contraction."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, width, bias = architecture.hidden, architecture.ffn_hidden, architecture.biases
        self.activation = ACTIVATIONS[architecture.activation]
        self.expansion = nn.Linear(hidden, width, bias=bias)
        self.contraction = nn.Linear(width, hidden, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.contraction(self.activation(self.expansion(x_BTD)))
        return out


class Block(nn.Module):
    """Pre-LayerNorm attention and feed-forward part on a residual stream, one after the other or side by side."""

    def __init__(self, architecture: Architecture, recipe: Recipe) -> None:
        super().__init__()
        assert architecture.norm is Norm.PRE_LAYER_NORM
        self.dropout = recipe.hidden_dropout
        self.parallel = architecture.residual is Residual.PARALLEL
        self.attention_norm = layer_norm(architecture)
        self.attention = Attention(architecture, recipe)
        self.feed_forward_norm = layer_norm(architecture)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        attended = self.attention(self.attention_norm(x_BTD), bias_HTS, rotation_2TR)
        middle = x_BTD + dropout(attended, self.dropout, self.training)
        fed = self.feed_forward(self.feed_forward_norm(x_BTD if self.parallel else middle))
        return middle + dropout(fed, self.dropout, self.training)
