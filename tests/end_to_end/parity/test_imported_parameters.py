"""`import` counts the parameters that transformers' own model of a configuration has, for every family it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from reference_runs.hugging_face.aliases import known_type
from reference_runs.hugging_face.families import FAMILIES, imported
from suite.predict.analytic.parameters import parameter_count

NEEDED: dict[str, dict[str, Any]] = {  # no default makes a model
    "nemotron": {"num_key_value_heads": 8},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "nemotron_h": {"hybrid_override_pattern": "M-M*-"},  # without experts
}
ODD = {"vocab_size": 331, "num_hidden_layers": 3, "hidden_size": 96, "num_attention_heads": 6}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 30, "first_k_dense_replace": 1}
LATENT = {
    "kv_lora_rank": 22,
    "qk_rope_head_dim": 10,
    "qk_nope_head_dim": 14,
    "v_head_dim": 18,
    "num_key_value_heads": 6,
}
ODD_WIDTHS: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 3, "n_head": 6},
    "deepseek_v2": EXPERTS | LATENT | {"intermediate_size": 100, "q_lora_rank": None},
    "deepseek_v3": EXPERTS | LATENT | {"intermediate_size": 100, "q_lora_rank": 34, "n_group": 2, "topk_group": 1},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 3},
    "gpt_bigcode": {"n_inner": 100},
    "gpt2": {"n_inner": 100},
    "gpt_neox": {"intermediate_size": 100},
    "glm4_moe": EXPERTS | {"intermediate_size": 100, "num_key_value_heads": 3, "head_dim": 20, "n_group": 1},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 100, "num_key_value_heads": 3},
    "qwen3_next": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 30, "head_dim": 24}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
    | {"linear_conv_kernel_dim": 3, "shared_expert_intermediate_size": 60, "num_key_value_heads": 3},
    "nemotron_h": {"hybrid_override_pattern": "M-M*-M*-", "num_hidden_layers": 8, "intermediate_size": 100}
    | {"mamba_num_heads": 6, "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 3}
    | {"num_key_value_heads": 3, "head_dim": 24},
    "gptj": {"n_inner": 100, "rotary_dim": 6},
    "mpt": {},
    "phi3": {"intermediate_size": 100, "num_key_value_heads": 3, "pad_token_id": None},
    "opt": {"ffn_dim": 100, "enable_bias": False, "word_embed_proj_dim": 96},
}
LIKE_LLAMA = {"intermediate_size": 100, "num_key_value_heads": 3}
IN_STATE = "e_score_correction_bias"  # DeepSeek-V3's counts have it among the parameters; a buffer of transformers


def counts(kind: str, directory: Path, **changes: Any) -> tuple[int, int]:
    """Parameters of transformers' model with these changes of its family's defaults, and of what is imported."""
    configuration = AutoConfig.for_model(known_type(kind), **(NEEDED.get(kind, {}) | changes))
    path = directory / "config.json"
    path.write_text(json.dumps(configuration.to_dict() | {"model_type": kind}), encoding="utf-8")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configuration)
    tensors = [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if name.endswith(IN_STATE))]
    return sum(tensor.numel() for tensor in tensors), parameter_count(imported(path).architecture)


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_of_every_family(kind: str, tmp_path: Path) -> None:
    of_transformers, here = counts(kind, tmp_path)
    assert here == of_transformers


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_odd_sizes_of_every_family(kind: str, tied: bool, tmp_path: Path) -> None:
    widths = ODD_WIDTHS.get(known_type(kind), LIKE_LLAMA)
    of_transformers, here = counts(kind, tmp_path, **(ODD | widths), tie_word_embeddings=tied)
    assert here == of_transformers
