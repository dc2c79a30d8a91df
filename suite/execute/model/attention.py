"""Multi-head self-attention, unfused as in the recorded runs: scores, softmax in fp32, context."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Architecture, Recipe
from suite.execute.model.position import rotated


class Context(nn.Module):
    """Values weighted by the softmax of the scaled scores, [B, T, H * K]: what selective recomputation repeats.

    Attributes:
        recompute: whether the backward pass computes it again.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        self.dropout = recipe.attention_dropout
        self.recompute = False

    def forward(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias_HTS: Tensor) -> Tensor:
        if self.recompute:
            context_BHTK = checkpoint(self._weighted, q_BHTK, k_BHSK, v_BHSK, bias_HTS, use_reentrant=False)
        else:
            context_BHTK = self._weighted(q_BHTK, k_BHSK, v_BHSK, bias_HTS)
        context: Tensor = context_BHTK.transpose(1, 2).flatten(2)
        return context

    def _weighted(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias_HTS: Tensor) -> Tensor:
        scores_BHTS = torch.matmul(q_BHTK, k_BHSK.transpose(-1, -2))
        weights_BHTS = torch.softmax(scores_BHTS.float() / math.sqrt(self.head_dim) + bias_HTS, dim=-1)
        weights_BHTS = dropout(weights_BHTS.to(v_BHSK.dtype), self.dropout, self.training)
        return torch.matmul(weights_BHTS, v_BHSK)


def _by_head(x: Tensor, parts: int, head_dim: int) -> tuple[Tensor, ...]:
    """The `parts` of a fused projection's output [B, T, H * parts * K], each [B, H, T, K].

    It takes the number of heads from the output, which may hold a part of them.
    """
    batch, length, _ = x.shape
    return x.view(batch, length, -1, parts, head_dim).permute(3, 0, 2, 1, 4).unbind(0)


class Attention(nn.Module):
    """Self-attention with a fused query, key, value projection, head by head: its rows are [H, 3, K]."""

    def __init__(self, architecture: Architecture, recipe: Recipe) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        hidden, bias = architecture.hidden, architecture.biases
        self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.projection = nn.Linear(hidden, hidden, bias=bias)
        self.context = Context(architecture, recipe)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        q_BHTK, k_BHSK, v_BHSK = _by_head(self.query_key_value(x_BTD), 3, self.head_dim)
        if rotation_2TR is not None:
            q_BHTK, k_BHSK = rotated(q_BHTK, rotation_2TR), rotated(k_BHSK, rotation_2TR)
        out: Tensor = self.projection(self.context(q_BHTK, k_BHSK, v_BHSK, bias_HTS))
        return out


class TopQueryAttention(nn.Module):
    """Attention whose queries do not come from the hidden states: rows of `query` are [H, K], of `key_value` [H, 2, K].

    Source: Zeng et al. 2021, PanGu-alpha, arXiv 2104.12369, section 2.3 (query layer).
    """

    def __init__(self, architecture: Architecture, recipe: Recipe) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        hidden, bias = architecture.hidden, architecture.biases
        self.query = nn.Linear(hidden, hidden, bias=bias)
        self.key_value = nn.Linear(hidden, 2 * hidden, bias=bias)
        self.projection = nn.Linear(hidden, hidden, bias=bias)
        self.context = Context(architecture, recipe)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, query_BTD: Tensor) -> Tensor:
        (q_BHTK,) = _by_head(self.query(query_BTD), 1, self.head_dim)
        k_BHSK, v_BHSK = _by_head(self.key_value(x_BTD), 2, self.head_dim)
        out: Tensor = self.projection(self.context(q_BHTK, k_BHSK, v_BHSK, bias_HTS))
        return out
