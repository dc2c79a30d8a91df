"""The decoder against an independent float64 forward pass in NumPy, and the laws that it must keep."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reference_runs.run import Activation, Architecture, Position, Recipe, Residual
from suite.execute.model.block import ACTIVATIONS
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.objective import causal_lm_loss
from tests.launches import FP32_WITHOUT_DROPOUT, small_plan

Array = NDArray[np.float64]


def _variant(**changes: Any) -> tuple[Architecture, Recipe]:
    plan = small_plan(ranks=1, recipe={**FP32_WITHOUT_DROPOUT, "init_std": 0.3})
    shape = {"heads": 3, "head_dim": 7, "kv_heads": 3, "hidden": 21, "ffn_hidden": 29, "padded_vocabulary": 53}
    small = msgspec.structs.replace(plan.architecture, vocabulary=51, sequence=13, **(shape | changes))
    return small, plan.recipe


def _decoder(architecture: Architecture, recipe: Recipe, *, recompute: bool = False) -> Decoder:
    torch.manual_seed(5)
    decoder = Decoder(architecture, recipe, recompute=recompute)
    initialise(decoder, recipe)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:  # biases and gains that are not 0 and 1 show where they are used
                parameter.add_(0.1 * torch.randn_like(parameter))
    return decoder


def _norm(x: Array, w: dict[str, Array], name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _act(kind: Activation, x: Array) -> Array:
    if kind is Activation.RELU:
        return np.maximum(x, 0)
    if kind is Activation.GELU:
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    if kind is Activation.FAST_GELU:
        return x / (1 + np.exp(-1.702 * x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attention(a: Architecture, w: dict[str, Array], name: str, x: Array) -> Array:
    length = x.shape[0]
    qkv = x @ w[f"{name}.query_key_value.weight"].T + w[f"{name}.query_key_value.bias"]
    q, k, v = (part.reshape(length, a.heads, a.head_dim) for part in np.split(qkv, 3, axis=-1))
    if a.rotary_dim is not None and a.rotary_base is not None:
        half = a.rotary_dim // 2
        for place in range(length):
            for i in range(half):
                # as complex numbers: multiplied by e^(i angle)
                turn = np.exp(1j * place * a.rotary_base ** (-2 * i / a.rotary_dim))
                for x_THK in (q, k):
                    turned = (x_THK[place, :, i] + 1j * x_THK[place, :, i + half]) * turn
                    x_THK[place, :, i], x_THK[place, :, i + half] = turned.real, turned.imag
    out = np.zeros((length, a.heads, a.head_dim))
    # Press et al.: three heads have the slopes of two, 1/16 and 1/256, and the first of four, 1/4
    slopes = [1 / 16, 1 / 256, 1 / 4] if a.position is Position.ALIBI else [0.0] * a.heads
    for head in range(a.heads):
        for at in range(length):
            scores = np.array(
                [q[at, head] @ k[to, head] / math.sqrt(a.head_dim) - slopes[head] * (at - to) for to in range(at + 1)]
            )
            weights = np.exp(scores - scores.max())
            out[at, head] = (weights / weights.sum()) @ v[: at + 1, head]
    return out.reshape(length, -1) @ w[f"{name}.projection.weight"].T + w[f"{name}.projection.bias"]


def _forward(a: Architecture, w: dict[str, Array], tokens: list[int]) -> Array:
    x = w["embedding.weight"][tokens]
    if a.position is Position.LEARNED:
        x = x + w["position.weight"][a.extra_positions : a.extra_positions + len(tokens)]
    if a.embedding_norm:
        x = _norm(x, w, "embedding_norm")
    for layer in range(a.layers):
        block = f"blocks.{layer}"
        attended = x + _attention(a, w, f"{block}.attention", _norm(x, w, f"{block}.attention_norm"))
        read = x if a.residual is Residual.PARALLEL else attended
        inner = _norm(read, w, f"{block}.feed_forward_norm") @ w[f"{block}.feed_forward.expansion.weight"].T
        inner = _act(a.activation, inner + w[f"{block}.feed_forward.expansion.bias"])
        x = attended + inner @ w[f"{block}.feed_forward.contraction.weight"].T
        x = x + w[f"{block}.feed_forward.contraction.bias"]
    return _norm(x, w, "final_norm") @ w["embedding.weight" if a.tied_embeddings else "head.weight"].T


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
    "fast gelu": {"activation": Activation.FAST_GELU},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_an_independent_float64_forward_pass(changes: dict[str, Any]) -> None:
    architecture, recipe = _variant(**changes)
    decoder = _decoder(architecture, recipe).double()
    tokens = torch.randint(0, 51, (2, 13))
    weights = {name: p.detach().numpy() for name, p in decoder.named_parameters()}
    expected = np.stack([_forward(architecture, weights, row.tolist()) for row in tokens])
    got = decoder(tokens).detach().numpy()
    # The softmax is computed in fp32, and so are the angles of rotary positions: 2^-24 each, and 2 layers of products
    # over at most 29 terms of size 1 pass that on to logits of the size of their largest.
    bound = 2 * 29 * 2.0**-24 * np.abs(expected).max()
    assert np.abs(got - expected).max() <= bound


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_later_token_changes_no_earlier_logit(changes: dict[str, Any]) -> None:
    decoder = _decoder(*_variant(**changes))
    tokens = torch.randint(0, 51, (1, 13))
    other = tokens.clone()
    other[0, 9] = (other[0, 9] + 1) % 51
    before, after = decoder(tokens)[0], decoder(other)[0]
    assert torch.equal(before[:9], after[:9])
    assert not torch.equal(before[9:], after[9:])


def test_fast_gelu_neither_overflows_nor_leaves_its_limits() -> None:
    fast = ACTIVATIONS[Activation.FAST_GELU]
    x = torch.tensor([-65504.0, -100.0, -20.0, 0.0, 20.0, 100.0, 65504.0], dtype=torch.float16)
    assert fast(x).tolist() == [0.0, 0.0, 0.0, 0.0, 20.0, 100.0, 65504.0]


def test_recomputation_changes_neither_loss_nor_gradients() -> None:
    architecture, recipe = _variant()
    recipe = msgspec.structs.replace(recipe, hidden_dropout=0.2, attention_dropout=0.2, embedding_dropout=0.2)
    tokens = torch.randint(0, 51, (2, 13), generator=torch.Generator().manual_seed(1))
    kept = []
    for recompute in (False, True):
        decoder = _decoder(architecture, recipe, recompute=recompute)
        torch.manual_seed(7)
        loss = causal_lm_loss(decoder(tokens), tokens)
        loss.backward()
        kept.append((loss.detach(), [parameter.grad for parameter in decoder.parameters()]))
    assert torch.equal(kept[0][0], kept[1][0])
    assert all(torch.equal(a, b) for a, b in zip(kept[0][1], kept[1][1], strict=True))


def test_initialisation_has_the_recorded_deviations() -> None:
    architecture, recipe = _variant(layers=2, padded_vocabulary=5000, hidden=60, heads=3, head_dim=20, ffn_hidden=240)
    decoder = Decoder(architecture, recipe, recompute=False)
    torch.manual_seed(0)
    initialise(decoder, recipe)
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
