from __future__ import annotations

import pytest

from reference_runs.catalog import reference_run
from reference_runs.miniature_shape import SCALES, scaled_architecture

ROUTED = ["mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "grok-1"]


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("scale", SCALES)
def test_a_mixture_of_experts_stays_one(name: str, scale: str) -> None:
    large = reference_run(name).architecture
    small, w = scaled_architecture(large, SCALES[scale])
    small.check("here")
    assert small.experts == min(large.experts or 0, SCALES[scale].most_experts)
    assert 1 <= small.experts_per_token <= large.experts_per_token
    assert small.shared_experts == large.shared_experts
    assert (small.dense_layers > 0) == (large.dense_layers > 0)
    assert small.dense_layers < small.layers
    if large.expert_ffn_hidden is not None:
        assert small.expert_ffn_hidden == large.expert_ffn_hidden // w
    assert (small.gate, small.gate_scale, small.balancing) == (large.gate, large.gate_scale, large.balancing)


@pytest.mark.parametrize("scale", SCALES)
def test_latent_attention_shrinks_with_the_hidden_size_and_its_heads(scale: str) -> None:
    large = reference_run("deepseek-v3").architecture
    small, w = scaled_architecture(large, SCALES[scale])
    assert (small.query_rank, small.key_value_rank) == (1536 // w, 512 // w)
    divisor = large.head_dim // small.head_dim
    assert small.value_head_dim == 128 // divisor
    assert small.rotary_dim == 64 // divisor
    assert small.heads == small.kv_heads
