"""A decoder's layer of plain PyTorch operators, whose FLOP and saved tensors are counted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention, silu

from reference_runs.layout import Layout
from reference_runs.run import Activation, Architecture, Norm, Position, Precision, QueryKeyNorm, Recipe, Residual

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class EagerBlock(nn.Module):
    """A Megatron-like block, unfused, softmax in the dtype of the scores as its fused kernel computes it.

    Dropout is torch.native_dropout, which keeps a mask of one byte an element, as on CUDA.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, layout: Layout) -> None:
        super().__init__()
        self.architecture, self.recipe, self.layout = architecture, recipe, layout
        self.dtype = DTYPES[recipe.precision]
        h, f = architecture.hidden, architecture.ffn_hidden
        narrow = architecture.kv_heads * architecture.head_dim
        wide = 2 * f if architecture.activation.gated else f
        s, d = architecture.sequence, architecture.head_dim
        queries = architecture.heads * d
        self.query, self.key, self.value = self.weight(queries, h), self.weight(narrow, h), self.weight(narrow, h)
        self.projection, self.expansion = self.weight(h, queries), self.weight(wide, h)
        self.contraction = self.weight(h, f)
        self.gains = nn.ParameterList([self.weight(h), self.weight(h)])
        self.head_gains = nn.ParameterList([self.weight(d), self.weight(d)])
        causal = torch.full((s, s), float("-inf"), dtype=self.dtype).triu(1)
        alibi = -torch.arange(s, dtype=self.dtype) if architecture.position is Position.ALIBI else torch.zeros(s)
        self.bias = causal + alibi.to(self.dtype)
        self.rotation = [torch.rand(s, d, dtype=self.dtype) for _ in range(2)]

    def weight(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape, dtype=self.dtype))

    def dropped(self, x: Tensor, probability: float) -> Tensor:
        return torch.native_dropout(x, probability, True)[0] if probability > 0 else x

    def rotated(self, x: Tensor) -> Tensor:
        if self.architecture.position is not Position.ROTARY:
            return x
        cosine, sine = self.rotation
        return x * cosine + x.roll(1, -1) * sine

    def normed_head(self, x: Tensor, gain: Tensor) -> Tensor:
        if self.architecture.query_key_norm is QueryKeyNorm.NONE:
            return x
        return layer_norm(x, (self.architecture.head_dim,), gain)

    def attention(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        k, d = self.architecture.kv_heads, self.architecture.head_dim
        query, key = linear(x, self.query).view(b, s, -1, d), linear(x, self.key).view(b, s, k, d)
        heads = self.rotated(self.normed_head(query, self.head_gains[0]).transpose(1, 2))
        keys = self.rotated(self.normed_head(key, self.head_gains[1]).transpose(1, 2))
        values = linear(x, self.value).view(b, s, k, d).transpose(1, 2)
        if self.layout.fused_attention:
            context = scaled_dot_product_attention(heads, keys, values, is_causal=True)
            return linear(context.transpose(1, 2).reshape(b, s, -1), self.projection)
        grouped = heads.reshape(b * k, -1, d)
        scores = torch.bmm(grouped, keys.reshape(b * k, s, d).transpose(1, 2)) * d**-0.5
        scores = (scores.view(b, -1, s, s) + self.bias).view(b * k, -1, s)
        weights = self.dropped(torch.softmax(scores, -1), self.recipe.attention_dropout)
        context = torch.bmm(weights, values.reshape(b * k, s, d)).view(b, -1, s, d)
        return linear(context.transpose(1, 2).reshape(b, s, -1), self.projection)

    def feed_forward(self, x: Tensor) -> Tensor:
        wide, activation = linear(x, self.expansion), self.architecture.activation
        if activation.gated:
            gate, up = wide.chunk(2, -1)
            return linear((silu(gate) if activation is Activation.SWIGLU else gelu(gate)) * up, self.contraction)
        if activation is Activation.RELU_SQUARED:
            return linear(torch.relu(wide).square(), self.contraction)
        return linear(torch.relu(wide) if activation is Activation.RELU else gelu(wide), self.contraction)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return layer_norm(x, (self.architecture.hidden,), gain)

    def forward(self, x: Tensor) -> Tensor:
        dropout = self.recipe.hidden_dropout
        if self.architecture.norm is Norm.DEEP_NORM:
            x = self.norm(1.5 * x + self.dropped(self.attention(x), dropout), self.gains[0])
            return self.norm(1.5 * x + self.dropped(self.feed_forward(x), dropout), self.gains[1])
        if self.architecture.norm is Norm.OUTPUT_RMS_NORM:
            middle = x + self.dropped(self.norm(self.attention(x), self.gains[0]), dropout)
            return middle + self.dropped(self.norm(self.feed_forward(middle), self.gains[1]), dropout)
        normed = self.norm(x, self.gains[0])
        middle = x + self.dropped(self.attention(normed), dropout)
        if self.architecture.shared_norm:
            return middle + self.dropped(self.feed_forward(normed), dropout)
        source = x if self.architecture.residual is Residual.PARALLEL else middle
        return middle + self.dropped(self.feed_forward(self.norm(source, self.gains[1])), dropout)

    def input(self) -> Tensor:
        shape = self.layout.micro_batch, self.architecture.sequence, self.architecture.hidden
        return torch.randn(*shape, dtype=self.dtype, requires_grad=True)

    def named_deviations(self) -> dict[str, int]:
        """Bytes that this block keeps beyond the formula, by their reason."""
        element, tokens = self.dtype.itemsize, self.layout.micro_batch * self.architecture.sequence
        rotary = self.architecture.position is Position.ROTARY
        normed = self.architecture.query_key_norm is not QueryKeyNorm.NONE
        heads = self.architecture.heads + self.architecture.kv_heads
        return {
            # mean and reciprocal deviation of two norms; the CPU keeps them in the input's dtype (CUDA in fp32)
            "norm statistics": (1 if self.architecture.shared_norm else 2) * 2 * element * tokens,
            "statistics of heads' norms": normed * 2 * element * tokens * heads,
            "rotary tables, shared by all layers": 2 * element * self.rotation[0].numel() * rotary,
        }
