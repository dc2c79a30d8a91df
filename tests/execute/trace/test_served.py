"""Forward passes of transformers' own classes, against the formulas of serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference_runs.accelerator import accelerator
from reference_runs.configured_run import configured_run
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
