"""The decoder: embedding, blocks, last norm, head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from reference_runs.run import Architecture, Position, Recipe
from suite.execute.model.block import Block, layer_norm
from suite.execute.model.position import rotation, score_bias


class Decoder(nn.Module):
    """Maps tokens [B, T] to logits [B, T, V].

    Args:
        recompute: keep only each block's input in the forward pass and compute the rest again in the backward pass.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, *, recompute: bool) -> None:
        super().__init__()
        self.architecture = architecture
        self.recompute = recompute
        self.dropout = recipe.embedding_dropout
        rows, hidden = architecture.padded_vocabulary, architecture.hidden
        self.embedding = nn.Embedding(rows, hidden)
        positions = architecture.sequence + architecture.extra_positions
        self.position = nn.Embedding(positions, hidden) if architecture.position is Position.LEARNED else None
        self.embedding_norm = layer_norm(architecture) if architecture.embedding_norm else None
        self.blocks = nn.ModuleList(Block(architecture, recipe) for _ in range(architecture.layers))
        self.final_norm = layer_norm(architecture)
        self.head = None if architecture.tied_embeddings else nn.Linear(hidden, rows, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        x_BTD = self.embedding(tokens_BT)
        if self.position is not None:
            first = self.architecture.extra_positions
            x_BTD = x_BTD + self.position.weight[first : first + length]
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        x_BTD = dropout(x_BTD, self.dropout, self.training)
        bias_HTS = score_bias(
            self.architecture.position,
            self.architecture.mask,
            heads=self.architecture.heads,
            length=length,
            device=tokens_BT.device,
        )
        rotation_2TR = rotation(self.architecture, length=length, device=tokens_BT.device)
        for block in self.blocks:
            if self.recompute:
                x_BTD = checkpoint(block, x_BTD, bias_HTS, rotation_2TR, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, bias_HTS, rotation_2TR)
        x_BTD = self.final_norm(x_BTD)
        return linear(x_BTD, self.embedding.weight if self.head is None else self.head.weight)


def initialise(model: Decoder, recipe: Recipe) -> None:
    """Draw the weights as recorded: normal with `init_std`, projections onto the residual stream divided by
    sqrt(2 layers) where the recipe says so, biases 0, LayerNorm gain 1. Uses torch's default generator, on the CPU,
    so that every rank draws the same."""
    residual_std = recipe.init_std
    if recipe.residual_init_scaled:
        residual_std /= math.sqrt(2 * model.architecture.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            else:
                residual = name.endswith(("projection.weight", "contraction.weight"))
                parameter.normal_(0.0, residual_std if residual else recipe.init_std)
