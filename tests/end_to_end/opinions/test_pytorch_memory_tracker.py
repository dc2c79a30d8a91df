"""The memory of a step by PyTorch's own tracker, torch.distributed._tools.mem_tracker, and by ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from suite.execute.dry_run.any_model import dry_run

HIDDEN, ROWS = 64, 48


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN))


def deep() -> nn.Module:
    return nn.Sequential(*(perceptron() for _ in range(3)))


def embedded() -> nn.Module:
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, 1000))


def tracked(make: Callable[[], nn.Module], loss: Callable[[nn.Module], Tensor]) -> dict[str, int]:
    """Bytes by PyTorch's categories at the peak of the second step."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for step in range(2):
            output = loss(model)  # kept to the end of the step, as ours does
            output.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    [peak] = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(kind, "value", kind)): size for kind, size in peak.items()}


@pytest.mark.parametrize("make", [perceptron, deep, embedded])
def test_pytorch_s_tracker_sees_the_same_state_and_the_same_peak(make: Callable[[], nn.Module]) -> None:
    def loss(model: nn.Module) -> Tensor:
        return model(torch.ones(ROWS, HIDDEN)).square().mean()

    theirs = tracked(make, loss)
    ours = dry_run(lambda _mesh: make(), loss, mesh={"dp": 1})
    assert theirs["Parameter"] == 4 * ours.parameters
    assert theirs["Total"] == ours.peak_bytes
