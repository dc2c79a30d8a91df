"""Which parameters of a network share a vector of signs, and which are averaged exactly."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from suite.execute.parallel.one_bit import parameter_groups


def names(network: nn.Module) -> list[tuple[list[str], Any]]:
    return [([name for name, _ in group["params"]], group.get("compressed")) for group in parameter_groups(network)]


@pytest.mark.parametrize("head", [20, 21])
def test_tables_and_what_has_their_shape_are_averaged_exactly(head: int) -> None:
    parts = {
        "table": nn.Embedding(20, 4),
        "square": nn.Linear(4, 4),
        "norm": nn.LayerNorm(4),
        "head": nn.Linear(4, head),
    }
    network = nn.ModuleDict(parts)
    network["norm"].requires_grad_(False)
    of_layers = ["square.weight", "square.bias", "head.bias"]
    if head == 20:
        assert names(network) == [(of_layers, None), (["table.weight", "head.weight"], False)]
    else:
        of_layers.insert(2, "head.weight")
        assert names(network) == [(of_layers, None), (["table.weight"], False)]


def test_a_network_without_tables_has_one_group_and_one_of_tables_alone_too() -> None:
    assert names(nn.Linear(4, 3)) == [(["weight", "bias"], None)]
    assert names(nn.Embedding(20, 4)) == [(["weight"], False)]
