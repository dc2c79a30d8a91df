"""Multi-head self-attention, unfused as in the recorded runs: scores, softmax in fp32, context."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from reference_runs.run import Architecture, Recipe
from suite.execute.model.position import rotated


class Attention(nn.Module):
    """Self-attention with a fused query, key, value projection."""

    def __init__(self, architecture: Architecture, recipe: Recipe) -> None:
        super().__init__()
        self.heads = architecture.heads
        self.head_dim = architecture.head_dim
        self.dropout = recipe.attention_dropout
        hidden, bias = architecture.hidden, architecture.biases
        self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.projection = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x_BTD: Tensor, bias_HTS: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        batch, length, hidden = x_BTD.shape
        qkv = self.query_key_value(x_BTD).view(batch, length, 3, self.heads, self.head_dim)
        q_BHTK, k_BHSK, v_BHSK = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if rotation_2TR is not None:
            q_BHTK, k_BHSK = rotated(q_BHTK, rotation_2TR), rotated(k_BHSK, rotation_2TR)
        scores_BHTS = torch.matmul(q_BHTK, k_BHSK.transpose(-1, -2))
        weights_BHTS = torch.softmax(scores_BHTS.float() / math.sqrt(self.head_dim) + bias_HTS, dim=-1)
        weights_BHTS = dropout(weights_BHTS.to(v_BHSK.dtype), self.dropout, self.training)
        context_BTD = torch.matmul(weights_BHTS, v_BHSK).transpose(1, 2).reshape(batch, length, hidden)
        out: Tensor = self.projection(context_BTD)
        return out
