"""Multi-head self-attention: unfused, with softmax in fp32, or fused, which stores no scores.

`mask` is what the model's `Operations` make and take: PyTorch's is an fp32 score bias [H, T, S].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Architecture, QueryKeyNorm, Recipe
from suite.execute.model.packed_attention import packed_attention
from suite.execute.model.torch_operations import Operations


class Context(nn.Module):
    """Values weighted by the softmax of the scaled scores, [B, T, H * K]: what selective recomputation repeats.

    With grouped queries, q_BHTK is q_BGRTK: the R heads that share each of G keys and values. Of values of another size
    than keys, the context has theirs.

    Args:
        fused: one causal kernel that stores no scores. PyTorch chooses which. Flash kernels know one head size, so that
            narrower keys or values are padded with zeros. Queries of a part of the positions come with a mask.

    Attributes:
        recompute: whether the backward pass computes it again.
        packs: whether the gradients of queries, keys and values are one (see `packed_attention`).
        pads: whether it pads them. Without it only what is needed is multiplied, and PyTorch may store the scores.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool) -> None:
        super().__init__()
        self.value_head_dim = architecture.value_head_dim
        self.divisor = math.sqrt(architecture.head_dim) / (architecture.score_scale or 1)
        self.fused_head_dim = architecture.fused_head_dim
        self.grouped = architecture.kv_heads < architecture.heads
        self.dropout = recipe.attention_dropout
        self.operations = operations
        self.fused = fused
        self.recompute = False
        self.packs = False
        self.pads = True

    def forward(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
        weighted = self._fused if self.fused else self._unfused
        if self.recompute:
            context_BHTK = checkpoint(weighted, q_BHTK, k_BHSK, v_BHSK, mask, use_reentrant=False)
        else:
            context_BHTK = weighted(q_BHTK, k_BHSK, v_BHSK, mask)
        context: Tensor = context_BHTK.transpose(1, 2).flatten(2)
        return context

    def packed(self, packed_BTX: Tensor) -> Tensor:
        """The context of a fused projection's output [B, T, H * 3 * K], fused, causal and without dropout."""
        context_BHTK = packed_attention(packed_BTX, self.fused_head_dim, 1 / self.divisor)
        return context_BHTK.transpose(1, 2).flatten(2)

    def _fused(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
        probability = self.dropout if self.training else 0.0
        mask_TS = mask.squeeze(0) if mask.numel() else None
        if self.grouped:
            q_BHTK = q_BHTK.flatten(1, 2)
        if self.pads:
            q_BHTK, k_BHSK, v_BHSK = self._padded(q_BHTK), self._padded(k_BHSK), self._padded(v_BHSK)
        scale = 1 / self.divisor
        out_BHTK = scaled_dot_product_attention(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            attn_mask=mask_TS,
            dropout_p=probability,
            is_causal=mask_TS is None,
            scale=scale,
            enable_gqa=self.grouped,
        )
        return out_BHTK if self.value_head_dim is None else out_BHTK[..., : self.value_head_dim]

    def _padded(self, x_BHTK: Tensor) -> Tensor:
        lacking = self.fused_head_dim - x_BHTK.shape[-1]
        return pad(x_BHTK, (0, lacking)) if lacking else x_BHTK

    def _unfused(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
        if self.grouped:
            return self._of_groups(q_BHTK, k_BHSK, v_BHSK, mask)
        return torch.matmul(self._weights(torch.matmul(q_BHTK, k_BHSK.transpose(-1, -2)), mask), v_BHSK)

    def _of_groups(self, q_BGRTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: Tensor) -> Tensor:
        """The queries of all heads of a group in one product with its keys, which are not repeated for each head."""
        _, groups, heads, length, _ = q_BGRTK.shape
        scores_BGRTS = torch.matmul(q_BGRTK.flatten(2, 3), k_BGSK.transpose(-1, -2))
        weights_BHTS = self._weights(scores_BGRTS.unflatten(2, (heads, length)).flatten(1, 2), mask)
        weights_BGRTS = weights_BHTS.unflatten(1, (groups, heads)).flatten(2, 3)
        context_BHTK: Tensor = torch.matmul(weights_BGRTS, v_BGSK).unflatten(2, (heads, length)).flatten(1, 2)
        return context_BHTK

    def _weights(self, scores_BHTS: Tensor, mask: Tensor) -> Tensor:
        weights_BHTS = self.operations.attention_weights(scores_BHTS, self.divisor, mask)
        return dropout(weights_BHTS, self.dropout, self.training)


def _by_head(x: Tensor, parts: int, head_dim: int) -> tuple[Tensor, ...]:
    """The `parts` of a fused projection's output [B, T, H * parts * K], each [B, H, T, K]; H may be a part of all."""
    batch, length, _ = x.shape
    return x.view(batch, length, -1, parts, head_dim).permute(3, 0, 2, 1, 4).unbind(0)


def _by_group(x: Tensor, heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, G, R, T, K], keys and values [B, G, 1, T, K] of a fused projection's output [B, T, G * (R + 2) * K].

    Args:
        heads: R, that share a key and a value; of the G groups there may be a part.
    """
    batch, length, _ = x.shape
    x_BGPTK = x.view(batch, length, -1, heads + 2, head_dim).permute(0, 2, 3, 1, 4)
    queries, keys, values = x_BGPTK.split((heads, 1, 1), dim=2)
    return queries, keys, values


class Attention(nn.Module):
    """Self-attention with a fused query, key, value projection, head by head: its rows are [H, 3, K].

    With grouped queries they are [G, R + 2, K]: of each group its R queries, its key, its value, as Megatron has them.

    With `top_query` the queries come from elsewhere: rows of `query` are [H, K], of `key_value` [G, 2, K].
    Source: Zeng et al. 2021, PanGu-alpha, arXiv 2104.12369, section 2.3 (query layer).

    Attributes:
        gathered: keys or values of all context-parallel ranks, of this rank's; None where a rank has whole sequences.
    """

    def __init__(
        self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool, top_query: bool
    ) -> None:
        super().__init__()
        self.head_dim = architecture.head_dim
        self.group = architecture.heads // architecture.kv_heads
        self.operations = operations
        self.top_query = top_query
        hidden, bias = architecture.hidden, architecture.bias
        queries, keys = architecture.query_width, architecture.kv_heads * architecture.head_dim
        if top_query:
            self.query = nn.Linear(hidden, queries, bias=bias.attention)
            self.key_value = nn.Linear(hidden, 2 * keys, bias=bias.attention)
        else:
            self.query_key_value = nn.Linear(hidden, queries + 2 * keys, bias=bias.attention)
        self.by_projection = architecture.query_key_norm is QueryKeyNorm.PROJECTION
        widths = {
            QueryKeyNorm.NONE: (None, None),
            QueryKeyNorm.HEAD: (self.head_dim, self.head_dim),
            QueryKeyNorm.PROJECTION: (queries, keys),
        }[architecture.query_key_norm]
        self.query_norm, self.key_norm = (
            nn.RMSNorm(width, eps=architecture.norm_epsilon) if width else None for width in widths
        )
        self.projection = nn.Linear(queries, hidden, bias=bias.projection)
        self.context = Context(architecture, recipe, operations, fused=fused)
        self.gathered: Callable[[Tensor], Tensor] | None = None

    def forward(self, x_BTD: Tensor, mask: Tensor, position: Tensor | None) -> Tensor:
        """Args: position: query_BTD with `top_query`, otherwise rotation_2TR."""
        if self.top_query:
            (q_BHTK,) = _by_head(self.query(position), 1, self.head_dim)
            k_BHSK, v_BHSK = _by_head(self.key_value(x_BTD), 2, self.head_dim)
            if self.group > 1:
                q_BHTK = q_BHTK.unflatten(1, (-1, self.group))
        else:
            fused = self.query_key_value(x_BTD)
            if self.context.packs:
                packed: Tensor = self.projection(self.context.packed(fused))
                return packed
            split = (
                _by_head(fused, 3, self.head_dim) if self.group == 1 else _by_group(fused, self.group, self.head_dim)
            )
            q_BHTK, k_BHSK, v_BHSK = split
        if self.query_norm is not None and self.key_norm is not None:
            q_BHTK, k_BHSK = self._normed(self.query_norm, q_BHTK), self._normed(self.key_norm, k_BHSK)
        if not self.top_query and position is not None:
            q_BHTK, k_BHSK = self.operations.turned(q_BHTK, k_BHSK, position)
        if not self.top_query and self.group > 1:
            k_BHSK, v_BHSK = k_BHSK.flatten(1, 2), v_BHSK.flatten(1, 2)
        if self.gathered is not None:
            k_BHSK = self.gathered(k_BHSK)
            v_BHSK = self.gathered(v_BHSK)
        out: Tensor = self.projection(self.context(q_BHTK, k_BHSK, v_BHSK, mask))
        return out

    def _normed(self, norm: nn.RMSNorm, x_BHTK: Tensor) -> Tensor:
        """Queries or keys, [B, H, T, K] or [B, G, R, T, K], normed over each head or over all of them together."""
        if not self.by_projection:
            return self.operations.normalised(norm, x_BHTK)
        x_BTHK = x_BHTK.movedim(-2, 1)
        normed: Tensor = self.operations.normalised(norm, x_BTHK.flatten(2)).unflatten(2, x_BTHK.shape[2:])
        return normed.movedim(1, -2)
