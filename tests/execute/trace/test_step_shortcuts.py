"""A trace's shortcuts change nothing: cached shapes, optimizers of shards, one mode in place of three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.job.trace_job import NumberFormat, OptimizerKernel, Sharding, StepTrace, TraceAnswer, TraceJob
from suite.reproduce.traced import traced
from tests.support.traces import answered, configurations

pytestmark = pytest.mark.ranks

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
GATED = SIZES | {"intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 256}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
TYPES: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 256},
    "mixtral": GATED | EXPERTS,
    "gemma2": GATED | {"head_dim": 16, "sliding_window": 32},
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 32, "vocab_size": 256},
}
FSDP = {"ranks": 8, "sharding": Sharding.RESHARDED}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("llama", FSDP),
    ("llama", FSDP | {"optimizer": OptimizerKernel.ADAMW_FUSED, "micro_batches": 2, "recompute": True}),
    ("gpt2", {"ranks": 2, "optimizer": OptimizerKernel.SGD_MOMENTUM}),
    ("gpt2", FSDP | {"optimizer": OptimizerKernel.SGD_MOMENTUM}),
    ("mixtral", FSDP | {"number_format": NumberFormat.BF16_PURE}),
    ("gemma2", {"recompute": True, "saves_products": True}),
    ("mamba2", FSDP | {"number_format": NumberFormat.FP32}),
]


def test_a_trace_equals_one_without_its_shortcuts(tmp_path: Path) -> None:
    sources = configurations(tmp_path, TYPES)
    jobs = [TraceJob(source=sources[kind], sequence=64, **options) for kind, options in ASKED]
    lines = answered("tests.execute.trace.unhurried", jobs)
    found = [msgspec.json.decode(line, type=TraceAnswer) for line in lines]
    wrong = {}
    for case, quick, slow in zip(ASKED, traced(jobs), found, strict=True):
        assert isinstance(slow, StepTrace), (case, slow)
        values = [msgspec.to_builtins(msgspec.structs.replace(each, seconds=0)) for each in (quick, slow)]
        if different := [name for name in values[0] if values[0][name] != values[1][name]]:
            wrong[str(case)] = different
    assert wrong == {}
