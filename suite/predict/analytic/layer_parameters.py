"""Parameter tensors of one layer on one rank, in the order of their use."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from reference_runs.architecture_choices import LinearRule
from reference_runs.run import Architecture, Balancing, QueryKeyNorm
from suite.predict.analytic.linear_attention import linear_input_columns
from suite.predict.analytic.process_groups import key_width


class Spread(enum.StrEnum):
    """Which ranks of a stage have a tensor: each tensor-parallel one a part; each the whole; each expert-parallel one
    its experts, of which tensor-parallel ranks have a part.
    """

    SPLIT = "split"
    REPLICATED = "replicated"
    EXPERTS = "experts"


class ParameterTensor(NamedTuple):
    """A parameter tensor of a rank.

    Args:
        matrix: whether it decays with the matrices, and not as biases and gains of norms do.
        rows: its size along dim 0, on which it can be sharded.
        learned: whether it has a gradient; the bias that balances experts is moved by their rows.
    """

    name: str
    elements: int
    matrix: bool
    rows: int
    spread: Spread = Spread.SPLIT
    learned: bool = True


def summed_elements(tensors: Iterable[ParameterTensor]) -> tuple[int, int, int, int]:
    """Elements of the matrices, of the vectors, of what is replicated, and of experts."""
    matrices = vectors = replicated = experts = 0
    for _, elements, is_matrix, _, spread, _ in tensors:
        if is_matrix:
            matrices = matrices + elements
        else:
            vectors = vectors + elements
        if spread is Spread.REPLICATED:
            replicated = replicated + elements
        elif spread is Spread.EXPERTS:
            experts = experts + elements
    return matrices, vectors, replicated, experts


def layer_sums(architecture: Architecture, t: int, expert_parallel: int) -> tuple[int, int, int, int]:
    """As `summed_elements`, of one layer on one rank."""
    return summed_elements(_layer_tensors(architecture, t, expert_parallel, False))


known_layer_sums = lru_cache(maxsize=256)(layer_sums)


def layer_tensors(
    architecture: Architecture, *, tensor_parallel: int = 1, expert_parallel: int = 1, top_query: bool = False
) -> list[ParameterTensor]:
    """The parameter tensors of one layer on one rank, in the order in which it reads them first.

    Args:
        top_query: whether it is a top-query layer, which has its query's matrix apart.
    """
    if tensor_parallel.__class__ is int:
        return [*_known_layer_tensors(architecture, tensor_parallel, expert_parallel, top_query)]
    return _layer_tensors(architecture, tensor_parallel, expert_parallel, top_query)


def _layer_tensors(a: Architecture, t: int, expert_parallel: int, top_query: bool) -> list[ParameterTensor]:
    if a.linear:
        attention = _linear_attention(a, t)
    else:
        attention = _attention(a, t, top_query=top_query) if a.key_value_rank is None else _latent_attention(a, t)
    attention += _linear("attention.projection", a.hidden, a.context_width // t, bias=a.bias.projection, summed=True)
    if a.experts is not None:
        feed_forward = _experts(a, t, expert_parallel)
    elif not a.feeds_forward:
        return norm_tensors(a, "attention_norm") + attention
    else:
        feed_forward = _feed_forward(a, "feed_forward", width=a.ffn_hidden // t)
    attention_norm, feed_forward_norm = norm_tensors(a, "attention_norm"), norm_tensors(a, "feed_forward_norm")
    if a.shared_norm:
        return attention_norm + attention + feed_forward
    if not a.norm.before:
        return attention + attention_norm + feed_forward + feed_forward_norm
    return attention_norm + attention + feed_forward_norm + feed_forward


_known_layer_tensors = lru_cache(maxsize=256)(_layer_tensors)


def _attention(a: Architecture, t: int, *, top_query: bool) -> list[ParameterTensor]:
    """Queries, keys and values, and the norms of queries and keys."""
    queries, keys = a.query_width // t, key_width(a, tensor_parallel=t)
    if top_query:
        tensors = _linear("attention.query", queries, a.hidden, bias=a.bias.attention)
        tensors += _linear("attention.key_value", 2 * keys, a.hidden, bias=a.bias.attention)
    else:
        gated = queries + a.attention_gate * queries
        tensors = _linear("attention.query_key_value", gated + 2 * keys, a.hidden, bias=a.bias.attention)
    if a.attention_sinks:
        tensors.append(ParameterTensor("attention.sinks", a.heads // t, False, a.heads // t))
    for name, width in (("query", a.heads), ("key", a.kv_heads)):
        if a.query_key_norm is QueryKeyNorm.HEAD:
            tensors.append(_gain(f"attention.{name}_norm", a.head_dim))
        elif a.query_key_norm is QueryKeyNorm.PROJECTION:
            tensors.append(_gain(f"attention.{name}_norm", width * a.head_dim // t, Spread.SPLIT))
    return tensors


def _linear_attention(a: Architecture, t: int) -> list[ParameterTensor]:
    """Queries, keys, values and a gate, scalars of each head, convolution, decays, and the norm of a head.

    A state-space model has its scalars in the same matrix, a bias of the convolution, a factor of each head's values
    that are passed by, and a gain of its own for each head.

    Source: transformers 5, models/qwen3_next/modeling_qwen3_next.py, Qwen3NextGatedDeltaNet;
    models/nemotron_h/modeling_nemotron_h.py, NemotronHMamba2Mixer.
    """
    queries, values, heads = a.query_width // t, a.context_width // t, (a.linear_heads or 0) // t
    channels, is_state_space = 2 * queries + values, a.linear_rule is LinearRule.STATE_SPACE
    taps = ParameterTensor("attention.convolution.weight", channels * (a.linear_convolution or 0), True, channels)
    if is_state_space:
        tensors = [*_linear("attention.query_key_value_gate", linear_input_columns(a) // t, a.hidden, bias=False), taps]
        tensors.append(ParameterTensor("attention.convolution.bias", channels, False, channels))
    else:
        tensors = _linear("attention.query_key_value_gate", 2 * queries + 2 * values, a.hidden, bias=False)
        tensors += [*_linear("attention.decay_and_rate", 2 * heads, a.hidden, bias=False), taps]
    names = ("step_bias", "decay", "pass_by")[: 2 + is_state_space]
    tensors += [ParameterTensor(f"attention.{name}", heads, False, heads) for name in names]
    if is_state_space:
        return [*tensors, _gain("attention.head_norm", values, Spread.SPLIT)]
    return [*tensors, _gain("attention.head_norm", a.linear_value_dim or 0)]


def _latent_attention(a: Architecture, t: int) -> list[ParameterTensor]:
    """Compression of queries, and of keys and values with the keys' rotated part, their norms, and expansion."""
    h, compressed, rotated = a.hidden, a.key_value_rank or 0, a.rotary_dim or 0
    if a.query_rank is None:
        tensors = _linear("attention.query", a.query_width // t, h, bias=False)
    else:
        tensors = _whole("attention.query_compression", a.query_rank, h)
        tensors += [_gain("attention.query_compression_norm", a.query_rank)]
        tensors += _linear("attention.query_expansion", a.query_width // t, a.query_rank, bias=False)
    tensors += _whole("attention.key_value_compression", compressed + rotated, h)
    tensors += [_gain("attention.key_value_compression_norm", compressed)]
    expanded = (a.query_width - a.heads * rotated + a.context_width) // t
    return tensors + _linear("attention.key_value_expansion", expanded, compressed, bias=False)


def _feed_forward(a: Architecture, name: str, *, width: int) -> list[ParameterTensor]:
    expanded = (2 if a.activation.gated else 1) * width
    tensors = _linear(f"{name}.expansion", expanded, a.hidden, bias=a.bias.feed_forward)
    return tensors + _linear(f"{name}.contraction", a.hidden, width, bias=a.bias.feed_forward, summed=True)


def _experts(a: Architecture, t: int, expert_parallel: int) -> list[ParameterTensor]:
    """Router with its biases, this rank's experts, and the shared ones.

    Biases of stacked experts are matrices, a row an expert, and decay as these do.
    """
    experts, width = a.experts or 0, a.expert_width // t
    tensors = _whole("feed_forward.router", experts, a.hidden)
    if a.expert_bias:
        tensors.append(ParameterTensor("feed_forward.router.score_bias", experts, False, experts, Spread.REPLICATED))
    if a.balancing is Balancing.BIAS:
        name = "feed_forward.router.bias"
        tensors.append(ParameterTensor(name, experts, False, experts, Spread.REPLICATED, learned=False))
    own = experts // expert_parallel
    expanded = (2 if a.activation.gated else 1) * width
    for name, rows, columns in (("expansion", expanded, a.hidden), ("contraction", a.hidden, width)):
        rows = own * rows
        name = f"feed_forward.experts.{name}"
        tensors.append(ParameterTensor(f"{name}.weight", rows * columns, True, rows, Spread.EXPERTS))
        if a.expert_bias:
            tensors.append(ParameterTensor(f"{name}.bias", rows, True, own, Spread.EXPERTS))
    if a.shared_experts:
        tensors += _feed_forward(a, "feed_forward.shared_experts", width=a.shared_experts * width)
    if a.shared_gate:
        tensors += _whole("feed_forward.shared_gate", 1, a.hidden)
    return tensors


def _gain(name: str, width: int, spread: Spread = Spread.REPLICATED) -> ParameterTensor:
    return ParameterTensor(f"{name}.weight", width, False, width, spread)


def norm_tensors(architecture: Architecture, name: str) -> list[ParameterTensor]:
    """Gain and bias of a norm of hidden states, those that it has."""
    h, parts = architecture.hidden, {"weight": architecture.norm_gain, "bias": architecture.bias.norm}
    names = [f"{name}.{part}" for part, is_there in parts.items() if is_there]
    return [ParameterTensor(name, h, False, h, Spread.REPLICATED) for name in names]


def _whole(name: str, rows: int, columns: int) -> list[ParameterTensor]:
    """A matrix that every tensor-parallel rank has whole."""
    return [ParameterTensor(f"{name}.weight", rows * columns, True, rows, Spread.REPLICATED)]


def _linear(name: str, rows: int, columns: int, *, bias: bool, summed: bool = False) -> list[ParameterTensor]:
    """A split matrix, and its bias, which every rank has where outputs of the ranks are summed before it is added."""
    weight = ParameterTensor(f"{name}.weight", rows * columns, True, rows)
    spread = Spread.REPLICATED if summed else Spread.SPLIT
    return [weight, ParameterTensor(f"{name}.bias", rows, False, rows, spread)] if bias else [weight]
