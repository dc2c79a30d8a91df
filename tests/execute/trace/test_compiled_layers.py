"""A compiled trace keeps the tensors, and calls the kernels of libraries, that torch.compile's own code does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from suite.job.operators import TracePhase
from suite.job.trace_job import Compiler, ModelSource, NumberFormat, StepTrace, TraceJob
from suite.paths import ROOT
from suite.reproduce.traced import traced

pytestmark = pytest.mark.ranks

LAYERS = 2
GATED = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
GATED |= {"intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 256}
TYPES: dict[str, dict[str, Any]] = {
    "llama": GATED,
    "qwen3": GATED | {"head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "vocab_size": 256, "n_positions": 256},
    "mixtral": GATED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": GATED | {"head_dim": 16, "sliding_window": 32},
}


def library_kernels(found: StepTrace, phase: TracePhase) -> int:
    """Kernels of a layer that Inductor does not write."""
    of_layers = (o for o in found.operators if o.phase is phase and {"layers", "h"} & set(o.module.split(".")))
    return sum(o.calls for o in of_layers if not o.operator.startswith("inductor.fused")) // LAYERS


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(each, marks=pytest.mark.rare) for each in list(TYPES)[1:])])
def test_kept_bytes_and_library_kernels_are_those_of_torch_compile(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps({"model_type": kind} | TYPES[kind]))
    sizes: dict[str, Any] = {"micro_batch": 2, "sequence": 64, "number_format": NumberFormat.FP32, "on_cpu": True}
    job = TraceJob(source=ModelSource(configuration=str(path)), compiler=Compiler.CPP, **sizes)
    out = subprocess.run(
        [sys.executable, "-m", "tests.execute.trace.compiled_layers"],
        cwd=ROOT,
        input=msgspec.json.encode(job) + b"\n",
        stdout=subprocess.PIPE,
        check=True,
    )
    kept, kernels = json.loads(out.stdout.splitlines()[-1])
    (found,) = traced([job])
    assert sum(found.kept_bytes.values()) == kept
    assert [library_kernels(found, phase) for phase in (TracePhase.FORWARD, TracePhase.BACKWARD)] == kernels
