"""Counters on small cases whose answer is known by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from suite.execute.measure.counters import CollectiveCounter, KeptForBackward, storage_bytes
from suite.execute.measure.synchronisations import SynchronisationCounter


def test_a_storage_counts_once_however_many_tensors_look_into_it() -> None:
    base = torch.zeros(10, 3)
    assert storage_bytes([base, base[2:], base.view(-1), torch.zeros(5, dtype=torch.uint8)]) == 120 + 5


def test_kept_bytes_are_the_inputs_of_products_and_the_outputs_of_relu() -> None:
    first, second = nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)
    kept = KeptForBackward(lambda: [first.weight, second.weight])
    x = torch.zeros(7, 3)
    with kept.hooks():
        second(torch.relu(first(x))).sum()
    # x for the first weight's gradient; relu's output for its own gradient and for the second weight's, once
    assert kept.bytes() == 4 * (7 * 3 + 7 * 5)


def test_recomputation_keeps_the_input_alone() -> None:
    layers = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))
    kept = KeptForBackward(layers.parameters)
    x = torch.zeros(7, 3, requires_grad=True)
    with kept.hooks():
        checkpoint(layers, checkpoint(layers, x, use_reentrant=False), use_reentrant=False)
    assert kept.bytes() == 2 * 4 * 7 * 3


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_region_that_computes_attention_again_runs_under_the_counters() -> None:
    def attention(x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=True)

    def core(x: Tensor) -> Tensor:
        out: Tensor = checkpoint(attention, x.sin(), use_reentrant=False)
        return out.cos()

    torch._dynamo.reset()
    compiled = torch.compile(core)
    gradients = []
    for function in (core, compiled):
        x = torch.linspace(-1, 1, 2 * 3 * 8 * 4).view(2, 3, 8, 4).requires_grad_()
        with CollectiveCounter({}) as collectives, SynchronisationCounter() as waits:
            function(x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
        assert (collectives.collectives(), waits.count) == ([], 0)
    torch.testing.assert_close(*gradients)
