"""Language models as scripts write them (nanoGPT, litgpt), which traces execute: modules that return their loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, VOCABULARY, DROPOUT = 128, 3, 8, 1000, 0.1
WIDE, NARROW_HEADS, POSITIONS = 352, 2, 256  # of Llama, and GPT's table


class HandwrittenNorm(nn.Module):
    """RMSNorm in fp32, cast back, times the gain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotary(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        narrow = NARROW_HEADS * WIDTH // HEADS
        self.first, self.second = HandwrittenNorm(), HandwrittenNorm()
        self.query, self.project = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, narrow, bias=False), nn.Linear(WIDTH, narrow, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, WIDE, bias=False), nn.Linear(WIDTH, WIDE, bias=False)
        self.down = nn.Linear(WIDE, WIDTH, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        samples, length, _ = x.shape
        read = self.first(x)
        q, k, v = (
            each(read).view(samples, length, heads, -1).transpose(1, 2)
            for each, heads in ((self.query, HEADS), (self.key, NARROW_HEADS), (self.value, NARROW_HEADS))
        )
        del read
        q, k = rotary(q, cosines, sines), rotary(k, cosines, sines)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.project(context.transpose(1, 2).reshape(samples, length, WIDTH))
        read = self.second(x)
        return x + self.down(functional.silu(self.gate(read)) * self.up(read))


class GptBlock(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(WIDTH, bias=bias) for _ in range(2))
        self.fused, self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=bias)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=bias), nn.Linear(4 * WIDTH, WIDTH, bias=bias)
        self.dropout, self.dropout_of_mlp = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.dropout_of_mlp(self.down(functional.gelu(self.up(self.second(x)))))

    def attention(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        parts = self.fused(x).split(WIDTH, dim=2)
        q, k, v = (each.view(samples, length, HEADS, -1).transpose(1, 2) for each in parts)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.project(context.transpose(1, 2).contiguous().view(samples, length, WIDTH)))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([LlamaBlock() for _ in range(LAYERS)])
        self.norm, self.head = HandwrittenNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cosines, sines = (torch.ones(tokens.shape[1], WIDTH // HEADS, dtype=x.dtype) for _ in range(2))
        for block in self.blocks:
            x = block(x, cosines, sines)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), tokens.view(-1))


class Gpt(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList([GptBlock(bias=bias) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=bias), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.embedding.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), tokens.view(-1))


def gpt() -> nn.Module:
    return Gpt(bias=True)


def gpt_without_biases() -> nn.Module:
    return Gpt(bias=False)
