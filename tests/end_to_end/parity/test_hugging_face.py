"""Logits and gradients of each family equal those of its implementation in transformers, on the same weights, in fp32.

Letters of shapes: B samples, T tokens, D hidden, H heads, K head size, V vocabulary rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from reference_runs.catalog import reference_run
from reference_runs.run import (
    Activation,
    Architecture,
    Balancing,
    Gate,
    Norm,
    ProductFormat,
    QueryKeyNorm,
    RotaryScaling,
)
from suite.execute.model.decoder import Decoder
from tests.support.configurations import configuration_of
from tests.support.launches import FP32_WITHOUT_DROPOUT

pytestmark = pytest.mark.ranks

# odd sizes: no power of two among heads, head size, layers, vocabulary and length
SIZES = [
    {"layers": 2, "heads": 4, "head_dim": 16, "vocabulary": 128, "sequence": 32},
    {"layers": 3, "heads": 7, "head_dim": 12, "vocabulary": 211, "sequence": 29},
]
# Families that no recorded run has: the run whose architecture they vary, and how
LLAMA = "llama2-70b"
SCALING: dict[str, Any] = {  # wavelengths of the sizes' heads lie within all three bands
    "rotary_base": 500000.0,
    "rotary_scaling_factor": 8.0,
    "rotary_scaling_low": 1.0,
    "rotary_scaling_high": 4.0,
    "rotary_scaling_sequence": 1024,
}
YARN: dict[str, Any] = SCALING | {
    "rotary_scaling": RotaryScaling.YARN,
    "rotary_scaling_factor": 40.0,
    "rotary_scaling_high": 32.0,
    "rotary_scaling_amplitude": 0.1 * math.log(40) + 1,
}
YARN_OF_SCORES: dict[str, Any] = YARN | {
    "rotary_scaling_amplitude": (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
    "score_scale": (0.1 * math.log(40) + 1) ** 2,
}
ROUTED: dict[str, Any] = {
    "gate": Gate.SOFTMAX_OF_CHOSEN,
    "balancing": Balancing.AUXILIARY_LOSS,
    "auxiliary_loss_weight": 0.02,
}
DEEPSEEK = "deepseek-v3"
LATENT: dict[str, Any] = {
    "query_rank": 18,
    "key_value_rank": 14,
    "value_head_dim": 10,
    "dense_layers": 1,
    "experts": 12,
    "experts_per_token": 3,
    "expert_ffn_hidden": 20,
    "expert_groups": 4,
    "groups_per_token": 2,
}
SOFTMAX: dict[str, Any] = {"gate": Gate.SOFTMAX, "gate_scale": 16.0, "shared_experts": 2}
VARIED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama-grouped": (LLAMA, {"grouped": True}),
    "llama-scaled": (LLAMA, {"grouped": True, **SCALING}),
    "qwen2": (LLAMA, {"grouped": True, "attention_bias": True, "rotary_base": 1e6}),
    "qwen2-yarn": (LLAMA, {"grouped": True, "attention_bias": True, **YARN}),
    "qwen2-yarn-unrounded": (
        LLAMA,
        {"grouped": True, "attention_bias": True, **YARN, "rotary_scaling": RotaryScaling.YARN_UNROUNDED},
    ),
    "qwen3": (
        LLAMA,
        {
            "grouped": True,
            "narrow": True,
            "query_key_norm": QueryKeyNorm.HEAD,
            "rotary_base": 1e6,
            "norm_epsilon": 1e-6,
        },
    ),
    "olmo2": (LLAMA, {"grouped": True, "norm": Norm.OUTPUT_RMS_NORM, "query_key_norm": QueryKeyNorm.PROJECTION}),
    "mixtral": (LLAMA, {"grouped": True, "experts": 8, "experts_per_token": 2, "rotary_base": 1e6} | ROUTED),
    "qwen3-moe": (
        LLAMA,
        {
            "grouped": True,
            "narrow": True,
            "query_key_norm": QueryKeyNorm.HEAD,
            "experts": 11,
            "experts_per_token": 3,
            "expert_ffn_hidden": 20,
        }
        | ROUTED,
    ),
    "gemma": (
        LLAMA,
        {
            "grouped": True,
            "narrow": True,
            "activation": Activation.GEGLU_TANH,
            "tied_embeddings": True,
            "scaled_embedding": True,
            "norm_epsilon": 1e-6,
        },
    ),
    "qwen2-moe": (
        LLAMA,
        {"grouped": True, "attention_bias": True, "experts": 11, "experts_per_token": 3, "expert_ffn_hidden": 20}
        | {"shared_experts": 3, "shared_gate": True, **ROUTED, "gate": Gate.SOFTMAX},
    ),
    "deepseek-v3": (DEEPSEEK, LATENT),
    "deepseek-v3-yarn": (DEEPSEEK, LATENT | YARN_OF_SCORES),
    "deepseek-v2": (DEEPSEEK, LATENT | SOFTMAX),
    "deepseek-v2-lite": (
        DEEPSEEK,
        LATENT | SOFTMAX | {"query_rank": None, "expert_groups": None, "groups_per_token": None, "gate_scale": None},
    ),
}
PLAIN = FP32_WITHOUT_DROPOUT | {"product_format": ProductFormat.NONE}
RELATIVE = 1e-5  # fp32, as stated for this comparison; sums of up to 4 h = 336 terms


def shape_of(name: str, size: dict[str, int]) -> Architecture:
    """The recorded architecture of a run, or a variation, in another size.

    Grouped queries have half as many keys as heads, of an odd number of heads one; hidden states that are narrow have
    half the width of all heads.
    """
    run, varied = VARIED.get(name, (name, {}))
    changes = dict(varied)
    grouped, narrow = changes.pop("grouped", False), changes.pop("narrow", False)
    recorded = msgspec.structs.replace(reference_run(run).architecture, **changes)
    hidden = size["heads"] * size["head_dim"] // (2 if narrow else 1)
    keys = size["heads"] // 2 if size["heads"] % 2 == 0 else 1
    rotary_dim = None if recorded.rotary_dim is None else size["head_dim"] * recorded.rotary_dim // recorded.head_dim
    if recorded.key_value_rank is not None:
        rotary_dim = 2 * (size["head_dim"] // 6)
    return msgspec.structs.replace(
        recorded,
        **size,
        hidden=hidden,
        kv_heads=keys if grouped else size["heads"],
        ffn_hidden=4 * hidden,
        padded_vocabulary=size["vocabulary"],
        rotary_dim=rotary_dim,
    )


# The family by whose keys `configuration_of` describes another one; and what its configurations say besides
KEYS_OF = {
    **dict.fromkeys(("qwen2", "olmo2", "gemma"), "llama"),
    **{"qwen2_moe": "qwen3_moe", "deepseek_v2": "deepseek_v3"},
}
MORE: dict[str, dict[str, Any]] = {
    "opt": {"dropout": 0.0},
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "olmo2": {"pad_token_id": None},  # whose row would have no gradient
    "gemma": {"hidden_activation": "gelu_pytorch_tanh", "pad_token_id": None},
}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}  # PyTorch's grouped GEMM refuses odd sizes


def model_of(kind: str, a: Architecture) -> Any:
    """The model that transformers makes of the configuration of this shape."""
    values = configuration_of(a, KEYS_OF.get(kind, kind)) | MORE.get(kind, {}) | {"model_type": kind}
    if values.get("head_dim", a.head_dim) is None:
        del values["head_dim"]  # DeepSeek's is the rotated part
    if rope := values.get("rope_scaling"):
        rope.pop("attention_factor", None)  # transformers computes it
        values["max_position_embeddings"] = max(a.sequence, a.rotary_scaling_sequence or 0)
        if a.score_scale is not None:  # DeepSeek's; rotated queries and keys by the ratio of both
            rope |= {"mscale": 0.707, "mscale_all_dim": 1.0}
    if kind == "qwen2_moe":
        values["shared_expert_intermediate_size"] = a.shared_experts * a.expert_width
    if kind == "deepseek_v2":
        values["topk_method"] = "greedy" if a.expert_groups is None else "group_limited_greedy"
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values, **EAGER))


def by_part(weight: Tensor, a: Architecture) -> Tensor:
    """Rows [H, 3, K, ...] of our fused projection in the order [3, H, K, ...]: queries, keys, values."""
    return weight.reshape(a.heads, 3, a.head_dim, -1).transpose(0, 1).reshape(weight.shape)


def same(weight: Tensor, _: Architecture) -> Tensor:
    return weight


def transposed(weight: Tensor, _: Architecture) -> Tensor:
    return weight.T


Rename = dict[str, tuple[str, Callable[[Tensor, Architecture], Tensor]]]


def pairs(layer: str, names: dict[str, str], *, fused: Callable[[Tensor, Architecture], Tensor], linear: Any) -> Rename:
    """Ours -> (theirs, how the tensor is laid out there), for the weights and biases of a layer."""
    out: Rename = {}
    for ours, theirs in names.items():
        matrix = fused if ours.endswith("query_key_value") else same if ours.endswith("norm") else linear
        out[f"blocks.{{}}.{ours}.weight"] = f"{layer}.{theirs}.weight", matrix
        out[f"blocks.{{}}.{ours}.bias"] = f"{layer}.{theirs}.bias", fused if matrix is fused else same
    return out


def gpt2_fused(weight: Tensor, a: Architecture) -> Tensor:
    parts = by_part(weight, a)
    return parts if parts.dim() == 1 else parts.T


MEGATRON = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.expansion": "mlp.dense_h_to_4h",
    "feed_forward.contraction": "mlp.dense_4h_to_h",
}
FAMILIES: dict[str, tuple[str, Rename]] = {  # model_type, and the names of its tensors
    "bloom-176b": (
        "bloom",
        {
            "embedding.weight": ("transformer.word_embeddings.weight", same),
            "embedding_norm.weight": ("transformer.word_embeddings_layernorm.weight", same),
            "embedding_norm.bias": ("transformer.word_embeddings_layernorm.bias", same),
            "final_norm.weight": ("transformer.ln_f.weight", same),
            "final_norm.bias": ("transformer.ln_f.bias", same),
        }
        | pairs(
            "transformer.h.{}",
            MEGATRON
            | {
                "attention.query_key_value": "self_attention.query_key_value",
                "attention.projection": "self_attention.dense",
            },
            fused=same,
            linear=same,
        ),
    ),
    "gpt-neox-20b": (
        "gpt_neox",
        {
            "embedding.weight": ("gpt_neox.embed_in.weight", same),
            "head.weight": ("lm_head.weight", same),
            "final_norm.weight": ("gpt_neox.final_layer_norm.weight", same),
            "final_norm.bias": ("gpt_neox.final_layer_norm.bias", same),
        }
        | pairs(
            "gpt_neox.layers.{}",
            MEGATRON
            | {"attention.query_key_value": "attention.query_key_value", "attention.projection": "attention.dense"},
            fused=same,
            linear=same,
        ),
    ),
    "gpt2-124m": (
        "gpt2",
        {
            "embedding.weight": ("transformer.wte.weight", same),
            "position.weight": ("transformer.wpe.weight", same),
            "final_norm.weight": ("transformer.ln_f.weight", same),
            "final_norm.bias": ("transformer.ln_f.bias", same),
        }
        | pairs(
            "transformer.h.{}",
            {
                "attention_norm": "ln_1",
                "attention.query_key_value": "attn.c_attn",
                "attention.projection": "attn.c_proj",
                "feed_forward_norm": "ln_2",
                "feed_forward.expansion": "mlp.c_fc",
                "feed_forward.contraction": "mlp.c_proj",
            },
            fused=gpt2_fused,
            linear=transposed,
        ),
    ),
}
SPLIT = ("q_proj", "k_proj", "v_proj")  # projections of OPT, Llama and Qwen stand apart
GATES = ("gate_proj", "up_proj")
OPT_NAMES: Rename = {
    "embedding.weight": ("model.decoder.embed_tokens.weight", same),
    "position.weight": ("model.decoder.embed_positions.weight", same),
    "final_norm.weight": ("model.decoder.final_layer_norm.weight", same),
    "final_norm.bias": ("model.decoder.final_layer_norm.bias", same),
} | pairs(
    "model.decoder.layers.{}",
    {
        "attention_norm": "self_attn_layer_norm",
        "attention.projection": "self_attn.out_proj",
        "feed_forward_norm": "final_layer_norm",
        "feed_forward.expansion": "fc1",
        "feed_forward.contraction": "fc2",
    },
    fused=same,
    linear=same,
)
FAMILIES["opt-175b"] = ("opt", OPT_NAMES)
LLAMA_NAMES: Rename = {
    "embedding.weight": ("model.embed_tokens.weight", same),
    "final_norm.weight": ("model.norm.weight", same),
    "head.weight": ("lm_head.weight", same),
} | pairs(
    "model.layers.{}",
    {
        "attention_norm": "input_layernorm",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.projection": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.contraction": "mlp.down_proj",
    },
    fused=same,
    linear=same,
)
OLMO2_NAMES = LLAMA_NAMES | {
    "blocks.{}.attention_norm.weight": ("model.layers.{}.post_attention_layernorm.weight", same),
    "blocks.{}.feed_forward_norm.weight": ("model.layers.{}.post_feedforward_layernorm.weight", same),
}


def of_experts(weight: Tensor, a: Architecture) -> Tensor:
    """Our rows of the experts one below the other, [E F, ...], as [E, F, ...]."""
    assert a.experts is not None
    by_expert: Tensor = weight.unflatten(0, (a.experts, -1))
    return by_expert


def gates_first(weight: Tensor, a: Architecture) -> Tensor:
    """The rows of each expert, [F, 2] with gate and gated, as all gates and then all gated ones."""
    gated: Tensor = of_experts(weight, a).unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return gated


ROUTED_NAMES: Rename = LLAMA_NAMES | {
    "blocks.{}.feed_forward.router.weight": ("model.layers.{}.mlp.gate.weight", same),
    "blocks.{}.feed_forward.experts.expansion.weight": ("model.layers.{}.mlp.experts.gate_up_proj", gates_first),
    "blocks.{}.feed_forward.experts.contraction.weight": ("model.layers.{}.mlp.experts.down_proj", of_experts),
}


def neighbours(rows: Tensor) -> Tensor:
    """Rows [2, R / 2, ...] that are rotated in pairs, a half apart, in the order [R / 2, 2, ...]."""
    paired: Tensor = rows.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)
    return paired


def rotated_last(weight: Tensor, a: Architecture) -> Tensor:
    """The rows of each head's queries with the rotated ones last, in pairs of neighbours."""
    assert a.rotary_dim is not None
    heads = [torch.cat([head[a.rotary_dim :], neighbours(head[: a.rotary_dim])]) for head in weight.chunk(a.heads)]
    return torch.cat(heads)


def rotated_in_pairs(weight: Tensor, a: Architecture) -> Tensor:
    """The rows of the compressed keys and values, and then the rotated key of all heads."""
    assert a.key_value_rank is not None
    return torch.cat([weight[: a.key_value_rank], neighbours(weight[a.key_value_rank :])])


QWEN2_MOE_NAMES = ROUTED_NAMES | {
    "blocks.{}.feed_forward.shared_experts.contraction.weight": (
        "model.layers.{}.mlp.shared_expert.down_proj.weight",
        same,
    ),
    "blocks.{}.feed_forward.shared_gate.weight": ("model.layers.{}.mlp.shared_expert_gate.weight", same),
}


def less_one(gain: Tensor, _: Architecture) -> Tensor:
    """Gemma's gains are kept less 1."""
    return gain - 1


GEMMA_NAMES = {
    ours: (theirs, less_one if ours.endswith("norm.weight") else how) for ours, (theirs, how) in LLAMA_NAMES.items()
}
LATENT_NAMES: Rename = ROUTED_NAMES | pairs(
    "model.layers.{}",
    {
        "attention.query_compression": "self_attn.q_a_proj",
        "attention.query_compression_norm": "self_attn.q_a_layernorm",
        "attention.query_expansion": "self_attn.q_b_proj",
        "attention.query": "self_attn.q_proj",
        "attention.key_value_compression": "self_attn.kv_a_proj_with_mqa",
        "attention.key_value_compression_norm": "self_attn.kv_a_layernorm",
        "attention.key_value_expansion": "self_attn.kv_b_proj",
        "feed_forward.shared_experts.contraction": "mlp.shared_experts.down_proj",
    },
    fused=same,
    linear=same,
)
for kind, laid_out in (
    ("query_expansion", rotated_last),
    ("query", rotated_last),
    ("key_value_compression", rotated_in_pairs),
):
    theirs_name, _ = LATENT_NAMES[f"blocks.{{}}.attention.{kind}.weight"]
    LATENT_NAMES[f"blocks.{{}}.attention.{kind}.weight"] = theirs_name, laid_out
FAMILIES |= {
    "llama": ("llama", LLAMA_NAMES),
    "llama-grouped": ("llama", LLAMA_NAMES),
    "llama-scaled": ("llama", LLAMA_NAMES),
    "qwen2": ("qwen2", LLAMA_NAMES),
    "qwen2-yarn": ("qwen2", LLAMA_NAMES),
    "qwen2-yarn-unrounded": ("qwen2", LLAMA_NAMES),
    "qwen3": ("qwen3", LLAMA_NAMES),
    "olmo2": ("olmo2", OLMO2_NAMES),
    "mixtral": ("mixtral", ROUTED_NAMES),
    "qwen3-moe": ("qwen3_moe", ROUTED_NAMES),
    "gemma": ("gemma", GEMMA_NAMES),
    "qwen2-moe": ("qwen2_moe", QWEN2_MOE_NAMES),
    "deepseek-v3": ("deepseek_v3", LATENT_NAMES),
    "deepseek-v3-yarn": ("deepseek_v3", LATENT_NAMES),
    "deepseek-v2": ("deepseek_v2", LATENT_NAMES),
    "deepseek-v2-lite": ("deepseek_v2", LATENT_NAMES),
}


def of_groups(weight: Tensor, a: Architecture) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of queries, keys and values, each by head, of our fused projection's [G, R + 2, K]."""
    shared = a.heads // a.kv_heads
    groups = weight.reshape(a.kv_heads, shared + 2, a.head_dim, *weight.shape[1:])
    queries, keys, values = (part.flatten(0, 2) for part in groups.split((shared, 1, 1), dim=1))
    return queries, keys, values


def named_pairs(ours: Decoder, theirs: nn.Module, name: str, *, gradients: bool) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of ours, laid out as theirs, beside theirs; together they are all of both models."""
    a = ours.architecture
    _, names = FAMILIES[name]
    left = {key: p.grad if gradients else p.data for key, p in ours.named_parameters()}
    right = {key: p.grad if gradients else p.data for key, p in theirs.named_parameters()}
    found: list[tuple[Tensor, Tensor]] = []
    for key, value in left.items():
        assert value is not None
        _, _, rest = key.partition("blocks.")
        layer = rest.partition(".")[0]
        general = key.replace(f"blocks.{layer}.", "blocks.{}.") if rest else key
        if name in VARIED and "query_key_value" in general:
            kind = general.rpartition(".")[2]
            others = [right.pop(f"model.layers.{layer}.self_attn.{part}.{kind}") for part in SPLIT]
            of_parts = list(of_groups(value, a))
            if kind == "bias" and gradients:  # but for rounding 0, as of OPT below
                del of_parts[1], others[1]
            found += zip(of_parts, others, strict=True)
            continue
        if name in VARIED and general.endswith(("feed_forward.expansion.weight", "shared_experts.expansion.weight")):
            owner = "mlp.shared_experts" if "shared" in general else "mlp"
            owner = "mlp.shared_expert" if "shared" in general and a.shared_gate else owner
            others = [right.pop(f"model.layers.{layer}.{owner}.{part}.weight") for part in GATES]
            found += zip((value[::2], value[1::2]), others, strict=True)
            continue
        if "query_key_value" in general and name == "opt-175b":
            kind = general.rpartition(".")[2]
            others = [right.pop(f"model.decoder.layers.{layer}.self_attn.{part}.{kind}") for part in SPLIT]
            # a key's bias shifts all scores of a token alike: its gradient is 0 but for rounding, so they go together
            parts = by_part(value, a)
            found += [(parts, torch.cat(others))] if gradients else zip(parts.chunk(3), others, strict=True)
            continue
        theirs_name, laid_out = names[general]
        laid_out = same if gradients and laid_out is less_one else laid_out
        other = right.pop(theirs_name.format(layer))
        found.append((laid_out(value, a), other))
    assert not right, sorted(right)
    return found


@pytest.mark.parametrize("size", SIZES, ids=["even", "odd"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients_equal_those_of_transformers(name: str, size: dict[str, int]) -> None:
    architecture = shape_of(name, size)
    if architecture.experts is not None:  # their logits have no auxiliary loss: a test of its own
        by_bias = name.startswith("deepseek-v3")
        balancing = Balancing.BIAS if by_bias else Balancing.NONE
        none = dict.fromkeys(("auxiliary_loss_weight", "sequence_loss_weight"))
        rate = 0.001 if by_bias else None
        architecture = msgspec.structs.replace(architecture, balancing=balancing, balancing_rate=rate, **none)
    recipe = msgspec.structs.replace(reference_run(VARIED.get(name, (name,))[0]).recipe, **PLAIN)
    torch.manual_seed(3)
    ours = Decoder(architecture, recipe)
    theirs = model_of(FAMILIES[name][0], architecture).train()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.1))
        for own, other in named_pairs(ours, theirs, name, gradients=False):
            other.copy_(own)
        for layer, router in ours.routers.items():
            if router.bias is not None:  # moves the choice, and not the gates
                router.bias.copy_(0.2 * torch.randn_like(router.bias))
                theirs.model.layers[layer].mlp.gate.e_score_correction_bias.copy_(router.bias)
    tokens = torch.randint(architecture.vocabulary, (2, architecture.sequence))
    targets = torch.randint(architecture.vocabulary, (2, architecture.sequence))
    got, expected = ours(tokens), theirs(input_ids=tokens).logits
    assert relative(got, expected) <= RELATIVE
    cross_entropy(got.flatten(0, 1), targets.flatten()).backward()
    cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    for own, other in named_pairs(ours, theirs, name, gradients=True):
        assert relative(own, other) <= RELATIVE


@pytest.mark.parametrize("size", SIZES, ids=["even", "odd"])
def test_the_auxiliary_loss_and_its_gradient_equal_those_of_transformers_for_a_layer(size: dict[str, int]) -> None:
    # of several, transformers multiplies the mean shares and probabilities over layers, we average the products
    architecture = msgspec.structs.replace(shape_of("mixtral", size), layers=1)
    recipe = msgspec.structs.replace(reference_run(LLAMA).recipe, **PLAIN)
    torch.manual_seed(3)
    ours, theirs = Decoder(architecture, recipe), model_of("mixtral", architecture).train()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        for own, other in named_pairs(ours, theirs, "mixtral", gradients=False):
            other.copy_(own)
    tokens = torch.randint(architecture.vocabulary, (2, architecture.sequence))
    expected = theirs(input_ids=tokens, output_router_logits=True)
    ours(tokens).backward(gradient=torch.zeros_like(expected.logits))
    (expected.aux_loss * architecture.auxiliary_loss_weight).backward()
    router = ours.routers[0]
    assert router.statistics.auxiliary_loss == pytest.approx(expected.aux_loss.item(), rel=RELATIVE)
    assert relative(router.weight.grad, theirs.model.layers[0].mlp.gate.weight.grad) <= RELATIVE


def relative(got: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference over the largest value."""
    assert got is not None
    assert expected is not None
    got, expected = got.detach(), expected.detach()
    return float((got - expected).abs().max() / expected.abs().max())
