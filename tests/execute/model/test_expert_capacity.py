"""Experts with a capacity, against a walk through choices and tokens, and against experts without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear, silu

from reference_runs.run import Architecture, Balancing
from suite.execute.model.expert_capacity import Places
from suite.execute.model.experts import Experts
from tests.execute.model.mixtures import layer_of, mixture

HIDDEN, EXPERTS, CHOSEN = 12, 6, 2


def with_capacity(capacity: float | None, **changes: Any) -> Architecture:
    balanced = {"balancing": Balancing.AUXILIARY_LOSS, "auxiliary_loss_weight": 0.1}
    return mixture(**(balanced | changes), capacity_factor=capacity)


def walked(chosen: list[list[int]], experts: int, each: int) -> list[tuple[int, int]]:
    """Token and choice of every row that is computed: first choices of all tokens, then second ones."""
    taken, kept = [0] * experts, []
    for choice in range(len(chosen[0])):
        for token, of_token in enumerate(chosen):
            if taken[of_token[choice]] < each:
                taken[of_token[choice]] += 1
                kept.append((token, choice))
    return kept


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    experts, chosen = draw(st.integers(2, 6)), draw(st.integers(1, 2))
    order = st.permutations(range(experts)).map(lambda order: list(order[:chosen]))
    return draw(st.lists(order, min_size=1, max_size=12)), experts


@given(choices(), st.integers(1, 5))
def test_places_are_taken_by_choice_and_then_by_token(case: tuple[list[list[int]], int], each: int) -> None:
    chosen, experts = case
    places, choices = Places.of(torch.tensor(chosen), experts, each), len(chosen[0])
    kept = walked(chosen, experts, each)
    assert sorted(kept) == [tuple(pair) for pair in places.kept.nonzero().tolist()]
    at_places = places.rows[places.filled.squeeze(1)].tolist()
    assert sorted(at_places) == sorted(token * choices + choice for token, choice in kept)
    for token, choice in kept:
        place = int(places.of_rows[token * choices + choice])
        assert places.rows[place] == token * choices + choice
        assert place // each == chosen[token][choice]
    assert places.ends.tolist() == [each * (expert + 1) for expert in range(experts)]


def computed_one_by_one(layer: Experts, x_ND: Tensor, each: int) -> Tensor:
    """The layer's output by one product a row; dropped rows add nothing."""
    scores = linear(x_ND, layer.router.weight).softmax(-1)
    top = scores.topk(CHOSEN, dim=-1)
    gates = top.values / top.values.sum(-1, keepdim=True)
    expansion = layer.experts.expansion.weight.unflatten(0, (EXPERTS, -1))
    contraction = layer.experts.contraction.weight.unflatten(0, (EXPERTS, -1))
    out = [torch.zeros(HIDDEN, dtype=x_ND.dtype) for _ in x_ND]
    for token, choice in walked(top.indices.tolist(), EXPERTS, each):
        expert = int(top.indices[token, choice])
        gate, gated = linear(x_ND[token], expansion[expert]).unflatten(-1, (-1, 2)).unbind(-1)
        out[token] = out[token] + gates[token, choice] * linear(silu(gate) * gated, contraction[expert])
    return torch.stack(out)


@pytest.mark.parametrize(("capacity", "each"), [(0.5, 2), (0.75, 3), (1.0, 3), (1.5, 5), (6.0, 9)])
def test_a_layer_and_its_gradients_equal_a_product_a_row(capacity: float, each: int) -> None:
    architecture = with_capacity(capacity, balancing=Balancing.NONE, auxiliary_loss_weight=None)
    assert architecture.expert_places(tokens=9) == each  # of 9 * 2 / 6 = 3 in an equal share
    layer, x = layer_of(architecture).double(), torch.randn(1, 9, HIDDEN, dtype=torch.float64)
    # the router computes in fp32
    layer.router.weight.data = layer.router.weight.data.float().double()
    gradients = []
    for compute in (layer, lambda x: computed_one_by_one(layer, x[0], each)[None]):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        out = compute(inputs)
        (out * torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)).sum().backward()
        assert inputs.grad is not None
        gradients.append(
            [out.detach(), inputs.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]
        )
    for own, wanted in zip(*gradients, strict=True):
        assert torch.allclose(own, wanted, rtol=1e-5, atol=1e-6)
    assert layer.router.statistics.dropped == 18 - sum(layer.router.statistics.loads)
    assert max(layer.router.statistics.loads) <= each


@given(st.integers(1, 12), st.floats(0.1, 8))
def test_dropped_and_computed_rows_are_all_rows(tokens: int, capacity: float) -> None:
    architecture = with_capacity(capacity)
    layer = layer_of(architecture).double()
    layer(torch.randn(1, tokens, HIDDEN, dtype=torch.float64, requires_grad=True)).sum().backward()
    statistics, places = layer.router.statistics, architecture.expert_places(tokens=tokens)
    assert places is not None
    assert sum(statistics.loads) + statistics.dropped == tokens * CHOSEN
    assert int(statistics.rows.sum()) == tokens * CHOSEN
    assert all(load <= places for load in statistics.loads)
    assert 1 <= places <= tokens


def test_a_capacity_is_read_in_decimals_and_rounded_up() -> None:
    assert with_capacity(1.1, experts=10).expert_places(tokens=50) == 11  # 1.1 * 10.0 is 11.000000000000002 in binary
    assert with_capacity(1.1).expert_places(tokens=9) == 4  # 3.3
    assert with_capacity(100.0).expert_places(tokens=9) == 9
    assert with_capacity(None).expert_places(tokens=9) is None
