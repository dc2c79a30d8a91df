"""The decoder against an independent float64 forward pass in NumPy, and the laws that it must keep."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

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
from tests.support.float64_decoder import between, causal, float64_logits, window
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan


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
    across_blocks: bool = False,
) -> Decoder:
    torch.manual_seed(5)
    decoder = Decoder(architecture, recipe, fused_attention=fused_attention, across_blocks=across_blocks)
    decoder.recompute(recomputation)
    initialise(decoder, recipe, seed=5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:  # biases and gains that are not 0 and 1 show where they are used
                parameter.add_(0.1 * torch.randn_like(parameter))
    return decoder


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
    "yarn without rounded ends": LLAMA
    | SCALED
    | {"head_dim": 16, "hidden": 40, "rotary_dim": 16, "rotary_scaling": RotaryScaling.YARN_UNROUNDED},
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
    sees = window(architecture.sliding_window) if architecture.sliding_window else causal
    expected = np.stack([float64_logits(architecture, weights, row.tolist(), sees) for row in tokens])
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
            float64_logits(architecture, weights, row.tolist(), between(first, end), places)
            for row, (first, end, places) in zip(tokens, samples, strict=True)
        ]
    )
    seen, positions = _arguments(samples)
    got = decoder(tokens, positions_BT=positions, seen_B2S=seen).detach().numpy()
    # as for a causal mask, over at most 31 terms and 3 layers; a norm behind each part divides what it lets pass by
    # the deviation of alpha x + f(x), at least that of x
    assert np.abs(got - expected).max() <= 3 * 31 * 2.0**-24 * np.abs(expected).max()


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


@pytest.mark.parametrize("changes", [{}, LLAMA], ids=["gpt2", "llama"])
def test_sums_computed_with_the_next_norm_change_neither_loss_nor_gradients(changes: dict[str, Any]) -> None:
    architecture, recipe = _variant(**changes)
    tokens = torch.randint(51, (2, 14), generator=torch.Generator().manual_seed(1))
    losses, gradients, normed = [], [], []
    for across_blocks in (False, True):
        decoder = _decoder(architecture, recipe, across_blocks=across_blocks)
        added = decoder.operations.added_and_normalised
        calls: list[Any] = []
        normed.append(calls)

        def counted(norm: Any, *both: Any, added: Any = added, calls: list[Any] = calls) -> Any:
            calls.append(norm)
            return added(norm, *both)

        decoder.operations.added_and_normalised = counted  # type: ignore[method-assign]
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad for parameter in decoder.parameters()])
    assert losses[0] == losses[1]
    assert all(map(torch.equal, *gradients))
    layers = architecture.layers
    assert (len(normed[0]), len(normed[1])) == (layers, 2 * layers)  # all but the first norm
    assert decoder.final_norm in normed[1]


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
