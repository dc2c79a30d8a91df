"""Decoder layers as transformers writes them, with blocks in place of tensors: Llama, Qwen3, Gemma, Mixtral, GPT-2.

Each function reads like the module of that name. What a line allocates and keeps is PyTorch's (`EagerOperators`).
Scripts (nanoGPT, litgpt, torchtune, fms-fsdp) write the same layers, with one operator for each activation.
Source: transformers 5, models/llama/modeling_llama.py, models/qwen3/modeling_qwen3.py, models/gemma/modeling_gemma.py,
models/mixtral/modeling_mixtral.py, models/gpt2/modeling_gpt2.py, integrations/moe.py (grouped_mm_experts_forward),
loss/loss_utils.py (ForCausalLMLoss).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reference_runs.run import Activation, Architecture, QueryKeyNorm, Workload
from reference_runs.stack import Modules
from suite.predict.analytic.memory import FP32
from suite.predict.simulation.decoder_parameters import ChunkSizes, chunk_sizes
from suite.predict.simulation.eager_operators import EagerOperators, Tensor, Weight
from suite.predict.simulation.memory_blocks import MemoryBlock
from suite.predict.simulation.shared_inputs import INT64

INT32 = 4
NewWeight = Callable[..., Weight]


class LinearWeights(NamedTuple):
    """Weight and bias of a linear layer."""

    weight: Weight
    bias: Weight | None


class NormWeights(NamedTuple):
    """Gain, and the bias of a LayerNorm."""

    gain: Weight
    bias: Weight | None


class MlpWeights(NamedTuple):
    """Weights of a feed-forward part; one that is not gated has no `gate`."""

    gate: LinearWeights | None
    up: LinearWeights
    down: LinearWeights


class ExpertWeights(NamedTuple):
    """Weights of a mixture-of-experts part: those of all experts of a kind are one tensor."""

    router: Weight
    gate_up: Weight
    down: Weight


class LayerWeights(NamedTuple):
    """Weights of a decoder layer; `fused` is GPT-2's matrix of queries, keys and values together."""

    input_norm: NormWeights
    fused: LinearWeights | None
    query: LinearWeights | None
    key: LinearWeights | None
    value: LinearWeights | None
    query_norm: Weight | None
    key_norm: Weight | None
    output: LinearWeights
    post_norm: NormWeights
    mlp: MlpWeights | ExpertWeights


def norm_weights(new: NewWeight, architecture: Architecture) -> NormWeights:
    """Weights of a norm of hidden states."""
    return NormWeights(new(architecture.hidden), new(architecture.hidden) if architecture.bias.norm else None)


def layer_weights(new: NewWeight, architecture: Architecture) -> LayerWeights:
    """Weights of a layer, in the order of its modules. `new` makes one of so many rows and columns."""
    hidden, bias = architecture.hidden, architecture.bias
    inner, keys_inner = architecture.query_width, architecture.kv_heads * architecture.head_dim

    def linear(rows: int, columns: int, *, bias: bool) -> LinearWeights:
        return LinearWeights(new(rows, columns), new(rows) if bias else None)

    is_fused = is_gpt2(architecture) and architecture.kv_heads == architecture.heads

    def apart(width: int) -> LinearWeights | None:
        return None if is_fused else linear(width, hidden, bias=bias.attention)

    def head_norm() -> Weight | None:
        return new(architecture.head_dim) if architecture.query_key_norm is QueryKeyNorm.HEAD else None

    return LayerWeights(
        input_norm=norm_weights(new, architecture),
        fused=linear(3 * inner, hidden, bias=bias.attention) if is_fused else None,
        query=apart(inner),
        key=apart(keys_inner),
        value=apart(keys_inner),
        query_norm=head_norm(),
        key_norm=head_norm(),
        output=linear(hidden, inner, bias=bias.projection),
        post_norm=norm_weights(new, architecture),
        mlp=_expert_weights(new, architecture) if architecture.experts else _mlp_weights(linear, architecture),
    )


def is_gpt2(architecture: Architecture) -> bool:
    """Whether the layer is GPT-2's: LayerNorms, and one matrix for queries, keys and values where these are alike."""
    return not architecture.norm.root_mean_square


def _mlp_weights(linear: Callable[..., LinearWeights], architecture: Architecture) -> MlpWeights:
    hidden, width, bias = architecture.hidden, architecture.ffn_hidden, architecture.bias.feed_forward
    gate = linear(width, hidden, bias=bias) if architecture.activation.gated else None
    return MlpWeights(gate, linear(width, hidden, bias=bias), linear(hidden, width, bias=bias))


def _expert_weights(new: NewWeight, architecture: Architecture) -> ExpertWeights:
    hidden, width, experts = architecture.hidden, architecture.expert_width, architecture.experts or 0
    return ExpertWeights(
        router=new(experts, hidden),
        gate_up=new(experts * 2 * width, hidden, of=experts),
        down=new(experts * hidden, width, of=experts),
    )


class Layers:
    """The modules of a model between its tokens and its loss.

    Args:
        modules: whose modules they are: transformers' or those of a script.
    """

    def __init__(self, operators: EagerOperators, workload: Workload, modules: Modules) -> None:
        self.operators, self.modules = operators, modules
        self.architecture, self.recipe, layout = workload
        self.fused = layout.fused_attention
        self.sizes: ChunkSizes = chunk_sizes(workload)

    def embedding(self, tokens: MemoryBlock, table: Weight, positions: Weight | None) -> Tensor:
        """Hidden states of tokens."""
        operators, sizes = self.operators, self.sizes
        x = operators.embedding(tokens, table, tokens=sizes.tokens)
        if self.architecture.scaled_embedding:
            x = operators.scale(x)
        if positions is not None:
            indices = operators.tape.block(INT64 * sizes.length)
            x = operators.add(x, operators.embedding(indices, positions, tokens=sizes.length))
        return operators.dropout(x, self.recipe.embedding_dropout)

    def rotary_embedding(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of all positions, in the dtype of the hidden states, which all layers share."""
        if self.architecture.rotary_dim is None:
            return None
        count = self.sizes.length * self.architecture.rotary_dim
        cosines, sines = (self.operators.new(count, x.element) for _ in range(2))
        return cosines, sines

    def mask(self, x: Tensor) -> list[Tensor]:
        """The mask that unfused attention adds to the scores of each sample, in the dtype of the hidden states."""
        return [] if self.fused else [self.operators.new(self.sizes.samples * self.sizes.length**2, x.element)]

    def norm(self, x: Tensor, weights: NormWeights) -> Tensor:
        """The norm of hidden states."""
        if is_gpt2(self.architecture):
            return self.operators.layer_norm(x, weights.gain, weights.bias, rows=self.sizes.tokens)
        return self.rms_norm(x, weights.gain)

    def rms_norm(self, x: Tensor, gain: Weight) -> Tensor:
        """LlamaRMSNorm, which casts before its gain; Gemma's casts after it, and adds 1 to it."""
        operators, element = self.operators, x.element
        x = operators.cast(x, FP32)
        variance = operators.mean_of_rows(operators.power(x), rows=x.elements // gain.rows)
        x = operators.mul(x, operators.rsqrt(operators.shift(variance)))
        if self.architecture.scaled_embedding:
            x = operators.mul(x, operators.shift(operators.cast(operators.read(gain), FP32)))
            return operators.cast(x, element)
        return operators.mul(operators.read(gain), operators.cast(x, element))

    def layer(self, x: Tensor, weights: LayerWeights, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """A decoder layer."""
        residual = x
        x = self.attention(self.norm(x, weights.input_norm), weights, turns)
        x = self.operators.add(residual, x)
        residual = x
        x = self.norm(x, weights.post_norm)
        fed = self.mlp(x, weights.mlp) if isinstance(weights.mlp, MlpWeights) else self.experts(x, weights.mlp)
        return self.operators.add(residual, fed)

    def attention(self, x: Tensor, weights: LayerWeights, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Self-attention without its norm."""
        operators, sizes = self.operators, self.sizes
        if weights.fused is not None:
            q, k, v = operators.split(operators.linear(x, *weights.fused), parts=3)
        else:
            assert weights.query is not None
            assert weights.key is not None
            assert weights.value is not None
            q = self._by_head(operators.linear(x, *weights.query), weights.query_norm)
            k = self._by_head(operators.linear(x, *weights.key), weights.key_norm)
            v = operators.linear(x, *weights.value)
        if turns is not None:
            q, k = self._rotary(q, *turns), self._rotary(k, *turns)
        dropout, heads = self.recipe.attention_dropout, sizes.samples * sizes.heads
        if self.fused:
            context = operators.attention(q, k, v, heads=heads, length=sizes.length, dropout=dropout)
        else:
            context = self._unfused_attention(q, k, v, scores=heads * sizes.length**2)
        del q, k, v
        return operators.dropout(operators.linear(context, *weights.output), self.recipe.hidden_dropout)

    def _unfused_attention(self, q: Tensor, k: Tensor, v: Tensor, *, scores: int) -> Tensor:
        """`eager_attention_forward`, whose softmax is in fp32, but for GPT-2's."""
        operators = self.operators
        if (groups := self.architecture.heads // self.architecture.kv_heads) > 1:
            k, v = operators.copied(k, times=groups), operators.copied(v, times=groups)
        weights = operators.shift(operators.scale(operators.matmul(q, k, elements=scores)))
        wide = weights.element if is_gpt2(self.architecture) and not operators.autocast else FP32
        weights = operators.cast(operators.softmax(operators.cast(weights, wide)), q.element)
        weights = operators.dropout(weights, self.recipe.attention_dropout)
        return operators.copied(operators.matmul(weights, v, elements=q.elements))

    def _by_head(self, x: Tensor, gain: Weight | None) -> Tensor:
        """A view of queries or keys head by head, whose norm of each head comes before it is transposed."""
        return self.operators.heads(x if gain is None else self.rms_norm(x, gain))

    def _rotary(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """`apply_rotary_pos_emb` of queries or keys."""
        operators = self.operators
        by_cosine = operators.mul(x, cosines)
        first, second = operators.half_of(x), operators.half_of(x)
        return operators.add(by_cosine, operators.mul(operators.joined(operators.scale(second), first), sines))

    def mlp(self, x: Tensor, weights: MlpWeights) -> Tensor:
        """The feed-forward part."""
        operators = self.operators
        if weights.gate is None:
            x = self.activation(operators.linear(x, *weights.up))
            return operators.dropout(operators.linear(x, *weights.down), self.recipe.hidden_dropout)
        gate = operators.activation(operators.linear(x, *weights.gate))
        return operators.linear(operators.mul(gate, operators.linear(x, *weights.up)), *weights.down)

    def activation(self, x: Tensor) -> Tensor:
        """An activation that is not gated, one operator but for a square and for GPT-2's GELU in transformers."""
        operators, activation = self.operators, self.architecture.activation
        if activation in (Activation.RELU, Activation.RELU_SQUARED):
            x = operators.relu(x)
            return x if activation is Activation.RELU else operators.power(x)
        return self._gelu_new(x) if self.modules is Modules.TRANSFORMERS else operators.activation(x)

    def _gelu_new(self, x: Tensor) -> Tensor:
        """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), operator by operator."""
        operators = self.operators
        half = operators.scale(x)
        inner = operators.scale(operators.add(x, operators.scale(operators.power(x))))
        return operators.mul(half, operators.shift(operators.tanh(inner)))

    def experts(self, x: Tensor, weights: ExpertWeights) -> Tensor:
        """Mixtral's router, and its experts by `grouped_mm_experts_forward`."""
        operators, tape = self.operators, self.operators.tape
        chosen = self.architecture.experts_per_token or 0
        tokens, rows, experts = self.sizes.tokens, self.sizes.tokens * chosen, weights.router.rows
        logits = operators.linear(x, weights.router)
        scores, indices = self._router(logits, rows=rows)
        by_expert, order = tape.block(INT64 * rows), tape.block(INT64 * rows)
        of_rows = tape.block(INT64 * rows)
        selected = operators.gathered(x, of_rows, elements=rows * self.sizes.hidden)
        del of_rows
        gates = operators.gathered(scores, order, elements=rows)
        ends = tape.block(INT32 * experts)
        expanded = operators.grouped_linear(selected, weights.gate_up, ends, experts=experts)
        del selected
        gate, up = operators.split(expanded, parts=2)
        del expanded
        active = operators.mul(operators.activation(gate), up)
        del gate, up
        out = operators.grouped_linear(active, weights.down, ends, experts=experts)
        del active, by_expert, indices
        weighed = operators.mul(out, gates)
        inverse = tape.block(INT64 * rows)
        returned = operators.gathered(weighed, inverse, elements=weighed.elements)
        summed = operators.summed(returned, elements=tokens * self.sizes.hidden)
        del returned, weighed, out
        return operators.cast(summed, x.element)

    def _router(self, logits: Tensor, *, rows: int) -> tuple[Tensor, MemoryBlock]:
        """The scores of the chosen experts divided by their sum, in fp32, and their numbers."""
        operators, tape = self.operators, self.operators.tape
        tokens = self.sizes.tokens
        probabilities = operators.softmax(operators.cast(logits, FP32))
        indices = tape.block(INT64 * rows)
        best = operators.gathered(probabilities, indices, elements=rows)
        total = operators.summed(best, elements=tokens)
        return operators.divided(best, total), indices

    def loss(self, logits: Tensor) -> Tensor:
        """The cross-entropy of logits in fp32."""
        return self.operators.cross_entropy(self.operators.cast(logits, FP32), tokens=self.sizes.tokens)
