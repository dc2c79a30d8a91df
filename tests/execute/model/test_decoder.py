"""The decoder against an independent float64 forward pass in NumPy, and the laws that it must keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reference_runs.layout import Recomputation
from reference_runs.run import (
    Activation,
    Architecture,
    Balancing,
    Gate,
    Mask,
    Norm,
    Position,
    QueryKeyNorm,
    Recipe,
    Residual,
    RotaryScaling,
)
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.torch_operations import ACTIVATIONS
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

Array = NDArray[np.float64]


def _variant(**changes: Any) -> tuple[Architecture, Recipe]:
    plan = small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, "init_std": 0.3})
    shape = {"heads": 3, "head_dim": 7, "kv_heads": 3, "hidden": 21, "ffn_hidden": 29, "sequence": 13}
    shape |= {"vocabulary": 51, "padded_vocabulary": 53}
    small = msgspec.structs.replace(plan.architecture, **(shape | changes))
    return small, plan.recipe


def _decoder(
    architecture: Architecture,
    recipe: Recipe,
    *,
    recomputation: Recomputation = Recomputation.NONE,
    fused_attention: bool = False,
) -> Decoder:
    torch.manual_seed(5)
    decoder = Decoder(architecture, recipe, fused_attention=fused_attention)
    decoder.recompute(recomputation)
    initialise(decoder, recipe, seed=5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:  # biases and gains that are not 0 and 1 show where they are used
                parameter.add_(0.1 * torch.randn_like(parameter))
    return decoder


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
    if a.rotary_scaling is RotaryScaling.YARN:
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
    low, high = max(math.floor(low), 0), min(math.ceil(high), dims - 1)
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


def _causal(at: int, to: int) -> bool:
    return to <= at


def _window(length: int) -> Sees:
    return lambda at, to: at - length < to <= at


def _forward(
    a: Architecture, w: dict[str, Array], tokens: list[int], sees: Sees = _causal, places: list[int] | None = None
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


LLAMA: dict[str, Any] = {
    "position": Position.ROTARY,
    "rotary_dim": 4,
    "rotary_base": 10000.0,
    "norm": Norm.PRE_RMS_NORM,
    "activation": Activation.SWIGLU,
    "biases": False,
    "embedding_norm": False,
    "tied_embeddings": False,
}
GROUPED: dict[str, Any] = {"heads": 6, "kv_heads": 2, "head_dim": 4, "hidden": 24}
MIXTURE: dict[str, Any] = {
    "experts": 5,
    "experts_per_token": 2,
    "gate": Gate.SOFTMAX_OF_CHOSEN,
    "balancing": Balancing.NONE,
}
LATENT: dict[str, Any] = {"head_dim": 10, "query_rank": 8, "key_value_rank": 5, "value_head_dim": 6}
SCALED: dict[str, Any] = {
    "rotary_scaling_factor": 8.0,
    "rotary_scaling_low": 1.0,
    "rotary_scaling_high": 4.0,
    "rotary_scaling_sequence": 1024,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "parallel residual": {"residual": Residual.PARALLEL},
    "learned, relu, untied": {
        "position": Position.LEARNED,
        "activation": Activation.RELU,
        "tied_embeddings": False,
        "embedding_norm": False,
    },
    "rotary, partly": {"position": Position.ROTARY, "rotary_dim": 4, "rotary_base": 100.0},
    "rotary, parallel, exact gelu": {
        "position": Position.ROTARY,
        "rotary_dim": 6,
        "rotary_base": 10000.0,
        "residual": Residual.PARALLEL,
        "activation": Activation.GELU,
    },
    "positions with an offset": {"position": Position.LEARNED, "extra_positions": 2},
    "relu squared": {"activation": Activation.RELU_SQUARED},
    "geglu by tanh": {"activation": Activation.GEGLU_TANH},
    "fast gelu": {"activation": Activation.FAST_GELU},
    "codegeex": {
        "position": Position.LEARNED,
        "activation": Activation.FAST_GELU,
        "embedding_norm": False,
        "top_query_layer": True,
    },
    "one layer alone, of the top query": {"position": Position.LEARNED, "top_query_layer": True, "layers": 1},
    "llama": LLAMA,
    "llama 3.1": LLAMA | GROUPED | SCALED | {"head_dim": 16, "hidden": 40, "rotary_dim": 16},
    "yarn": LLAMA
    | GROUPED
    | SCALED
    | {"head_dim": 16, "hidden": 40, "rotary_dim": 16, "rotary_scaling": RotaryScaling.YARN}
    | {"rotary_scaling_amplitude": 1.2, "rotary_scaling_high": 32.0, "score_scale": 1.9},
    "qwen2": LLAMA | GROUPED | {"attention_bias": True},
    "qwen3": LLAMA | GROUPED | {"head_dim": 10, "query_key_norm": QueryKeyNorm.HEAD},
    "olmo-2's norms": LLAMA | GROUPED | {"query_key_norm": QueryKeyNorm.PROJECTION},
    "norms of every head's projections, learned": {
        "position": Position.LEARNED,
        "query_key_norm": QueryKeyNorm.PROJECTION,
    },
    "gpt-j": LLAMA
    | {"norm": Norm.PRE_LAYER_NORM, "residual": Residual.PARALLEL, "shared_norm": True, "activation": Activation.GELU}
    | {"feed_forward_bias": True, "norm_bias": True, "head_bias": True, "rotary_dim": 2},
    "falcon-7b": LLAMA
    | {"norm": Norm.PRE_LAYER_NORM, "residual": Residual.PARALLEL, "shared_norm": True, "activation": Activation.GELU}
    | {"norm_bias": True, "kv_heads": 1, "tied_embeddings": True},
    "olmo": LLAMA | {"norm": Norm.PRE_LAYER_NORM, "norm_gain": False},
    "norms without gain": LLAMA | {"norm_gain": False},
    "gemma": LLAMA
    | {"activation": Activation.GEGLU_TANH, "head_dim": 12, "rotary_dim": 12, "tied_embeddings": True}
    | {"scaled_embedding": True},
    "mistral": LLAMA | GROUPED | {"sliding_window": 5},
    "llama, grouped queries": LLAMA | GROUPED,
    "olmo 2": LLAMA | GROUPED | {"norm": Norm.OUTPUT_RMS_NORM, "query_key_norm": QueryKeyNorm.PROJECTION},
    "llama, multi-query, learned": LLAMA
    | {"kv_heads": 1, "position": Position.LEARNED, "rotary_dim": None, "rotary_base": None},
    "grouped queries, alibi": GROUPED,
    "grouped queries, learned": GROUPED | {"position": Position.LEARNED},
    "grouped queries, top query": GROUPED | {"position": Position.LEARNED, "top_query_layer": True},
    "mixtral": LLAMA | GROUPED | MIXTURE,
    "qwen3's mixture": LLAMA
    | GROUPED
    | MIXTURE
    | {"experts": 9, "experts_per_token": 4, "expert_ffn_hidden": 7, "query_key_norm": QueryKeyNorm.HEAD},
    "shared experts, a dense layer": LLAMA
    | MIXTURE
    | {"gate": Gate.SIGMOID, "gate_scale": 2.5, "shared_experts": 2, "dense_layers": 1, "expert_ffn_hidden": 6},
    "qwen2's mixture": LLAMA | MIXTURE | {"gate": Gate.SOFTMAX, "shared_experts": 2, "shared_gate": True},
    "deepseek": LLAMA | LATENT,
    "deepseek, queries not compressed, wide values": LLAMA | LATENT | {"query_rank": None, "value_head_dim": 13},
    "deepseek-v3": LLAMA
    | LATENT
    | MIXTURE
    | {"gate": Gate.SIGMOID, "gate_scale": 2.5, "shared_experts": 1, "dense_layers": 1, "expert_ffn_hidden": 6},
    "latent attention, layer norms": LLAMA | LATENT | {"norm": Norm.PRE_LAYER_NORM, "sliding_window": 5},
    "switch, gelu": MIXTURE | {"gate": Gate.SOFTMAX, "experts_per_token": 1, "biases": False},
    "deep norm, geglu": {
        "norm": Norm.DEEP_NORM,
        "activation": Activation.GEGLU,
        "embedding_norm": False,
        "layers": 3,
        "position": Position.ROTARY,
        "rotary_dim": 6,
        "rotary_base": 10000.0,
    },
}
GLM: dict[str, Any] = {
    "norm": Norm.DEEP_NORM,
    "activation": Activation.GEGLU,
    "embedding_norm": False,
    "position": Position.ROTARY,
    "rotary_base": 10000.0,
    "mask": Mask.PREFIX,
}


FUSED = {
    f"{name}, fused": changes
    for name, changes in VARIANTS.items()
    if "position" in changes and "sliding_window" not in changes
}


@pytest.mark.parametrize(
    ("changes", "fused"),
    [*((changes, False) for changes in VARIANTS.values()), *((changes, True) for changes in FUSED.values())],
    ids=[*VARIANTS, *FUSED],
)
def test_logits_equal_an_independent_float64_forward_pass(changes: dict[str, Any], *, fused: bool) -> None:
    architecture, recipe = _variant(**changes)
    decoder = _decoder(architecture, recipe, fused_attention=fused).double()
    tokens = torch.randint(0, 51, (2, 13))
    weights = {name: p.detach().numpy() for name, p in decoder.named_parameters()}
    sees = _window(architecture.sliding_window) if architecture.sliding_window else _causal
    expected = np.stack([_forward(architecture, weights, row.tolist(), sees) for row in tokens])
    got = decoder(tokens).detach().numpy()
    # The softmax is computed in fp32, and so are the angles of rotary positions: 2^-24 each, and 2 layers of products
    # over at most 29 terms of size 1 pass that on to logits of the size of their largest.
    bound = 2 * 29 * 2.0**-24 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= bound


# two samples of each length, as first and end places that attend, and positions: a prefix, the rest generated; and
# spans at the position of their [MASK], at length 13 behind a window that is all visible but its last two tokens
BLANKS = {
    13: (
        {"heads": 3, "head_dim": 8, "hidden": 24, "kv_heads": 3, "rotary_dim": 8, "ffn_hidden": 31, "layers": 3},
        [
            ([0] * 5 + list(range(5, 13)), [13] * 13, list(range(13))),
            ([0] * 4 + [4, 5] + [6] * 4 + [10, 11, 12], [6] * 6 + [13] * 7, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 1, 1, 1]),
        ],
    ),
    8: (
        {"heads": 2, "head_dim": 6, "hidden": 12, "kv_heads": 2, "rotary_dim": 4, "ffn_hidden": 16},
        [([0, 1, 2, 3, 4, 5, 6, 7], [8] * 8, list(range(8))), ([0] * 7 + [7], [8] * 8, [0, 1, 2, 3, 4, 5, 6, 2])],
    ),
}


@pytest.mark.parametrize(("length", "keys"), [(13, 3), (13, 1), (8, 2)])
def test_logits_behind_a_prefix_equal_an_independent_float64_forward_pass(length: int, keys: int) -> None:
    changes, samples = BLANKS[length]
    architecture, recipe = _variant(**(GLM | {"sequence": length} | changes | {"kv_heads": keys}))
    decoder = _decoder(architecture, recipe).double()
    tokens = torch.randint(0, 51, (2, length))
    weights = {name: p.detach().numpy() for name, p in decoder.named_parameters()}
    expected = np.stack(
        [
            _forward(architecture, weights, row.tolist(), _between(first, end), places)
            for row, (first, end, places) in zip(tokens, samples, strict=True)
        ]
    )
    seen, positions = _arguments(samples)
    got = decoder(tokens, positions_BT=positions, seen_B2S=seen).detach().numpy()
    # as for a causal mask, over at most 31 terms and 3 layers; a norm behind each part divides what it lets pass by
    # the deviation of alpha x + f(x), at least that of x
    assert np.abs(got - expected).max() <= 3 * 31 * 2.0**-24 * np.abs(expected).max()


def _between(first: list[int], end: list[int]) -> Sees:
    return lambda at, to: first[to] <= at < end[to]


def _arguments(samples: list[tuple[list[int], list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.tensor([[first, end] for first, end, _ in samples]),
        torch.tensor([places for _, _, places in samples]),
    )


def test_the_embeddings_gradient_is_the_recorded_share_and_its_value_the_same() -> None:
    architecture, recipe = _variant(tied_embeddings=False)
    tokens = torch.randint(0, 51, (2, 13), generator=torch.Generator().manual_seed(1))
    whole, shrunk = (
        _decoder(architecture, msgspec.structs.replace(recipe, embedding_gradient_shrink=share)).double()
        for share in (None, 0.1)
    )
    losses = [decoder(tokens, tokens) for decoder in (whole, shrunk)]
    for loss in losses:
        loss.backward()
    # a x + (1 - a) x rounds x twice in float64; the loss passes that on, and is taken of logits in fp32
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    for (name, left), right in zip(whole.named_parameters(), shrunk.parameters(), strict=True):
        share = 0.1 if name == "embedding.weight" else 1.0
        assert left.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(right.grad, share * left.grad, rtol=1e-5, atol=1e-6 * left.grad.abs().max().item())


@pytest.mark.parametrize(
    "changes",
    [VARIANTS["codegeex"], VARIANTS["deep norm, geglu"], VARIANTS["llama, grouped queries"]],
    ids=["codegeex", "glm", "llama"],
)
def test_chunks_one_after_the_other_are_the_whole_model(changes: dict[str, Any]) -> None:
    architecture, recipe = _variant(**(changes | {"layers": 3}))
    whole = Decoder(architecture, recipe)
    first = Decoder(architecture, recipe, layers=range(2), last=False)
    last = Decoder(architecture, recipe, layers=range(2, 3), first=False)
    for decoder in (whole, first, last):
        initialise(decoder, recipe, seed=4)
    tokens = torch.randint(0, 51, (2, 13))
    assert torch.equal(whole(tokens), last(first(tokens)))
    names = {name for chunk in (first, last) for name, _ in chunk.named_parameters()}
    assert names == {name for name, _ in whole.named_parameters()} | {"head.weight"}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_later_token_changes_no_earlier_logit(changes: dict[str, Any]) -> None:
    decoder = _decoder(*_variant(**changes))
    tokens = torch.randint(0, 51, (1, 13))
    other = tokens.clone()
    other[0, 9] = (other[0, 9] + 1) % 51
    before, after = decoder(tokens)[0], decoder(other)[0]
    if "experts" in changes:  # products of other sizes, which round otherwise: bounds as above
        assert (before[:9] - after[:9]).abs().max() <= 2 * 29 * 2.0**-24 * before.abs().max()
    else:
        assert torch.equal(before[:9], after[:9])
    assert not torch.equal(before[9:], after[9:])


def test_fast_gelu_neither_overflows_nor_leaves_its_limits() -> None:
    fast = ACTIVATIONS[Activation.FAST_GELU]
    x = torch.tensor([-65504.0, -100.0, -20.0, 0.0, 20.0, 100.0, 65504.0], dtype=torch.float16)
    assert fast(x).tolist() == [0.0, 0.0, 0.0, 0.0, 20.0, 100.0, 65504.0]


@pytest.mark.parametrize(
    "changes", [{}, VARIANTS["codegeex"], VARIANTS["deep norm, geglu"], VARIANTS["llama, grouped queries"]]
)
def test_recomputation_changes_neither_loss_nor_gradients(changes: dict[str, Any]) -> None:
    architecture, recipe = _variant(**changes)
    recipe = msgspec.structs.replace(recipe, hidden_dropout=0.2, attention_dropout=0.2, embedding_dropout=0.2)
    tokens = torch.randint(0, 51, (2, 13), generator=torch.Generator().manual_seed(1))
    kept = []
    for recomputation in (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL):
        decoder = _decoder(architecture, recipe, recomputation=recomputation)
        torch.manual_seed(7)
        loss = decoder(tokens, tokens)
        loss.backward()
        kept.append((loss.detach(), [parameter.grad for parameter in decoder.parameters()]))
    for loss, gradients in kept[1:]:
        assert torch.equal(kept[0][0], loss)
        assert all(torch.equal(a, b) for a, b in zip(kept[0][1], gradients, strict=True))


def test_initialisation_has_the_recorded_deviations() -> None:
    architecture, recipe = _variant(layers=2, padded_vocabulary=5000, hidden=60, heads=3, head_dim=20, ffn_hidden=240)
    decoder = Decoder(architecture, recipe)
    initialise(decoder, recipe, seed=0)
    # the standard deviation of n draws is off by 1 / sqrt(2 n) of itself; four of those
    expected = {
        "embedding.weight": recipe.init_std,
        "blocks.0.feed_forward.expansion.weight": recipe.init_std,
        "blocks.1.feed_forward.contraction.weight": recipe.init_std / math.sqrt(4),
        "blocks.1.attention.projection.weight": recipe.init_std / math.sqrt(4),
    }
    for name, parameter in decoder.named_parameters():
        if name in expected:
            bound = 4 / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(expected[name], rel=bound)
        elif parameter.dim() == 1:
            assert torch.equal(parameter, torch.full_like(parameter, 1.0 if name.endswith("norm.weight") else 0.0))


def test_deep_norm_draws_the_tensors_that_it_names_from_xaviers_distribution() -> None:
    wide: dict[str, Any] = {"layers": 7, "hidden": 120, "heads": 5, "kv_heads": 5, "head_dim": 24, "ffn_hidden": 320}
    architecture, recipe = _variant(**(GLM | wide | {"rotary_dim": 24}))
    decoder = Decoder(architecture, recipe, layers=range(2))
    initialise(decoder, recipe, seed=0)
    gain = 1 / math.sqrt(2 * 7)
    weights = dict(decoder.named_parameters())
    query, key, value = weights["blocks.1.attention.query_key_value.weight"].reshape(5, 3, 24, 120).unbind(1)
    expansion = weights["blocks.0.feed_forward.expansion.weight"]
    for weight, expected in (
        (weights["embedding.weight"], recipe.init_std),
        (query, recipe.init_std),
        (key, recipe.init_std),
        (value, gain * math.sqrt(2 / 240)),
        (weights["blocks.0.attention.projection.weight"], gain * math.sqrt(2 / 240)),
        (expansion[::2], gain * math.sqrt(2 / 440)),
        (expansion[1::2], gain * math.sqrt(2 / 440)),
        (weights["blocks.1.feed_forward.contraction.weight"], gain * math.sqrt(2 / 440)),
    ):
        # as above: four deviations of the deviation of n draws
        assert weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * weight.numel()))


def test_deep_norm_draws_the_values_of_grouped_queries_as_xavier_does() -> None:
    wide: dict[str, Any] = {"layers": 7, "hidden": 120, "heads": 6, "kv_heads": 2, "head_dim": 20, "ffn_hidden": 320}
    architecture, recipe = _variant(**(GLM | wide | {"rotary_dim": 20}))
    decoder = Decoder(architecture, recipe, layers=range(1))
    initialise(decoder, recipe, seed=0)
    groups = dict(decoder.named_parameters())["blocks.0.attention.query_key_value.weight"].reshape(2, 5, 20, 120)
    for weight, expected in (
        (groups[:, :3], recipe.init_std),
        (groups[:, 3], recipe.init_std),
        (groups[:, 4], math.sqrt(2 / (120 + 40)) / math.sqrt(2 * 7)),
    ):
        assert weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * weight.numel()))


def test_a_top_query_layer_has_the_parameters_of_a_fused_one_and_its_table() -> None:
    changes = VARIANTS["codegeex"]
    top, fused = (Decoder(*_variant(**(changes | {"top_query_layer": is_top}))) for is_top in (True, False))
    count = {decoder: sum(p.numel() for p in decoder.parameters()) for decoder in (top, fused)}
    assert count[top] - count[fused] == 13 * 21


def test_one_key_a_head_is_multi_head_attention() -> None:
    grouped = {"heads": 6, "head_dim": 4, "hidden": 24} | LLAMA
    shared, apart = (Decoder(*_variant(**(grouped | {"kv_heads": keys}))) for keys in (2, 6))
    initialise(shared, _variant()[1], seed=3)
    weights = dict(shared.named_parameters())
    with torch.no_grad():
        for name, weight in apart.named_parameters():
            if not name.endswith("query_key_value.weight"):
                weight.copy_(weights[name])
                continue
            groups = weights[name].view(2, 5, 4, 24)  # three queries, a key, a value
            queries = groups[:, :3].reshape(6, 4, 24)
            keys, values = (groups[:, part].repeat_interleave(3, dim=0) for part in (3, 4))
            weight.copy_(torch.stack([queries, keys, values], dim=1).reshape(72, 24))
    tokens = torch.randint(0, 51, (2, 13))
    torch.testing.assert_close(shared(tokens), apart(tokens))


@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("position", [Position.ROTARY, Position.ALIBI])
def test_a_packed_document_has_the_logits_that_it_has_alone(position: Position, kv_heads: int) -> None:
    rotary = {"rotary_dim": 6, "rotary_base": 100.0} if position is Position.ROTARY else {}
    architecture, recipe = _variant(
        position=position, kv_heads=kv_heads, mask=Mask.DOCUMENTS, mean_document=4, embedding_norm=False, **rotary
    )
    decoder = _decoder(architecture, recipe).eval()
    alone = _decoder(msgspec.structs.replace(architecture, mask=Mask.CAUSAL, mean_document=None), recipe).eval()
    tokens_BT = torch.randint(1, architecture.vocabulary, (2, architecture.sequence))
    lengths = [[4, 1, 8], [13]]
    documents_BT = torch.tensor([[n for n, size in enumerate(row) for _ in range(size)] for row in lengths])
    with torch.no_grad():
        packed = decoder(tokens_BT, documents_BT=documents_BT)
        for sample, row in enumerate(lengths):
            first = 0
            for size in row:
                text = tokens_BT[sample : sample + 1, first : first + size]
                padded = torch.nn.functional.pad(text, (0, architecture.sequence - size))  # what comes later is unseen
                own = alone(padded)[:, :size]
                assert torch.allclose(packed[sample : sample + 1, first : first + size], own, rtol=1e-4, atol=1e-5)
                first += size
        everything = alone(tokens_BT)
    assert not torch.allclose(packed[0], everything[0], rtol=1e-2, atol=1e-2)
    assert torch.allclose(packed[1], everything[1], rtol=1e-4, atol=1e-5)
