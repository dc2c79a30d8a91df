"""Latent attention: its flop under every recomputation, and a padded fused attention beside an unfused one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Activation, Architecture, Norm, Position, Workload
from suite.execute.measure.counters import LocalFlopCounter
from suite.execute.model.decoder import Decoder, initialise
from suite.predict.analytic.flop import executed_flop, model_flop, rank_executed_flop
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

PLAN = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
SIZES = {
    "narrow values": {"head_dim": 12, "value_head_dim": 8, "query_rank": 10},
    "wide values": {"head_dim": 10, "value_head_dim": 14, "query_rank": None},
    "as wide": {"head_dim": 10, "value_head_dim": 10, "query_rank": 9},
}


def latent(**changes: Any) -> Architecture:
    shape: dict[str, Any] = {
        "norm": Norm.PRE_RMS_NORM,
        "activation": Activation.SWIGLU,
        "position": Position.ROTARY,
        "rotary_dim": 4,
        "rotary_base": 10000.0,
        "biases": False,
        "hidden": 18,
        "ffn_hidden": 20,
        "key_value_rank": 7,
    }
    architecture = msgspec.structs.replace(PLAN.architecture, **(shape | changes))
    architecture.check("test")
    return architecture


def decoder_of(architecture: Architecture, *, fused: bool) -> Decoder:
    decoder = Decoder(architecture, PLAN.recipe, fused_attention=fused)
    initialise(decoder, PLAN.recipe, seed=3)
    return decoder


def tokens_of(architecture: Architecture) -> torch.Tensor:
    return torch.randint(architecture.vocabulary, (3, architecture.sequence + 1), generator=torch.Generator())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
def test_flop_are_those_that_pytorch_counts(
    recomputation: Recomputation, sizes: dict[str, int | None], fused: bool
) -> None:
    a = latent(**sizes)
    decoder, tokens = decoder_of(a, fused=fused), tokens_of(a)
    decoder.recompute(recomputation)
    with LocalFlopCounter() as flop:
        decoder(tokens[:, :-1], tokens[:, 1:]).backward()
    workload = Workload(a, PLAN.recipe, Layout(recomputation=recomputation, fused_attention=fused, micro_batch=3))
    assert flop.get_total_flops() == executed_flop(workload, samples=3)
    assert flop.get_total_flops() == rank_executed_flop(workload, stage=0, samples=3)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_flop_that_are_needed_have_no_padding(sizes: dict[str, int | None]) -> None:
    a = latent(**sizes)
    decoder, tokens = decoder_of(a, fused=True), tokens_of(a)
    for context in decoder.contexts:
        context.pads = False
    with LocalFlopCounter(recomputes=False) as flop:
        decoder(tokens[:, :-1], tokens[:, 1:]).backward()
    assert flop.get_total_flops() == model_flop(a, samples=3)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_padded_fused_attention_has_the_loss_and_gradients_of_an_unfused_one(sizes: dict[str, int | None]) -> None:
    a = latent(**sizes)
    tokens, results = tokens_of(a), []
    for fused in (False, True):
        decoder = decoder_of(a, fused=fused)
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in decoder.parameters())])
    for left, right in zip(*results, strict=True):
        # sums of up to 96 products in fp32, in another order
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def test_a_fused_attention_on_a_cpu_stores_no_scores() -> None:
    a = latent(**SIZES["narrow values"])
    decoder, tokens = decoder_of(a, fused=True), tokens_of(a)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        decoder(tokens[:, :-1], tokens[:, 1:])
    assert 3 * a.heads * a.sequence * a.sequence not in sizes
