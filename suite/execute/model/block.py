"""One decoder block: its variants are chosen in the constructor from closed enums."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, relu

from reference_runs.run import Activation, Architecture, Norm, Recipe, Residual
from suite.execute.model.attention import Attention, TopQueryAttention


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")


def _fast_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), in the form whose exponentials cannot overflow in fp16 (CodeGeeX, PanGu-alpha)."""
    size = x.abs()
    return x / (1 + torch.exp(-1.702 * size)) * torch.exp(0.851 * (x - size))


# of a gated one: what the gate passes through
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.FAST_GELU: _fast_gelu,
    Activation.RELU: relu,
    Activation.GEGLU: gelu,
}


def layer_norm(architecture: Architecture) -> nn.LayerNorm:
    """LayerNorm over hidden, with the architecture's choice of biases."""
    return nn.LayerNorm(architecture.hidden, eps=architecture.norm_epsilon, bias=architecture.biases)


class FeedForward(nn.Module):
    """Expansion, activation, contraction.

    A gated activation has both expansions in one matrix, unit by unit: its rows are [F, 2], gate and gated.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, width, bias = architecture.hidden, architecture.ffn_hidden, architecture.biases
        self.gated = architecture.activation.gated
        self.activation = ACTIVATIONS[architecture.activation]
        self.expansion = nn.Linear(hidden, (2 if self.gated else 1) * width, bias=bias)
        self.contraction = nn.Linear(width, hidden, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTF = self.expansion(x_BTD)
        if self.gated:
            gate_BTF, gated_BTF = x_BTF.unflatten(-1, (-1, 2)).unbind(-1)
            x_BTF = self.activation(gate_BTF) * gated_BTF
        else:
            x_BTF = self.activation(x_BTF)
        out: Tensor = self.contraction(x_BTF)
        return out


class Block(nn.Module):
    """Pre-LayerNorm attention and feed-forward part on a residual stream, one after the other or side by side.

    Args:
        top_query: whether the queries come from elsewhere; the last argument of the forward pass is then query_BTD in
            place of rotation_2TR.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, *, top_query: bool = False) -> None:
        super().__init__()
        self.dropout = recipe.hidden_dropout
        self.parallel = architecture.residual is Residual.PARALLEL
        self.attention_norm = layer_norm(architecture)
        self.attention = TopQueryAttention(architecture, recipe) if top_query else Attention(architecture, recipe)
        self.feed_forward_norm = layer_norm(architecture)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, position: Tensor | None) -> Tensor:
        attended = self.attention(self.attention_norm(x_BTD), bias_HTS, position)
        middle = x_BTD + dropout(attended, self.dropout, self.training)
        fed = self.feed_forward(self.feed_forward_norm(x_BTD if self.parallel else middle))
        return middle + dropout(fed, self.dropout, self.training)


class DeepNormBlock(nn.Module):
    """Attention, then feed-forward part: each LayerNorm(alpha x + f(x)), alpha = sqrt(2 L), L layers in the model.

    Source: Zeng et al. 2022, arXiv 2210.02414, section 2.1. Wang et al. 2022 (arXiv 2203.00555) have (2 L)^(1/4) for
    decoders.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, *, top_query: bool = False) -> None:
        super().__init__()
        assert not top_query
        self.dropout = recipe.hidden_dropout
        self.alpha = math.sqrt(2 * architecture.layers)
        self.attention = Attention(architecture, recipe)
        self.attention_norm = layer_norm(architecture)
        self.feed_forward = FeedForward(architecture)
        self.feed_forward_norm = layer_norm(architecture)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        attended = dropout(self.attention(x_BTD, bias_HTS, rotation_2TR), self.dropout, self.training)
        middle = self.attention_norm(self.alpha * x_BTD + attended)
        fed = dropout(self.feed_forward(middle), self.dropout, self.training)
        out: Tensor = self.feed_forward_norm(self.alpha * middle + fed)
        return out


BLOCKS: dict[Norm, type[Block] | type[DeepNormBlock]] = {Norm.PRE_LAYER_NORM: Block, Norm.DEEP_NORM: DeepNormBlock}
