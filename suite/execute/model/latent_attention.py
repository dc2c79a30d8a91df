"""Multi-head latent attention: queries, and keys with values, are expanded from compressed states.

Letters besides the model's: C compressed width, R rotated dimensions of a head and N the others, E those N with the
size W of its values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reference_runs.run import Architecture, Recipe
from suite.execute.model.attention import Context
from suite.execute.model.torch_operations import Operations


class LatentAttention(nn.Module):
    """Self-attention whose keys and values come from one narrow state of a token, and its queries from another.

    The rotated part of the keys comes from the hidden state, and all heads share it. Rows of what makes queries are
    [H, R + N], of `key_value_compression` [C + R], of `key_value_expansion` [H, N + W].
    Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1, equations 9 to 19. There the rotated dimensions come last,
    and the released models rotate neighbours: both are permutations of rows.

    Attributes:
        gathered: keys or values of all context-parallel ranks, of this rank's; None where a rank has whole sequences.
        shared: the rotated part of the keys of every position, for this rank's heads; None: it is there already.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, operations: Operations, *, fused: bool) -> None:
        super().__init__()
        assert architecture.key_value_rank is not None
        assert architecture.rotary_dim is not None
        assert architecture.value_head_dim is not None
        hidden, rank, epsilon = architecture.hidden, architecture.query_rank, architecture.norm_epsilon
        self.head_dim = architecture.head_dim
        self.compressed, self.rotated = architecture.key_value_rank, architecture.rotary_dim
        self.value_head_dim = architecture.value_head_dim
        self.operations = operations
        if rank is None:
            self.query = nn.Linear(hidden, architecture.query_width, bias=False)
        else:
            self.query_compression = nn.Linear(hidden, rank, bias=False)
            self.query_compression_norm = nn.RMSNorm(rank, eps=epsilon)
            self.query_expansion = nn.Linear(rank, architecture.query_width, bias=False)
        self.compresses_queries = rank is not None
        self.key_value_compression = nn.Linear(hidden, self.compressed + self.rotated, bias=False)
        self.key_value_compression_norm = nn.RMSNorm(self.compressed, eps=epsilon)
        expanded = architecture.query_width - architecture.heads * self.rotated + architecture.context_width
        self.key_value_expansion = nn.Linear(self.compressed, expanded, bias=False)
        self.projection = nn.Linear(architecture.context_width, hidden, bias=False)
        self.context = Context(architecture, recipe, operations, fused=fused)
        self.gathered: Callable[[Tensor], Tensor] | None = None
        self.shared: Callable[[Tensor], Tensor] | None = None

    def forward(self, x_BTD: Tensor, mask: Tensor, rotation_2TR: Tensor | None) -> Tensor:
        assert rotation_2TR is not None
        q_BHTK = self._queries(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        compressed_BSC, shared_BSR = self.key_value_compression(x_BTD).split((self.compressed, self.rotated), dim=-1)
        if self.shared is not None:
            shared_BSR = self.shared(shared_BSR)
        q_BHTK, turned_B1SR = self.operations.turned(q_BHTK, shared_BSR.unsqueeze(1), rotation_2TR)
        k_BHSN, v_BHSW = self._expanded(compressed_BSC)
        k_BHSK = torch.cat([turned_B1SR.expand(-1, q_BHTK.shape[1], -1, -1), k_BHSN], dim=-1)
        del compressed_BSC, shared_BSR, turned_B1SR, k_BHSN
        if self.gathered is not None:
            k_BHSK, v_BHSW = self.gathered(k_BHSK), self.gathered(v_BHSW)
        out: Tensor = self.projection(self.context(q_BHTK, k_BHSK, v_BHSW, mask))
        return out

    def _queries(self, x_BTD: Tensor) -> Tensor:
        if not self.compresses_queries:
            queries: Tensor = self.query(x_BTD)
        else:
            compressed_BTC = self.query_compression(x_BTD)
            queries = self.query_expansion(self.operations.normalised(self.query_compression_norm, compressed_BTC))
        return queries

    def _expanded(self, compressed_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """The part of each head's keys that positions do not rotate, and the values."""
        normed_BSC = self.operations.normalised(self.key_value_compression_norm, compressed_BSC)
        widths = self.head_dim - self.rotated, self.value_head_dim
        expanded_BHSE = self.key_value_expansion(normed_BSC).unflatten(-1, (-1, sum(widths))).transpose(1, 2)
        k_BHSN, v_BHSW = expanded_BHSE.split(widths, dim=-1)
        return k_BHSN, v_BHSW
