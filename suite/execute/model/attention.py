"""Multi-head self-attention: unfused, with softmax in fp32, or fused, which stores no scores.

`mask` is what the model's `Operations` make and take: PyTorch's is an fp32 score bias [H, T, S].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Architecture, Recipe
from suite.execute.model.torch_operations import Operations


class Context(nn.Module):
    """Values weighted by the softmax of the scaled scores, [B, T, H * K]: what selective recomputation repeats.

    Args:
        fused: one causal kernel that stores no scores. PyTorch chooses which.

    Attributes:
        recompute: whether the backward pass computes it again.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        self.dropout = recipe.attention_dropout
        self.operations = operations
        self.fused = fused
        self.recompute = False

    def forward(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
        weighted = self._fused if self.fused else self._unfused
        if self.recompute:
            context_BHTK = checkpoint(weighted, q_BHTK, k_BHSK, v_BHSK, mask, use_reentrant=False)
        else:
            context_BHTK = weighted(q_BHTK, k_BHSK, v_BHSK, mask)
        context: Tensor = context_BHTK.transpose(1, 2).flatten(2)
        return context

    def _fused(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, _mask: Tensor) -> Tensor:
        probability = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, dropout_p=probability, is_causal=True)

    def _unfused(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
        scores_BHTS = torch.matmul(q_BHTK, k_BHSK.transpose(-1, -2))
        weights_BHTS = self.operations.attention_weights(scores_BHTS, self.head_dim, mask)
        weights_BHTS = dropout(weights_BHTS, self.dropout, self.training)
        return torch.matmul(weights_BHTS, v_BHSK)


def _by_head(x: Tensor, parts: int, head_dim: int) -> tuple[Tensor, ...]:
    """The `parts` of a fused projection's output [B, T, H * parts * K], each [B, H, T, K]; H may be a part of all."""
    batch, length, _ = x.shape
    return x.view(batch, length, -1, parts, head_dim).permute(3, 0, 2, 1, 4).unbind(0)


class Attention(nn.Module):
    """Self-attention with a fused query, key, value projection, head by head: its rows are [H, 3, K].

    With `top_query` the queries come from elsewhere: rows of `query` are [H, K], of `key_value` [H, 2, K].
    Source: Zeng et al. 2021, PanGu-alpha, arXiv 2104.12369, section 2.3 (query layer).
    """

    def __init__(
        self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
    ) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        self.operations = operations
        self.top_query = top_query
        hidden, bias = architecture.hidden, architecture.biases
        if top_query:
            self.query = nn.Linear(hidden, hidden, bias=bias)
            self.key_value = nn.Linear(hidden, 2 * hidden, bias=bias)
        else:
            self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.projection = nn.Linear(hidden, hidden, bias=bias)
        self.context = Context(architecture, recipe, operations, fused=fused)

    def forward(self, x_BTD: Tensor, mask: Tensor, position: Tensor | None) -> Tensor:
        """Args: position: query_BTD with `top_query`, otherwise rotation_2TR."""
        if self.top_query:
            (q_BHTK,) = _by_head(self.query(position), 1, self.head_dim)
            k_BHSK, v_BHSK = _by_head(self.key_value(x_BTD), 2, self.head_dim)
        else:
            q_BHTK, k_BHSK, v_BHSK = _by_head(self.query_key_value(x_BTD), 3, self.head_dim)
            if position is not None:
                q_BHTK, k_BHSK = self.operations.turned(q_BHTK, k_BHSK, position)
        out: Tensor = self.projection(self.context(q_BHTK, k_BHSK, v_BHSK, mask))
        return out
