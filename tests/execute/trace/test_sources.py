"""Traces of transformers' own classes, against formulas and against counts of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference_runs.configured_run import configured_run
from reference_runs.errors import InputError
from suite.job.operators import TracePhase
from suite.job.trace_job import ModelSource, NumberFormat, TraceJob
from suite.predict.analytic.flop import model_flop
from suite.predict.analytic.parameters import parameter_count
from suite.reproduce.traced import traced

pytestmark = pytest.mark.ranks

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
GATED = SIZES | {"intermediate_size": 688, "num_key_value_heads": 2, "max_position_embeddings": 128}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
DESCRIBED: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "qwen3": GATED | {"head_dim": 64},
    "gemma": GATED | {"head_dim": 64},
    "mixtral": GATED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 128},
    "bloom": {"hidden_size": 256, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "seq_length": 128},
    "gpt_neox": SIZES | {"intermediate_size": 1024, "max_position_embeddings": 128},
    "opt": SIZES | {"ffn_dim": 1024, "max_position_embeddings": 128, "word_embed_proj_dim": 256},
    "deepseek_v3": GATED
    | ROUTED
    | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    | {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    | {"num_key_value_heads": 4},
    "glm4_moe": GATED
    | ROUTED
    | {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "head_dim": 64,
        "attention_bias": True,
    },
    "qwen3_next": GATED
    | ROUTED
    | {"num_hidden_layers": 4, "head_dim": 64, "num_experts": 4, "shared_expert_intermediate_size": 128}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 48},
    "nemotron_h": GATED
    | {"hybrid_override_pattern": "M-M*-M-", "num_hidden_layers": 7, "head_dim": 64, "mlp_hidden_act": "relu2"}
    | {"mamba_num_heads": 8, "mamba_head_dim": 40, "n_groups": 2, "ssm_state_size": 48},
    "gpt_oss": GATED | {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 48},
}
# biases of one router, which are parameters to us and buffers to transformers
BUFFERS = dict.fromkeys(("deepseek_v3", "glm4_moe"), 4)


def written(directory: Path, kind: str, values: dict[str, Any]) -> Path:
    path = directory / kind / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"model_type": kind} | values))
    return path


def test_parameters_and_flop_are_those_of_the_formulas(tmp_path: Path) -> None:
    paths = {kind: written(tmp_path, kind, values) for kind, values in DESCRIBED.items()}
    jobs = [
        TraceJob(
            source=ModelSource(configuration=str(path)),
            number_format=NumberFormat.BF16_PURE,
            micro_batch=2,
            sequence=128,
        )
        for path in paths.values()
    ]
    wrong = {}
    for (kind, path), found in zip(paths.items(), traced(jobs), strict=True):
        run = configured_run(path, sequence=128)
        forward = sum(
            each.calls * each.flop
            for each in found.operators
            if each.phase is TracePhase.FORWARD and "conv" not in each.operator  # of linear attention: no product here
        )
        elements = parameter_count(run.architecture) - BUFFERS.get(kind, 0)
        expected = elements, model_flop(run.architecture, samples=2) / 3
        if (found.parameters.total, forward) != expected:
            wrong[kind] = (found.parameters.total, forward), expected
    assert wrong == {}


def test_a_mask_that_execution_leaves_out_is_not_stored(tmp_path: Path) -> None:
    source = ModelSource(configuration=str(written(tmp_path, "llama", GATED)))
    (found,) = traced([TraceJob(source=source, sequence=96)])
    square = [o.operator for o in found.operators if any(sizes[-2:] == (96, 96) for sizes in o.sizes)]
    assert square == []


def test_what_transformers_does_not_know_is_said(tmp_path: Path) -> None:
    for kind, words in (("no_such_type", "has no model of type"), ("vit", "has no causal language model")):
        source = ModelSource(configuration=str(written(tmp_path, kind, {})))
        with pytest.raises(InputError, match=words):
            traced([TraceJob(source=source)])
