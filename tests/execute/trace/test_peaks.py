"""Peaks of traces against those of PyTorch's allocator, of the same steps with memory, on one CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.job.trace_job import Adapters, ModelSource, NumberFormat, OptimizerKernel, TraceJob
from suite.reproduce.traced import traced
from tests.execute.trace import models
from tests.support.traces import answered, configurations

pytestmark = [pytest.mark.ranks, pytest.mark.rare]

SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 2000}
GATED = SIZES | {"intermediate_size": 688, "num_key_value_heads": 2, "max_position_embeddings": 256}
TYPES: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "qwen3": GATED | {"head_dim": 64, "tie_word_embeddings": True},
    "gemma2": GATED | {"head_dim": 64, "sliding_window": 128},
    "olmo2": GATED,
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 2000, "n_positions": 256},
    "gpt2-1024": {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 1024},
    "bloom": {"hidden_size": 256, "n_layer": 4, "n_head": 4, "vocab_size": 2000},
    "gpt_neox": SIZES | {"intermediate_size": 1024, "max_position_embeddings": 256},
}
TYPES["gpt2-1024-no-dropout"] = TYPES["gpt2-1024"] | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
OWN = "a module of its own"
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"recompute": True, "number_format": NumberFormat.BF16_PURE, "optimizer": OptimizerKernel.SGD}),
    ("llama", {"recompute": True, "saves_products": True, "number_format": NumberFormat.BF16}),
    ("qwen3", {"number_format": NumberFormat.BF16, "optimizer": OptimizerKernel.ADAMW_FUSED}),
    ("qwen3", {"number_format": NumberFormat.BF16_PURE, "optimizer": OptimizerKernel.MUON, "micro_batches": 2}),
    ("gemma2", {"number_format": NumberFormat.BF16_PURE}),
    ("olmo2", {"recompute": True, "recompute_every": 2}),
    ("gpt2", {"number_format": NumberFormat.BF16, "micro_batches": 2}),
    ("bloom", {"optimizer": OptimizerKernel.SGD_MOMENTUM}),
    ("gpt_neox", {"number_format": NumberFormat.BF16_PURE, "recompute": True}),
    (OWN, {"number_format": NumberFormat.BF16}),
]
IN_BITS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"optimizer": OptimizerKernel.ADAMW_8BIT}),
    ("llama", {"adapters": Adapters(rank=8), "number_format": NumberFormat.BF16_PURE}),
    ("llama", {"adapters": Adapters(rank=8, quantised=True), "number_format": NumberFormat.BF16_PURE}),
    (OWN, {"adapters": Adapters(rank=8), "number_format": NumberFormat.BF16}),
]
LONG = {"adapters": Adapters(rank=8), "micro_batch": 1, "sequence": 1024}
DROPPED: list[tuple[str, dict[str, Any]]] = [
    ("gpt2-1024", LONG | {"number_format": NumberFormat.BF16_PURE}),
    ("gpt2-1024", LONG | {"number_format": NumberFormat.BF16}),
    ("gpt2-1024", LONG | {"adapters": Adapters(rank=8, quantised=True), "number_format": NumberFormat.BF16_PURE}),
    ("gpt2-1024-no-dropout", LONG | {"number_format": NumberFormat.BF16_PURE}),
    ("gpt2-1024-no-dropout", LONG | {"number_format": NumberFormat.BF16}),
]


@pytest.mark.parametrize("asked", [ASKED, IN_BITS, DROPPED], ids=["all weights", "peft and bitsandbytes", "dropout"])
def test_the_peak_is_the_allocators(asked: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    sources = {OWN: ModelSource(module=f"{models.__file__}:build")} | configurations(tmp_path, TYPES)
    jobs = []
    for kind, options in asked:
        form = {"number_format": NumberFormat.FP32, "micro_batch": 4, "sequence": 256, "on_cpu": True} | options
        jobs.append(TraceJob(source=sources[kind], **form))
    executed = [int(line) for line in answered("tests.execute.trace.executed", jobs)]
    found = [trace.peak_bytes for trace in traced(jobs)]
    # 2 %: what kernels take within an operator, such as attention's blocks
    wrong = [
        (case, peak, real)
        for case, peak, real in zip(asked, found, executed, strict=True)
        if abs(peak / real - 1) > 0.02
    ]
    assert wrong == []
