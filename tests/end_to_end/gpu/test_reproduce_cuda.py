"""The main job on CUDA devices: the larger miniatures agree with their predictions to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference_runs.catalog import miniatures
from suite.paths import ROOT

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: needs a CUDA device"),
]


@pytest.mark.timeout(960)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, "--compile") for name in miniatures()),
        ("bloom-mini", "--no-compile"),
        *(("gpt2-mini", f"{compiled} --layout dp1,fused") for compiled in ("--compile", "--no-compile")),
    ],
)
def test_a_miniature_on_cuda_equals_its_prediction_exactly(name: str, options: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "suite", "reproduce", name, "--device", "cuda", "--steps", "6", *options.split()]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), "--json"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    exact = [row for row in reported["figures"] if row["tolerance"] == 0]
    assert {row["quantity"] for row in exact} >= {"parameters", "model_flop", "hardware_flop", "optimizer_bytes"}
    assert all(row["left"] == row["right"] for row in exact)
    (parameters,) = [row["right"] for row in exact if row["quantity"] == "parameters"]
    assert parameters >= 100_000_000
