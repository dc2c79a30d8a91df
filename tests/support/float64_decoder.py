"""A decoder's forward pass in NumPy and float64, written apart from the one that it checks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from reference_runs.run import Activation, Architecture, Gate, Norm, Position, QueryKeyNorm, Residual, RotaryScaling

Array = NDArray[np.float64]


def _linear(x: Array, w: dict[str, Array], name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", np.zeros(1))


def _root_mean_square(x: Array, gain: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain


def _norm(a: Architecture, x: Array, w: dict[str, Array], name: str) -> Array:
    if a.norm in (Norm.PRE_RMS_NORM, Norm.OUTPUT_RMS_NORM):
        return _root_mean_square(x, w.get(f"{name}.weight", np.ones(1)))
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * w.get(f"{name}.weight", np.ones(1)) + w.get(f"{name}.bias", np.zeros(1))


def _act(kind: Activation, x: Array) -> Array:
    if kind is Activation.RELU_SQUARED:
        return np.maximum(x, 0) ** 2
    if kind is Activation.RELU:
        return np.maximum(x, 0)
    if kind in (Activation.GELU, Activation.GEGLU):
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if kind is Activation.FAST_GELU:
        return x / (1 + np.exp(-1.702 * x))
    if kind is Activation.SWIGLU:
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _scaled(a: Architecture, angle: float) -> float:
    """As the Llama 3.1 model card's code has it: short wavelengths as they are, long ones slower."""
    if a.rotary_scaling_factor is None:
        return angle
    assert a.rotary_scaling_sequence
    assert a.rotary_scaling_low
    assert a.rotary_scaling_high
    if a.rotary_scaling is not RotaryScaling.BANDS:
        return _on_a_ramp(a, angle)
    wavelength = 2 * math.pi / angle
    if wavelength < a.rotary_scaling_sequence / a.rotary_scaling_high:
        return angle
    if wavelength > a.rotary_scaling_sequence / a.rotary_scaling_low:
        return angle / a.rotary_scaling_factor
    smooth = (a.rotary_scaling_sequence / wavelength - a.rotary_scaling_low) / (
        a.rotary_scaling_high - a.rotary_scaling_low
    )
    return (1 - smooth) * angle / a.rotary_scaling_factor + smooth * angle


def _on_a_ramp(a: Architecture, angle: float) -> float:
    """As the YaRN authors' code has it: a mask of extrapolated frequencies that falls between two dimensions."""
    assert a.rotary_dim
    assert a.rotary_base
    assert a.rotary_scaling_low
    assert a.rotary_scaling_high
    assert a.rotary_scaling_sequence
    assert a.rotary_scaling_factor
    length, base, dims = a.rotary_scaling_sequence, a.rotary_base, a.rotary_dim
    low, high = (
        (dims * math.log(length / (rotations * 2 * math.pi))) / (2 * math.log(base))
        for rotations in (a.rotary_scaling_high, a.rotary_scaling_low)
    )
    if a.rotary_scaling is RotaryScaling.YARN:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    pair = round(-math.log(angle) / math.log(base) * dims / 2)
    extrapolated = 1 - np.clip((pair - low) / (high - low), 0, 1)
    return float(angle / a.rotary_scaling_factor * (1 - extrapolated) + angle * extrapolated)


Sees = Callable[[int, int], bool]  # whether the first position attends to the second


def _latent(a: Architecture, w: dict[str, Array], name: str, x: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values before their rotation: the rotated part comes first, the keys' of all heads alike."""
    assert a.rotary_dim is not None
    length, rest = len(x), a.head_dim - a.rotary_dim
    asked = x
    if a.query_rank is not None:
        asked = _linear(x, w, f"{name}.query_compression")
        asked = _root_mean_square(asked, w[f"{name}.query_compression_norm.weight"])
    q = _linear(asked, w, f"{name}.query" if a.query_rank is None else f"{name}.query_expansion")
    state = _linear(x, w, f"{name}.key_value_compression")
    narrow, shared = state[:, : a.key_value_rank], state[:, a.key_value_rank :]
    narrow = _root_mean_square(narrow, w[f"{name}.key_value_compression_norm.weight"])
    heads = _linear(narrow, w, f"{name}.key_value_expansion").reshape(length, a.heads, -1)
    k = np.concatenate([np.repeat(shared[:, None], a.heads, axis=1), heads[:, :, :rest]], axis=-1)
    return q.reshape(length, a.heads, a.head_dim).copy(), k, heads[:, :, rest:]


def _attention(
    a: Architecture, w: dict[str, Array], name: str, x: Array, sees: Sees, places: list[int], query: Array | None
) -> Array:
    length = x.shape[0]
    if a.key_value_rank is not None:
        q, k, v = _latent(a, w, name, x)
    elif query is None:
        qkv = _linear(x, w, f"{name}.query_key_value")
        shared = a.heads // a.kv_heads
        groups = qkv.reshape(length, a.kv_heads, shared + 2, a.head_dim)
        q = groups[:, :, :shared].reshape(length, a.heads, a.head_dim).copy()
        k, v = groups[:, :, shared], groups[:, :, shared + 1]
    else:
        q = _linear(query, w, f"{name}.query").reshape(length, a.heads, a.head_dim)
        kv = _linear(x, w, f"{name}.key_value")
        k, v = np.moveaxis(kv.reshape(length, a.kv_heads, 2, a.head_dim), 2, 0)
    if a.query_key_norm is not QueryKeyNorm.NONE:
        whole = a.query_key_norm is QueryKeyNorm.PROJECTION
        q, k = (
            _root_mean_square(x.reshape(length, -1) if whole else x, w[f"{name}.{kind}_norm.weight"]).reshape(x.shape)
            for kind, x in (("query", q), ("key", k))
        )
    k, v = (np.repeat(x, a.heads // a.kv_heads, axis=1) for x in (k, v))
    if a.rotary_dim is not None and a.rotary_base is not None:
        half = a.rotary_dim // 2
        for at, place in enumerate(places):
            for i in range(half):
                # as complex numbers: multiplied by e^(i angle)
                turn = (a.rotary_scaling_amplitude or 1) * np.exp(
                    1j * place * _scaled(a, a.rotary_base ** (-2 * i / a.rotary_dim))
                )
                for x_THK in (q, k):
                    turned = (x_THK[at, :, i] + 1j * x_THK[at, :, i + half]) * turn
                    x_THK[at, :, i], x_THK[at, :, i + half] = turned.real, turned.imag
    out = np.zeros((length, a.heads, v.shape[-1]))
    # Press et al.: three heads have the slopes of two, 1/16 and 1/256, and the first of four, 1/4; six heads those of
    # four, and every other one of eight
    alibi = {3: [1 / 16, 1 / 256, 1 / 4], 6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]}
    scale = (a.score_scale or 1) / math.sqrt(a.head_dim)
    slopes = alibi[a.heads] if a.position is Position.ALIBI else [0.0] * a.heads
    for head in range(a.heads):
        for at in range(length):
            seen = [to for to in range(length) if sees(at, to)]
            scores = np.array([q[at, head] @ k[to, head] * scale - slopes[head] * (at - to) for to in seen])
            weights = np.exp(scores - scores.max())
            out[at, head] = (weights / weights.sum()) @ v[seen, head]
    return _linear(out.reshape(length, -1), w, f"{name}.projection")


def _feed_forward(a: Architecture, w: dict[str, Array], name: str, x: Array) -> Array:
    inner = _linear(x, w, f"{name}.expansion")
    inner = _act(a.activation, inner[:, ::2]) * inner[:, 1::2] if a.activation.gated else _act(a.activation, inner)
    return _linear(inner, w, f"{name}.contraction")


def _routed(a: Architecture, w: dict[str, Array], name: str, x: Array) -> Array:
    """A mixture of experts, token by token and expert by expert."""
    assert a.experts is not None
    logits, out = _linear(x, w, f"{name}.router"), np.zeros_like(x)
    parts = {part: np.split(w[f"{name}.experts.{part}.weight"], a.experts) for part in ("expansion", "contraction")}
    for at, row in enumerate(logits):
        scores = 1 / (1 + np.exp(-row)) if a.gate is Gate.SIGMOID else np.exp(row) / np.exp(row).sum()
        chosen = sorted(range(a.experts), key=lambda expert, scores=scores: -scores[expert])[: a.experts_per_token]
        total = 1.0 if a.gate is Gate.SOFTMAX else scores[chosen].sum()
        for expert in chosen:
            own = {f"expert.{part}.weight": matrices[expert] for part, matrices in parts.items()}
            out[at] += (
                scores[expert] / total * (a.gate_scale or 1.0) * _feed_forward(a, own, "expert", x[at : at + 1])[0]
            )
    if not a.shared_experts:
        return out
    shared = _feed_forward(a, w, f"{name}.shared_experts", x)
    return out + (shared / (1 + np.exp(-_linear(x, w, f"{name}.shared_gate"))) if a.shared_gate else shared)


def causal(at: int, to: int) -> bool:
    return to <= at


def window(length: int) -> Sees:
    return lambda at, to: at - length < to <= at


def float64_logits(
    a: Architecture, w: dict[str, Array], tokens: list[int], sees: Sees = causal, places: list[int] | None = None
) -> Array:
    places = list(range(len(tokens))) if places is None else places
    x = w["embedding.weight"][tokens]
    x = x * math.sqrt(a.hidden) if a.scaled_embedding else x
    if a.position is Position.LEARNED:
        x = x + w["position.weight"][a.extra_positions : a.extra_positions + len(tokens)]
    if a.embedding_norm:
        x = _norm(a, x, w, "embedding_norm")
    for layer in range(a.layers):
        part, query = f"blocks.{layer}", None
        norms = f"{part}.attention_norm", f"{part}.feed_forward_norm"
        if a.norm is Norm.DEEP_NORM:
            x = (2 * a.layers) ** 0.5 * x + _attention(a, w, f"{part}.attention", x, sees, places, None)
            x = _norm(a, x, w, norms[0])
            x = _norm(a, (2 * a.layers) ** 0.5 * x + _feed_forward(a, w, f"{part}.feed_forward", x), w, norms[1])
            continue
        if a.norm is Norm.OUTPUT_RMS_NORM:
            x = x + _norm(a, _attention(a, w, f"{part}.attention", x, sees, places, None), w, norms[0])
            x = x + _norm(a, _feed_forward(a, w, f"{part}.feed_forward", x), w, norms[1])
            continue
        if a.top_query_layer and layer == a.layers - 1:
            x, query = _norm(a, x, w, "final_norm"), w["query_position.weight"][: len(tokens)]
        attended = x + _attention(a, w, f"{part}.attention", _norm(a, x, w, norms[0]), sees, places, query)
        read = x if a.residual is Residual.PARALLEL else attended
        feed = _feed_forward if a.experts is None or layer < a.dense_layers else _routed
        x = attended + feed(a, w, f"{part}.feed_forward", _norm(a, read, w, norms[0 if a.shared_norm else 1]))
    if not a.top_query_layer:
        x = _norm(a, x, w, "final_norm")
    logits = x @ w["embedding.weight" if a.tied_embeddings else "head.weight"].T
    return logits + w.get("head.bias", np.zeros(1))


def between(first: list[int], end: list[int]) -> Sees:
    return lambda at, to: first[to] <= at < end[to]
