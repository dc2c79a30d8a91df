"""Any model's step is counted as one rank of a large mesh would execute it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from suite.execute.dry_run.any_model import dry_run
from suite.paths import ROOT

pytestmark = pytest.mark.ranks

# what a user would write: an ordinary model of 2 layers, split over 4 ranks and fully sharded over 16
SCRIPT = """
import json
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from suite.execute.dry_run.any_model import dry_run

def model(mesh):
    layers = [nn.Sequential(nn.Linear(4096, 16384, bias=False), nn.ReLU(), nn.Linear(16384, 4096, bias=False))
              for _ in range(2)]
    for layer in layers:
        parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(nn.Sequential(*layers), mesh=mesh["dp"])

def loss(model):
    return model(torch.randn(8, 4096)).square().mean()

counted = dry_run(model, loss, mesh={"dp": 16, "tp": 4}, rank=5)
sums = [[c.axis, c.operation, c.payload_bytes, c.messages] for c in counted.collectives]
print(json.dumps([counted.parameters, counted.flop, sums, counted.peak_bytes, counted.at_peak.bytes]))
"""
LAYER = 2 * 4096 * 16384
HIDDEN = 4 * 8 * 4096  # bytes of the hidden states


def test_an_ordinary_model_split_and_sharded_over_64_ranks() -> None:
    out = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    parameters, flop, collectives, peak, at_peak = json.loads(out.stdout.splitlines()[-1])
    assert parameters == 2 * LAYER // 64
    # forward pass, and both gradients; the first layer's input needs none
    assert flop == 2 * 8 * (3 * 2 * LAYER - LAYER // 2) // 4
    assert collectives == [
        ["dp", "all_gather", 2 * 2 * LAYER, 2 * 2],
        ["dp", "reduce_scatter", 2 * LAYER, 2],
        ["tp", "all_reduce", 3 * HIDDEN, 3],  # of both outputs, and the gradient of one input
    ]
    state = 4 * parameters
    assert at_peak["weights"] == state
    assert at_peak["optimizer state"] == pytest.approx(2 * state, rel=1e-6)
    # gathered weights of at least one layer, and its gradients before they are scattered
    assert peak > 3 * state + 2 * LAYER
    assert sum(at_peak.values()) == peak


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 of 4"):
        dry_run(lambda _: None, lambda _: None, mesh={"dp": 2, "tp": 2}, rank=4)
