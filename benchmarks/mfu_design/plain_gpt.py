"""A plain GPT-2 training script, as nanoGPT has it: fp32 weights, autocast, cross-entropy of all logits, fused AdamW.

Shape letters: B sequences, T positions, D hidden, H heads, K head size, V vocabulary rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from reference_runs.run import Architecture, Recipe


class Block(nn.Module):
    """Pre-LayerNorm attention and feed-forward part."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        hidden, width = architecture.hidden, architecture.ffn_hidden
        self.heads = architecture.heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query_key_value, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.expansion, self.contraction = nn.Linear(hidden, width), nn.Linear(width, hidden)

    def forward(self, x_BTD: Tensor) -> Tensor:
        parts = self.query_key_value(self.attention_norm(x_BTD)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BTD = x_BTD + self.projection(attended)
        out: Tensor = x_BTD + self.contraction(gelu(self.expansion(self.feed_forward_norm(x_BTD)), approximate="tanh"))
        return out


class PlainGPT(nn.Module):
    """Tokens and targets [B, T] to their mean loss."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.embedding = nn.Embedding(architecture.padded_vocabulary, architecture.hidden)
        self.position = nn.Embedding(architecture.sequence, architecture.hidden)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.layers))
        self.final_norm = nn.LayerNorm(architecture.hidden)
        self.head = nn.Linear(architecture.hidden, architecture.padded_vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.embedding(tokens_BT) + self.position(positions_T)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.final_norm(x_BTD))
        return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


class PlainScript:
    """Trains on random tokens: batches are made on the host, in page-locked memory."""

    def __init__(
        self, architecture: Architecture, recipe: Recipe, *, micro_batch: int, micro_batches: int, compiled: bool
    ) -> None:
        model = PlainGPT(architecture).cuda()
        self._parameters = list(model.parameters())
        self._loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(model) if compiled else model
        decaying = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": decaying, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            fused=True,
        )
        self._clip, self._micro_batches = recipe.gradient_clip, micro_batches
        self._shape, self._vocabulary = (micro_batch, architecture.sequence + 1), architecture.vocabulary
        self._batch = self._next()

    def _next(self) -> tuple[Tensor, Tensor]:
        both = torch.randint(self._vocabulary, self._shape)
        parts = (both[:, :-1].contiguous(), both[:, 1:].contiguous())
        x, y = (part.pin_memory().to("cuda", non_blocking=True) for part in parts)
        return x, y

    def step(self) -> float:
        """One step; its loss."""
        for _ in range(self._micro_batches):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = self._loss(*self._batch) / self._micro_batches
            self._batch = self._next()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.item()) * self._micro_batches
