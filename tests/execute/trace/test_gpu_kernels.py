"""Dropout and attention of a trace: what CUDA's kernels keep, and what a CPU's do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.job.operators import OperatorKind
from suite.job.trace_job import ModelSource, NumberFormat, StepTrace, TraceJob
from suite.reproduce.traced import traced

pytestmark = pytest.mark.ranks

HIDDEN, TOKENS, HEADS, LAYERS = 64, 128, 4, 2
SIZES = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 100, "n_positions": TOKENS}
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


def kept(trace: StepTrace, part: str) -> int:
    return sum(size for module, size in trace.kept_bytes.items() if module.endswith(part))


def test_a_gpu_keeps_a_byte_an_element_and_no_scores(tmp_path: Path) -> None:
    jobs = []
    for name, values in (("usual", {}), ("without", NO_DROPOUT)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"model_type": "gpt2"} | SIZES | values))
        options = {"number_format": NumberFormat.BF16_PURE, "sequence": TOKENS}
        jobs += [TraceJob(source=ModelSource(configuration=str(path)), on_cpu=cpu, **options) for cpu in (False, True)]
    gpu, cpu, gpu_without, cpu_without = traced(jobs)
    elements, scores = TOKENS * HIDDEN, HEADS * TOKENS**2
    for part, dropouts in ((".drop", 1), ("resid_dropout", LAYERS), ("mlp.dropout", LAYERS)):
        assert kept(gpu, part) == dropouts * elements
        assert kept(cpu, part) == 2 * dropouts * elements
    assert kept(gpu, ".attn") == kept(gpu_without, ".attn")
    # the softmax and a factor in fp32, and their product in bf16; the query, key, value and mask are small beside them
    assert kept(cpu, ".attn") > 10 * LAYERS * scores > kept(gpu, ".attn")
    fused = [sum(each.calls for each in t.operators if each.kind is OperatorKind.ATTENTION) for t in (gpu, cpu)]
    assert fused == [2 * LAYERS, 0]
    assert gpu_without.peak_bytes == cpu_without.peak_bytes


def test_values_narrower_than_keys_are_attended_to_without_scores(tmp_path: Path) -> None:
    latent = {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": 100}
    sizes |= {"num_key_value_heads": HEADS, "intermediate_size": 96, "first_k_dense_replace": LAYERS}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "deepseek_v3", "max_position_embeddings": 4096} | sizes | latent))
    options = {"number_format": NumberFormat.BF16_PURE, "sequence": 1024}
    jobs = [TraceJob(source=ModelSource(configuration=str(path)), on_cpu=cpu, **options) for cpu in (False, True)]
    gpu, cpu = traced(jobs)
    scores = LAYERS * HEADS * 1024**2
    assert kept(cpu, "self_attn") > 4 * scores > kept(gpu, "self_attn")
    fused = [sum(each.calls for each in t.operators if each.kind is OperatorKind.ATTENTION) for t in (gpu, cpu)]
    assert fused == [2 * LAYERS, 0]
    # the output has the values' width, the gradients of queries the keys'
    assert {each.sizes[2][-1] for each in gpu.operators if "efficient_attention" in each.operator} == {32, 48}
