"""Peaks of traced miniatures of transformers' types against PyTorch's caching allocator, on two simulated GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suite.machine.gpu import H100, cublas_workspace_bytes
from suite.metrics.figures import Quantity
from suite.paths import ROOT
from tests.simulated_cuda.environment import simulated_environment

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1800)]

WORKSPACES = 2 * cublas_workspace_bytes(H100)  # predicted apart, and larger than a miniature's tensors
LARGEST_DIFFERENCE = 0.02  # of the tensors' bytes
TYPES = ["gpt2", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("llama", "qwen3", "gemma2", "bloom"))]


@pytest.mark.parametrize("kind", TYPES)
def test_the_peak_of_a_traced_miniature_is_the_allocators(kind: str, tmp_path: Path) -> None:
    configuration = tmp_path / f"{kind}.json"
    configuration.write_text(json.dumps({"model_type": kind}))
    options = ("--mini", "--device", "cuda", "--ranks", "2", "--steps", "6", "--no-calibrate", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "suite", "reproduce", str(configuration), *options, "--results", str(tmp_path)],
        cwd=ROOT,
        env=simulated_environment(2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # a loss means nothing
    figures = json.loads(done.stdout)["figures"]
    assert {row["quantity"] for row in figures if row["verdict"] == "fail"} <= {"first_loss"}
    pairs = [(row["left"], row["right"]) for row in figures if row["quantity"] == Quantity.PEAK_BYTES]
    assert len(pairs) == 1 + 2  # the largest over ranks, and each
    for traced, allocated in pairs:
        assert traced - WORKSPACES == pytest.approx(allocated - WORKSPACES, rel=LARGEST_DIFFERENCE)
