"""One decoder block: its variants are chosen in the constructor from closed enums."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import dropout

from reference_runs.run import Architecture, Norm, Recipe, Residual
from suite.execute.model.attention import Attention
from suite.execute.model.experts import Experts
from suite.execute.model.latent_attention import LatentAttention
from suite.execute.model.torch_operations import NormModule, Operations

Hidden = Tensor | tuple[Tensor, Tensor]  # [B, T, D]; or the residual stream and the last branch, not yet added


def norm(architecture: Architecture) -> NormModule:
    """The norm over hidden: an RMSNorm or a LayerNorm, with the architecture's choice of gain and bias."""
    hidden, epsilon, gain = architecture.hidden, architecture.norm_epsilon, architecture.norm_gain
    if architecture.norm.root_mean_square:
        return nn.RMSNorm(hidden, eps=epsilon, elementwise_affine=gain)
    return nn.LayerNorm(hidden, eps=epsilon, elementwise_affine=gain, bias=architecture.bias.norm)


class FeedForward(nn.Module):
    """Expansion, activation, contraction.

    A gated activation has both expansions in one matrix, unit by unit: its rows are [F, 2], gate and gated.

    Attributes:
        through_gelu: computes all three of x and both layers' weight and bias; None: one after the other.
    """

    def __init__(self, architecture: Architecture, operations: Operations, *, width: int) -> None:
        super().__init__()
        hidden, bias = architecture.hidden, architecture.bias.feed_forward
        self.operations = operations
        self.expansion = nn.Linear(hidden, (2 if architecture.activation.gated else 1) * width, bias=bias)
        self.contraction = nn.Linear(width, hidden, bias=bias)
        self.through_gelu: Callable[..., Tensor] | None = None

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.through_gelu is not None:
            first, second = self.expansion, self.contraction
            return self.through_gelu(x_BTD, (first.weight, first.bias), (second.weight, second.bias))
        out: Tensor = self.contraction(self.operations.activated(self.expansion(x_BTD)))
        return out


def attention(
    architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
) -> Attention | LatentAttention:
    """The attention of a layer: with keys and values of its own, or from compressed states."""
    if architecture.key_value_rank is not None:
        return LatentAttention(architecture, recipe, operations, fused=fused)
    return Attention(architecture, recipe, operations, fused=fused, top_query=top_query)


def feed_forward(architecture: Architecture, operations: Operations) -> FeedForward | Experts:
    """The feed-forward part of a layer: one, or a mixture of experts with those that every token passes."""
    if architecture.experts is None:
        return FeedForward(architecture, operations, width=architecture.ffn_hidden)
    width = architecture.shared_experts * architecture.expert_width
    shared = FeedForward(architecture, operations, width=width) if width else None
    return Experts(architecture, operations, shared)


class PreNormBlock(nn.Module):
    """Attention and feed-forward part with norms in front, on a residual stream, one after the other or in parallel.

    In parallel they may share a norm (GPT-J, Falcon-7B).

    Attributes:
        leaves_sum: whether it returns the residual stream and its last branch apart, to be added where the next norm
            reads both. A block whose parts follow each other takes them so.
    """

    def __init__(
        self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
    ) -> None:
        super().__init__()
        self.leaves_sum = False
        self.dropout = recipe.hidden_dropout
        self.parallel = architecture.residual is Residual.PARALLEL
        self.operations = operations
        self.attention_norm = norm(architecture)
        self.attention = attention(architecture, recipe, operations, fused=fused, top_query=top_query)
        self.feed_forward_norm = None if architecture.shared_norm else norm(architecture)
        self.feed_forward = feed_forward(architecture, operations)

    def forward(self, x_BTD: Hidden, mask: Tensor, position: Tensor | None) -> Hidden:
        if isinstance(x_BTD, tuple):
            x_BTD, normal = self.operations.added_and_normalised(self.attention_norm, *x_BTD)
            return self._one_after_the_other(x_BTD, normal, mask, position)
        if self.feed_forward_norm is None:
            to_feed = self.operations.normalised(self.attention_norm, x_BTD)
            attended = self.attention(to_feed, mask, position)
            middle = x_BTD + dropout(attended, self.dropout, self.training)
        elif self.parallel:
            normal, other = self.operations.both_normalised(self.attention_norm, self.feed_forward_norm, x_BTD)
            attended = dropout(self.attention(normal, mask, position), self.dropout, self.training)
            middle, to_feed = x_BTD + attended, other()
        else:
            normal = self.operations.normalised(self.attention_norm, x_BTD)
            return self._one_after_the_other(x_BTD, normal, mask, position)
        return middle + dropout(self.feed_forward(to_feed), self.dropout, self.training)

    def _one_after_the_other(self, x_BTD: Tensor, normal_BTD: Tensor, mask: Tensor, position: Tensor | None) -> Hidden:
        assert self.feed_forward_norm is not None
        attended = dropout(self.attention(normal_BTD, mask, position), self.dropout, self.training)
        middle, to_feed = self.operations.added_and_normalised(self.feed_forward_norm, x_BTD, attended)
        fed = dropout(self.feed_forward(to_feed), self.dropout, self.training)
        return (middle, fed) if self.leaves_sum else middle + fed


class DeepNormBlock(nn.Module):
    """Attention, then feed-forward part: each LayerNorm(alpha x + f(x)), alpha = sqrt(2 L), L layers in the model.

    Source: Zeng et al. 2022, arXiv 2210.02414, section 2.1. Wang et al. 2022 (arXiv 2203.00555) have (2 L)^(1/4) for
    decoders.
    """

    def __init__(
        self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
    ) -> None:
        super().__init__()
        assert not top_query
        self.dropout = recipe.hidden_dropout
        self.alpha = math.sqrt(2 * architecture.layers)
        self.operations = operations
        self.attention = attention(architecture, recipe, operations, fused=fused, top_query=False)
        self.attention_norm = norm(architecture)
        self.feed_forward = feed_forward(architecture, operations)
        self.feed_forward_norm = norm(architecture)

    def forward(self, x_BTD: Tensor, mask: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        attended = dropout(self.attention(x_BTD, mask, rotation_2TR), self.dropout, self.training)
        middle = self.operations.normalised_sum(self.attention_norm, self.alpha, x_BTD, attended)
        fed = dropout(self.feed_forward(middle), self.dropout, self.training)
        return self.operations.normalised_sum(self.feed_forward_norm, self.alpha, middle, fed)


class OutputNormBlock(nn.Module):
    """Attention, then feed-forward part: each x + RMSNorm(f(x)), of what is added before it is.

    Source: OLMo team 2024, arXiv 2501.00656, section 2.2 (norms of the outputs, as Swin Transformer 2 has them).
    """

    def __init__(
        self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
    ) -> None:
        super().__init__()
        assert not top_query
        self.dropout = recipe.hidden_dropout
        self.operations = operations
        self.attention = attention(architecture, recipe, operations, fused=fused, top_query=False)
        self.attention_norm = norm(architecture)
        self.feed_forward = feed_forward(architecture, operations)
        self.feed_forward_norm = norm(architecture)

    def forward(self, x_BTD: Tensor, mask: Tensor, position: Tensor | None) -> Tensor:
        attended = self.operations.normalised(self.attention_norm, self.attention(x_BTD, mask, position))
        middle = x_BTD + dropout(attended, self.dropout, self.training)
        fed = self.operations.normalised(self.feed_forward_norm, self.feed_forward(middle))
        return middle + dropout(fed, self.dropout, self.training)


BLOCKS: dict[Norm, type[PreNormBlock] | type[DeepNormBlock] | type[OutputNormBlock]] = {
    Norm.PRE_LAYER_NORM: PreNormBlock,
    Norm.PRE_RMS_NORM: PreNormBlock,
    Norm.DEEP_NORM: DeepNormBlock,
    Norm.OUTPUT_RMS_NORM: OutputNormBlock,
}
