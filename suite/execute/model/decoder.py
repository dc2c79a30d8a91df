"""The decoder: embedding, blocks, last norm, head and loss; or a chunk of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from reference_runs.layout import Recomputation
from reference_runs.run import Architecture, Mask, Norm, Position, Recipe
from suite.execute.model.attention import Attention, Context
from suite.execute.model.block import BLOCKS, Hidden, PreNormBlock, norm
from suite.execute.model.experts import Experts
from suite.execute.model.latent_attention import LatentAttention
from suite.execute.model.position import DealtPositions, dealt_positions, rotation
from suite.execute.model.scaled_products import scale_products
from suite.execute.model.torch_operations import Operations, TorchOperations


class SharedInputs(NamedTuple):
    """Inputs that all layers of a chunk share: mask or bias of the scores, and rotation where there is one."""

    mask: Tensor
    turn: Tensor | None


class Decoder(nn.Module):
    """Maps tokens [B, T] to logits [B, T, V], or with targets [B, T] to their mean loss.

    A chunk has some of the layers, under their numbers in the whole model. Without the `first` one it takes hidden
    states [B, T, D] in place of tokens; without the `last` one it returns hidden states. Where the mask has a prefix,
    the forward pass takes positions_BT and seen_B2S (see `prefix_bias`); where it has documents, documents_BT (see
    `score_bias`). A top-query layer comes after the final norm, and takes its queries from a table of its own.

    Args:
        operations: what computes everything but matrix products; None: PyTorch's own operators.
        fused_attention: whether attention is one kernel that stores no scores: causal, without ALiBi.
        layers: numbers of the layers; None: all of them.
        first, last: whether embedding, and final norm with head, belong to it.
        across_blocks: whether the sum at the end of a block is computed with the norm that follows it.
        packed_gradients: whether attention, which is fused, gives one gradient of queries, keys and values.

    Attributes:
        heads: those whose scores are computed here.
        routers: of the layers with experts, by their number.
        sequence_part: index and number of equal parts of the sequence, of the hidden states between the blocks.
        context_part: index and number of the context-parallel ranks that a sequence is dealt to (see `dealt`).
    """

    def __init__(
        self,
        architecture: Architecture,
        recipe: Recipe,
        operations: Operations | None = None,
        *,
        fused_attention: bool = False,
        layers: range | None = None,
        first: bool = True,
        last: bool = True,
        across_blocks: bool = False,
        packed_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.operations = TorchOperations(architecture) if operations is None else operations
        has_plain_mask = architecture.mask is Mask.CAUSAL and architecture.position is not Position.ALIBI
        assert has_plain_mask or not fused_attention
        self.fused_attention = fused_attention
        self.heads = slice(0, architecture.heads)
        self.sequence_part = (0, 1)
        self.context_part = (0, 1)
        self.group = 0
        self.dropout = recipe.embedding_dropout
        self.gradient_share = recipe.embedding_gradient_shrink
        rows, hidden = architecture.padded_vocabulary, architecture.hidden
        positions = architecture.sequence + architecture.extra_positions
        learned = architecture.position is Position.LEARNED
        self.embedding = nn.Embedding(rows, hidden) if first else None
        self.position = nn.Embedding(positions, hidden) if first and learned else None
        self.embedding_norm = norm(architecture) if first and architecture.embedding_norm else None
        top = architecture.layers - 1 if architecture.top_query_layer else None
        block = BLOCKS[architecture.norm]
        numbers = range(architecture.layers) if layers is None else layers
        self.blocks = nn.ModuleDict()
        for n in numbers:
            is_top, shape = n == top, architecture.of_dense_layers if n < architecture.dense_layers else architecture
            self.blocks[str(n)] = block(shape, recipe, self.operations, fused=fused_attention, top_query=is_top)
        if across_blocks:
            for layer in self.blocks.values():
                assert isinstance(layer, PreNormBlock)
                layer.leaves_sum = True
        if recipe.product_format.casts:
            scale_products(self.blocks)
        for context in self.contexts:
            context.packs = packed_gradients
        self.final_norm = norm(architecture) if last else None
        self.query_position = nn.Embedding(architecture.sequence, hidden) if last and top is not None else None
        self.head = nn.Linear(hidden, rows, bias=architecture.bias.head) if last else None
        parts = {int(n): block.feed_forward for n, block in self.blocks.items()}
        self.routers = {n: part.router for n, part in parts.items() if isinstance(part, Experts)}
        self.upstream = 1.0
        self.tie()
        self.loss = self.operations.loss()

    @property
    def upstream(self) -> float:
        """The gradient that the loss will get: the loss scale over the number of micro-batches."""
        return self._upstream

    @upstream.setter
    def upstream(self, gradient: float) -> None:
        self._upstream = gradient
        for router in self.routers.values():
            router.statistics.upstream = gradient

    def tie(self) -> None:
        """Share the embedding with the head, if they are tied and both are here."""
        if self.architecture.tied_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    @property
    def contexts(self) -> list[Context]:
        """Part of each layer's attention that weighs the values."""
        return [cast(Attention | LatentAttention, block.attention).context for block in self.blocks.values()]

    def recompute(self, recomputation: Recomputation, *, checkpoint_layers: int = 1) -> None:
        """Choose what the backward pass computes again. Full: all, in groups of `checkpoint_layers` layers."""
        self.group = checkpoint_layers if recomputation is Recomputation.FULL else 0
        for context in self.contexts:
            context.recompute = recomputation is Recomputation.SELECTIVE

    def forward(
        self,
        x: Tensor,
        targets_BT: Tensor | None = None,
        *,
        positions_BT: Tensor | None = None,
        seen_B2S: Tensor | None = None,
        documents_BT: Tensor | None = None,
    ) -> Tensor:
        length = self.whole_length(x)
        dealt = self.dealt(length, x.device)
        if self.embedding is not None:
            x = self.embedded(x, dealt)
        given = {"positions_BT": positions_BT, "seen_B2S": seen_B2S, "documents_BT": documents_BT}
        shared = self.shared(length, dealt, x.device, **given)
        return self.headed(self._through_all(x, shared), targets_BT)

    def whole_length(self, x: Tensor) -> int:
        """Positions of a whole sequence, of which `x`, tokens or hidden states, may be this rank's part."""
        return self.architecture.sequence if self.embedding is None else x.shape[1] * self.context_part[1]

    def dealt(self, length: int, device: torch.device) -> DealtPositions | None:
        """The positions that are here, where a sequence is dealt to several ranks."""
        rank, ranks = self.context_part
        return dealt_positions(length=length, rank=rank, ranks=ranks, device=device) if ranks > 1 else None

    def shared(
        self,
        length: int,
        dealt: DealtPositions | None,
        device: torch.device,
        *,
        positions_BT: Tensor | None = None,
        seen_B2S: Tensor | None = None,
        documents_BT: Tensor | None = None,
    ) -> SharedInputs:
        """Mask and rotation, for the layers.

        Args:
            length: of whole sequences.
        """
        if self.fused_attention and dealt is None:
            mask = torch.empty(0, device=device)
        else:
            mask = self.operations.mask(
                heads=self.heads,
                length=length,
                device=device,
                seen_B2S=seen_B2S,
                documents_BT=documents_BT,
                positions=dealt,
            )
        if dealt is not None:
            positions = dealt.queries_T
        else:
            positions = torch.arange(length, device=device) if positions_BT is None else positions_BT
        return SharedInputs(mask, rotation(self.architecture, positions))

    def through_layers(self, x_BTD: Tensor, shared: SharedInputs) -> Tensor:
        """All layers that are here, one after the other."""
        out = self._through_all(x_BTD, shared)
        return out[0] + out[1] if isinstance(out, tuple) else out

    def _through_all(self, x_BTD: Hidden, shared: SharedInputs) -> Hidden:
        layers: list[Callable[[Any, Tensor, Tensor | None], Hidden]] = list(self.blocks.values())
        if self.query_position is not None:
            layers[-1] = self._top_query_layer
        for first in range(0, len(layers), self.group or 1):
            group = layers[first : first + (self.group or 1)]
            if self.group:
                x_BTD = checkpoint(_through, group, x_BTD, *shared, use_reentrant=False)
            else:
                x_BTD = _through(group, x_BTD, *shared)
        return x_BTD

    def headed(self, x_BTD: Hidden, targets_BT: Tensor | None) -> Tensor:
        """Final norm, and logits or loss; the hidden states themselves where the head is not here."""
        if self.final_norm is None or self.head is None:
            return x_BTD[0] + x_BTD[1] if isinstance(x_BTD, tuple) else x_BTD
        if isinstance(x_BTD, tuple):
            _, x_BTD = self.operations.added_and_normalised(self.final_norm, *x_BTD)
        elif self.query_position is None:
            x_BTD = self.operations.normalised(self.final_norm, x_BTD)
        if targets_BT is None:
            return cast(Tensor, self.head(x_BTD))
        out: Tensor = self.loss(self.head, x_BTD, targets_BT, self.upstream)
        return out

    def _top_query_layer(self, x_BTD: Tensor, mask: Tensor, _: Tensor | None) -> Tensor:
        assert self.final_norm is not None
        assert self.query_position is not None
        x_BTD = self.operations.normalised(self.final_norm, x_BTD)
        query_TD = self.query_position.weight[: x_BTD.shape[1] * self.sequence_part[1]]
        query_BTD = query_TD.expand(x_BTD.shape[0], -1, -1).contiguous()  # a view has a product for each sample
        out: Tensor = self.blocks[str(self.architecture.layers - 1)](x_BTD, mask, query_BTD)
        return out

    def embedded(self, tokens_BT: Tensor, dealt: DealtPositions | None) -> Tensor:
        """Hidden states of tokens, where the embedding is here."""
        assert self.embedding is not None
        x_BTD = self.embedding(tokens_BT)
        if self.gradient_share is not None:
            x_BTD = x_BTD * self.gradient_share + x_BTD.detach() * (1 - self.gradient_share)
        if self.architecture.scaled_embedding:
            x_BTD = x_BTD * math.sqrt(self.architecture.hidden)
        if self.position is not None:
            first = self.architecture.extra_positions
            part, parts = self.sequence_part
            if dealt is None:
                x_BTD = x_BTD + self.position.weight[first : first + tokens_BT.shape[1]].chunk(parts)[part]
            else:
                x_BTD = x_BTD + self.position((dealt.queries_T + first).chunk(parts)[part])
        if self.embedding_norm is not None:
            x_BTD = self.operations.normalised(self.embedding_norm, x_BTD)
        return dropout(x_BTD, self.dropout, self.training)


def _through(
    layers: list[Callable[[Any, Tensor, Tensor | None], Hidden]], x_BTD: Hidden, mask: Tensor, turn: Tensor | None
) -> Hidden:
    for layer in layers:
        x_BTD = layer(x_BTD, mask, turn)
    return x_BTD


def initialise(model: Decoder, recipe: Recipe, *, seed: int) -> None:
    """Draw the weights as recorded, see `deviation`; biases 0, gains of norms 1.

    Each tensor has its own generator, seeded by its name in the whole model, on the CPU: a chunk draws what the whole
    model would.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            else:
                copied = name == "head.weight" and model.architecture.tied_embeddings
                named = "embedding.weight" if copied else name
                digest = hashlib.sha256(f"{seed} {named}".encode()).digest()
                number = int.from_bytes(digest[:8], "little", signed=True)
                parameter.normal_(generator=torch.Generator().manual_seed(number))
                parameter.mul_(deviation(name, model.architecture, recipe))


def deviation(name: str, architecture: Architecture, recipe: Recipe) -> Tensor:
    """Standard deviation of the normal distribution that the weight `name` is drawn from, broadcast over its rows.

    `init_std`; where the recipe scales with depth, with L layers:
        projection, contraction     init_std / sqrt(2 L)
        with DeepNorm               Xavier's sqrt(2 / (rows + columns)) of one matrix, times (2 L)^(-1/2), for the
                                    value rows, projection, both expansions and contraction: sqrt(1 / (L (r + c)))
    Sources: Shoeybi et al. 2019, arXiv 1909.08053, section 4.1; Zeng et al. 2022, arXiv 2210.02414, section 2.1.
    """
    kind = name.removesuffix(".weight").rpartition(".")[2]
    plain = torch.tensor(recipe.init_std)
    if not recipe.residual_init_scaled:
        return plain
    if architecture.norm is not Norm.DEEP_NORM:
        return plain / math.sqrt(2 * architecture.layers) if kind in ("projection", "contraction") else plain
    hidden, width = (
        architecture.hidden,
        architecture.ffn_hidden if ".experts." not in name else architecture.expert_width,
    )
    keys = architecture.kv_heads * architecture.head_dim
    in_attention = math.sqrt(1 / (architecture.layers * (architecture.query_width + hidden)))
    if kind == "query_key_value":
        of_values = math.sqrt(1 / (architecture.layers * (hidden + keys)))
        queries_and_key = [recipe.init_std] * (architecture.heads // architecture.kv_heads + 1)
        parts = torch.tensor([*queries_and_key, of_values])
        return parts.repeat_interleave(architecture.head_dim).repeat(architecture.kv_heads)[:, None]
    in_feed_forward = math.sqrt(1 / (architecture.layers * (hidden + width)))
    scaled = {"projection": in_attention, "expansion": in_feed_forward, "contraction": in_feed_forward}
    return torch.tensor(scaled.get(kind, recipe.init_std))
