"""FlashAttention 3 on a simulated H100: how its operators are called; a stand-in for its module notes that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated_cuda.environment import ROOT, simulated_environment

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

SAMPLES, LENGTH, HEADS, HEAD_DIM = 64, 1024, 12, 64  # of gpt2-124m
STEPS_CALLS = 8
FIRST_GRADIENT, AFTER_GRADIENTS = 7, 10  # of the operator's name and arguments


def calls(optimizations: str, directory: Path) -> list[list[Any]]:
    """Calls of the operators in two warm-up steps and two more of one layer and one micro-batch."""
    noted = directory / "calls"
    interface = str(Path(__file__).parent)
    path = os.pathsep.join([interface, *filter(None, [os.environ.get("PYTHONPATH")])])
    base = {**os.environ, "PYTHONPATH": path, "NOTED_CALLS": str(noted)}
    environment = simulated_environment(1, base=base, log=directory / "log")
    command = [sys.executable, "-m", "benchmarks.simulated_step", "gpt2-124m", "--layers", "1", "--micro-batches", "1"]
    subprocess.run(
        [*command, "--optimizations", optimizations], env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    assert "cudnn_graph" not in (directory / "log").read_text()
    found = [json.loads(line) for line in noted.read_text().splitlines()]
    return found[-STEPS_CALLS:]  # without those of a check before the first step


def test_both_passes_are_flash_attention_3_s_and_its_gradients_are_parts_of_one_where_they_are_packed(
    tmp_path: Path,
) -> None:
    found = {}
    for name in ("flash-attention-3", "flash-attention-3,packed-gradients"):
        (directory := tmp_path / name).mkdir()
        found[name] = calls(name, directory)
    apart, packed = found.values()
    assert [call[0] for call in apart] == [call[0] for call in packed] == 4 * ["fwd", "bwd"]
    shape = [SAMPLES, LENGTH, HEADS, HEAD_DIM]
    row = HEADS * HEAD_DIM
    for (forward, backward), strides in (
        (apart[:2], [LENGTH * row, row, HEAD_DIM, 1]),
        (packed[:2], [3 * LENGTH * row, 3 * row, 3 * HEAD_DIM, 1]),
    ):
        assert forward[1:4] == 3 * [[*shape, "strides", 3 * LENGTH * row, 3 * row, 3 * HEAD_DIM, 1]]
        assert backward[FIRST_GRADIENT:AFTER_GRADIENTS] == 3 * [[*shape, "strides", *strides]]
    for theirs, own in zip(apart, packed, strict=True):  # all else is as PyTorch calls it
        assert theirs[:FIRST_GRADIENT] == own[:FIRST_GRADIENT]
        assert theirs[AFTER_GRADIENTS:] == own[AFTER_GRADIENTS:]
