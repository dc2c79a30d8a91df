"""Routing, experts, auxiliary loss and statistics, against autograd of every expert computing every token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Balancing, Gate, Workload
from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.model import experts
from suite.execute.model.block import FeedForward
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.experts import Dispatch, Experts, GroupedProduct
from suite.predict.analytic.flop import executed_flop, rank_executed_flop
from tests.execute.model.mixtures import PLAN, layer_of, mixture


def one_expert(x_ND: Tensor, expansion: Tensor, contraction: Tensor) -> Tensor:
    inner = linear(x_ND, expansion)
    return linear(torch.nn.functional.silu(inner[:, ::2]) * inner[:, 1::2], contraction)


def by_all_experts(a: Architecture, layer: Experts, x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The output, of which a token's gates for the experts that it does not choose are 0; and E sum_i f_i P_i."""
    assert a.experts is not None
    assert a.experts_per_token is not None
    logits = linear(x_ND, layer.router.weight)
    scores = torch.sigmoid(logits) if a.gate is Gate.SIGMOID else torch.softmax(logits, -1)
    allowed = scores.detach() + (0.0 if layer.router.bias is None else layer.router.bias)
    for row in allowed if a.expert_groups is not None and a.groups_per_token is not None else ():
        groups = row.view(a.expert_groups, -1)
        best = [sorted(group.tolist(), reverse=True)[: 2 if a.gate is Gate.SIGMOID else 1] for group in groups]
        ranked = sorted(range(len(groups)), key=lambda n, best=best: sum(best[n]), reverse=True)
        for n in ranked[a.groups_per_token :]:
            groups[n] = -9.0
    chosen = [sorted(range(a.experts), key=row.__getitem__, reverse=True)[: a.experts_per_token] for row in allowed]
    mask = torch.zeros_like(scores)
    for row, own in zip(mask, chosen, strict=True):
        row[own] = 1.0
    gates = scores * mask
    if a.gate is not Gate.SOFTMAX:
        gates = gates / gates.sum(-1, keepdim=True)
    gates = gates * (a.gate_scale or 1.0)
    expansions = layer.experts.expansion.weight.chunk(a.experts)
    contractions = layer.experts.contraction.weight.chunk(a.experts)
    out = sum(
        (gates[:, n : n + 1] * one_expert(x_ND, expansions[n], contractions[n]) for n in range(a.experts)),
        torch.zeros_like(x_ND),
    )
    if layer.shared_experts is not None:
        assert isinstance(layer.shared_experts, FeedForward)
        out = out + one_expert(x_ND, layer.shared_experts.expansion.weight, layer.shared_experts.contraction.weight)
    return out, a.experts * (mask.mean(0) * scores.mean(0)).sum()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gate": Gate.SOFTMAX, "experts_per_token": 3},
        {"gate": Gate.SIGMOID, "gate_scale": 2.5, "expert_groups": 3, "groups_per_token": 2, "shared_experts": 2},
        {"gate": Gate.SOFTMAX, "expert_groups": 2, "groups_per_token": 1, "shared_experts": 1},
        {"gate": Gate.SIGMOID, "balancing": Balancing.BIAS, "balancing_rate": 0.1, "expert_groups": 2}
        | {"groups_per_token": 1},
        {"gate": Gate.SOFTMAX, "balancing": Balancing.BIAS, "balancing_rate": 0.1},
        {"experts": 40, "experts_per_token": 1, "gate": Gate.SOFTMAX},  # most have no token
        {"balancing": Balancing.AUXILIARY_LOSS, "auxiliary_loss_weight": 0.3, "layers": 3, "dense_layers": 1},
    ],
    ids=str,
)
def test_outputs_gradients_and_auxiliary_loss_equal_those_of_all_experts_on_all_tokens(changes: dict[str, Any]) -> None:
    architecture = mixture(**changes)
    layer = layer_of(architecture)
    x = torch.randn(2, 7, 12, requires_grad=True)
    cotangent = torch.randn(2, 7, 12)
    layer.router.statistics.upstream = 8.0
    got = layer(x)
    (got * cotangent).sum().backward()
    gradients = [p.grad for p in [x, *layer.parameters()]]
    for parameter in [x, *layer.parameters()]:
        parameter.grad = None
    expected, auxiliary = by_all_experts(architecture, layer, x.flatten(0, 1))
    weight = (architecture.auxiliary_loss_weight or 0.0) / (architecture.layers - architecture.dense_layers)
    ((expected * cotangent.flatten(0, 1)).sum() + 8.0 * weight * auxiliary).backward()
    # sums of at most 40 products in fp32, five in a row
    torch.testing.assert_close(got.flatten(0, 1), expected, rtol=1e-5, atol=1e-5)
    for own, parameter in zip(gradients, [x, *layer.parameters()], strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-5, atol=2e-5)
    statistics = layer.router.statistics
    assert sum(statistics.loads) == 14 * (architecture.experts_per_token or 0)
    assert statistics.auxiliary_loss == pytest.approx(auxiliary.item(), rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_the_auxiliary_loss_of_parts_of_sequences_is_that_of_whole_ones(samples: int, half: int, seed: int) -> None:
    torch.manual_seed(seed)
    a = mixture(balancing=Balancing.AUXILIARY_LOSS, auxiliary_loss_weight=0.3)
    whole_BTD = torch.randn(samples, 2 * half, 12)
    parts = whole_BTD.chunk(2, 1)

    def of(x_BTD: Tensor, averaged: Callable[[Tensor], Tensor] | None) -> tuple[Tensor, float]:
        router = layer_of(a).router
        router.statistics.averaged = averaged
        gates_NC, _ = router(x_BTD.flatten(0, 1))
        gates_NC.backward(torch.zeros_like(gates_NC))  # what is left is the loss's
        assert router.weight.grad is not None
        return router.weight.grad, router.statistics.auxiliary_loss

    loads: list[Tensor] = []
    for part in parts:  # what each rank hands to the others
        of(part, lambda load_E: loads.append(load_E) or load_E)  # type: ignore[func-returns-value]  # notes it
    gradients, losses = zip(*(of(part, lambda _: torch.stack(loads).mean(0)) for part in parts), strict=True)
    wanted, loss = of(whole_BTD, None)
    torch.testing.assert_close(sum(gradients) / 2, wanted)  # ranks average their gradients
    assert sum(losses) / 2 == pytest.approx(loss, rel=1e-5)


def test_a_recomputed_step_counts_each_row_once() -> None:
    a = mixture(layers=3, dense_layers=1)
    decoder = Decoder(a, PLAN.recipe)
    initialise(decoder, PLAN.recipe, seed=3)
    tokens = torch.randint(a.vocabulary, (2, a.sequence + 1))
    loads = []
    for recomputation in (Recomputation.NONE, Recomputation.FULL):
        decoder.recompute(recomputation)
        for _ in range(2):
            decoder(tokens[:, :-1], tokens[:, 1:]).backward()
        loads.append([router.statistics.loads for router in decoder.routers.values()])
        for router in decoder.routers.values():
            router.statistics.clear()
    assert list(decoder.routers) == [1, 2]
    assert loads[0] == loads[1]
    assert [sum(of_layer) for of_layer in loads[0]] == [2 * 2 * 2 * a.sequence] * 2


def test_a_bias_rises_where_rows_are_fewer_than_the_mean_and_falls_where_they_are_more() -> None:
    router = layer_of(mixture(balancing=Balancing.BIAS, balancing_rate=0.25)).router
    assert router.bias is not None
    before = router.bias.clone()
    router.balance(torch.tensor([4, 5, 3, 4, 8, 0]))
    assert (router.bias - before).tolist() == pytest.approx([0, -0.25, 0.25, 0, -0.25, 0.25], abs=1e-6)
    assert "bias" not in dict(router.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pytorchs_grouped_product_gives_what_a_product_for_each_expert_does(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = torch.tensor([[0, 3], [3, 1], [0, 3], [4, 3]])  # expert 2 has no token
    dispatch = Dispatch.of(chosen, 5)
    x = torch.randn(8, 16, dtype=dtype, requires_grad=True)
    weight = torch.randn(5 * 24, 16, dtype=dtype, requires_grad=True)
    cotangent = torch.randn(8, 24, dtype=dtype)
    results = []
    for grouped in (False, True):
        monkeypatch.setattr(experts, "_grouped", lambda _x, _columns, grouped=grouped: grouped)
        out = GroupedProduct.apply(x, weight, dispatch.ends)  # type: ignore[no-untyped-call]  # torch leaves it so
        results.append([out, *torch.autograd.grad(out, [x, weight], cotangent)])
    assert dispatch.ends.tolist() == [2, 3, 3, 7, 8]
    for left, right in zip(*results, strict=True):
        # both accumulate in fp32 and round once: half a unit in the last place each
        torch.testing.assert_close(left, right, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    assert not results[0][2].view(5, 24, 16)[2].any()


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("shared", [0, 2])
def test_flop_with_recomputation_are_those_that_pytorch_counts(group: int, shared: int) -> None:
    a = mixture(layers=5, dense_layers=2, shared_experts=shared)
    decoder = Decoder(a, PLAN.recipe)
    initialise(decoder, PLAN.recipe, seed=3)
    decoder.recompute(Recomputation.FULL, checkpoint_layers=group)
    tokens = torch.randint(a.vocabulary, (3, a.sequence + 1))
    with LocalFlopCounter() as flop:
        decoder(tokens[:, :-1], tokens[:, 1:]).backward()
    layout = Layout(recomputation=Recomputation.FULL, checkpoint_layers=group, micro_batch=3)
    assert flop.get_total_flops() == executed_flop(Workload(a, PLAN.recipe, layout), samples=3)
    assert flop.get_total_flops() == rank_executed_flop(Workload(a, PLAN.recipe, layout), stage=0, samples=3)
