"""Compiled blocks that add their gradients to fp32 sums give the gradients that autograd's leaves would have."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.parallel.gradient_sums import GradientSums
from suite.execute.parallel.parallelize import sums_in_blocks
from suite.execute.precision import store_weights
from suite.job.training_job import Job
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan

MICRO_BATCHES = 3
RECIPE = {"precision": Precision.BF16, "hidden_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def model(recomputation: Recomputation) -> Decoder:
    plan = small_plan(ranks=1, recipe=RECIPE)
    decoder = Decoder(msgspec.structs.replace(plan.architecture, layers=4), plan.recipe)
    decoder.recompute(recomputation)
    initialise(decoder, plan.recipe, seed=1)
    store_weights([decoder], plan.recipe, shards=1, device=CPU)
    return decoder


def accumulated(decoder: Decoder, sums: GradientSums | None) -> dict[str, Tensor]:
    """Gradients of three micro-batches by the weights' names."""
    generator = torch.Generator().manual_seed(2)
    if sums is not None:
        sums.begin()
    for _ in range(MICRO_BATCHES):
        tokens = torch.randint(600, (2, 33), generator=generator)
        decoder(tokens[:, :-1], tokens[:, 1:]).backward()
    if sums is not None:
        sums.hand_over()
    plain = {
        name.replace("parametrizations.", "").removesuffix(".original"): p for name, p in decoder.named_parameters()
    }
    gradients = {name: p.grad for name, p in plain.items() if p.grad is not None}
    for parameter in plain.values():
        parameter.grad = None
    return gradients


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.FULL])
def test_one_graph_adds_up_what_the_leaves_would_get(recomputation: Recomputation) -> None:
    reference = accumulated(model(recomputation), None)
    decoder = model(recomputation)
    sums = GradientSums(decoder.blocks.values())
    counter = CompileCounterWithBackend("aot_eager")
    for block in decoder.blocks.values():
        block.compile(backend=counter, fullgraph=True)
    for _ in range(2):  # nothing is left of the first step's sums
        found = accumulated(decoder, sums)
        assert found.keys() == reference.keys()
        for name, gradient in found.items():
            assert gradient.dtype is torch.float32
            # the same bf16 gradients, added in fp32 in the same order
            torch.testing.assert_close(gradient, reference[name], rtol=2.0**-8, atol=2.0**-8 * gradient.abs().max())
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_without_a_step_that_sums_the_leaves_have_their_gradients() -> None:
    decoder = model(Recomputation.NONE)
    reference = accumulated(decoder, None)
    GradientSums(decoder.blocks.values())
    found = accumulated(decoder, None)
    assert found.keys() == reference.keys()
    assert all(torch.equal(found[name], reference[name]) for name in found)


def job(**changes: object) -> Job:
    plan = small_plan(ranks=1, recipe=RECIPE, compiled=True)
    return msgspec.structs.replace(job_for(plan, CORPUS, ""), **changes)


def test_sums_are_for_one_gpu_that_accumulates_bf16_gradients_in_compiled_blocks() -> None:
    usual = job()
    layouts = {
        name: msgspec.structs.replace(usual.layout, **changes)
        for name, changes in {
            "dp2": {"data_parallel": 2},
            "pp2": {"pipeline_stages": 2},
            "sharded, its state on the host": {"zero_stage": 3, "offload": Offload.STATE},
            "one micro-batch": {"micro_batch": usual.recipe.global_batch},
        }.items()
    }
    assert sums_in_blocks(usual, GPU)
    assert not sums_in_blocks(usual, CPU)
    assert not sums_in_blocks(job(compiled=False), GPU)
    assert not sums_in_blocks(job(recipe=msgspec.structs.replace(usual.recipe, precision=Precision.FP32)), GPU)
    for layout in layouts.values():
        assert not sums_in_blocks(job(layout=layout), GPU)
