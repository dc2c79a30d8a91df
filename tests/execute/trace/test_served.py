"""Forward passes of transformers' own classes, against the formulas of serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_runs.accelerator import accelerator
from reference_runs.configured_run import configured_run
from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.trace import served
from suite.execute.trace.sources import build
from suite.job.served_job import ServedJob, ServedTrace
from suite.job.trace_job import ModelSource
from suite.predict.analytic.weight_formats import SERVED
from suite.predict.plan.serving import ServingQuestion, served_by_formula, served_by_trace
from suite.reproduce.traced import traced_serving
from tests.support.configurations import PUBLISHED

pytestmark = pytest.mark.ranks

CONTEXT, CHUNK, WINDOW = 1000, 256, 300
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
USUAL = {"mistral", "gpt_bigcode", "deepseek_v3", "gpt2"}  # a window, one head, a latent state with experts, all heads
BUFFERS = {
    "deepseek_v3": 256 * 2
}  # 16-bit biases of one router, which are parameters to us and buffers to transformers


def shallow() -> dict[str, dict[str, Any]]:
    """A released model of each type that formulas describe, with its widths and few layers."""
    found: dict[str, dict[str, Any]] = {}
    for values, _ in PUBLISHED.values():
        dense = values.get("first_k_dense_replace", 1)
        few = {key: dense + 1 for key in LAYERS if key in values}
        window = {"sliding_window": WINDOW} if values.get("sliding_window") else {}
        found.setdefault(values["model_type"], values | few | window)
    return found


def traces(directory: Path, configurations: dict[str, dict[str, Any]]) -> dict[str, tuple[Path, ServedTrace]]:
    paths = {}
    for name, values in configurations.items():
        path = paths[name] = directory / name / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(values))
    jobs = [
        ServedJob(source=ModelSource(configuration=str(path)), context=CONTEXT, usual=CONTEXT, chunk=CHUNK)
        for path in paths.values()
    ]
    return {name: (paths[name], trace) for name, trace in zip(paths, traced_serving(jobs), strict=True)}


@pytest.mark.parametrize("kinds", [USUAL, pytest.param(None, marks=pytest.mark.rare)], ids=["usual", "all"])
def test_cache_and_weights_are_those_of_the_formulas(kinds: set[str] | None, tmp_path: Path) -> None:
    question = ServingQuestion(accelerator("h100-sxm"), 1, CONTEXT, 1, CHUNK, 2, 0.9)
    chosen = {kind: values for kind, values in shallow().items() if kinds is None or kind in kinds}
    wrong = {}
    for kind, (path, trace) in traces(tmp_path, chosen).items():
        formula = served_by_formula(configured_run(path).architecture, question, 1)
        traced = served_by_trace(trace, question, 1)
        weights = [{each: rank.weights.bytes(each) for each in SERVED} for rank in (formula, traced)]
        weights[0] = {each: size - BUFFERS.get(kind, 0) for each, size in weights[0].items()}
        both = [(rank.sequence, rank.token, rank.logits) for rank in (formula, traced)]
        if weights[0] != weights[1] or both[0] != both[1]:
            wrong[kind] = (*both, *weights)
    assert wrong == {}


SCANNED = {
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 100},
    "jamba": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"intermediate_size": 128, "vocab_size": 100, "attn_layer_offset": 1, "attn_layer_period": 2, "num_experts": 2}
    | {"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False, "expert_layer_offset": 1},
}


def test_long_sequences_of_a_scan_follow_from_short_ones(tmp_path: Path) -> None:
    """Bytes of 200 tokens directly, and on the line through 32 and 64: a peak is the largest of several lines."""
    wrong = {}
    for kind, values in SCANNED.items():
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind} | values))
        allocations = Allocations(lambda: "forward pass")
        with fake_tensors(allocations), torch.no_grad():
            source = ModelSource(configuration=str(path))
            model = build(source, dtype=torch.bfloat16, micro_batch=1, sequence=None).module.eval()
            passes = served._ForwardPasses(model, allocations)
            known = passes.scanned_tokens()
            assert known == served.SHORT
            caches = passes.cache(200), passes.extended_cache(200, known)
            short, direct, extended = passes.peak(64), passes.peak(200), passes.extended_peak(200, known)
        if caches[0] != caches[1] or not short < extended <= direct or (kind == "mamba" and extended != direct):
            wrong[kind] = (*caches, direct, extended)
    assert wrong == {}
