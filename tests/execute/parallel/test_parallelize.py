"""Compiled blocks: as many graphs as there are kinds of blocks, however many layers, and no silent fallback."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from reference_runs.catalog import reference_run
from reference_runs.layout import Recomputation
from reference_runs.miniature import miniature
from reference_runs.run import Position, Precision, Residual
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.parallel.parallelize import compile_blocks
from suite.execute.precision import store_weights
from tests.support.launches import small_plan

LAYERS = torch._dynamo.config.recompile_limit + 3


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("attention", ["unfused", "fused"])
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
def test_one_graph_serves_all_blocks(recomputation: Recomputation, attention: str) -> None:
    fused = attention == "fused"
    plan = small_plan(ranks=1, recipe={"attention_dropout": 0.0} if fused else {})
    architecture = msgspec.structs.replace(plan.architecture, layers=LAYERS)
    if fused:
        architecture = msgspec.structs.replace(architecture, position=Position.LEARNED)
    decoder = Decoder(architecture, plan.recipe, fused_attention=fused)
    decoder.recompute(recomputation)
    initialise(decoder, plan.recipe, seed=1)
    store_weights([decoder], plan.recipe, shards=1, device=torch.device("cpu"))
    counter = CompileCounter()
    for block in decoder.blocks.values():
        block.compile(backend=counter)
    tokens = torch.randint(0, plan.architecture.vocabulary, (2, plan.architecture.sequence))
    for _ in range(2):
        decoder(tokens, tokens).backward()
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore")
def test_both_biases_of_a_parallel_residual_have_their_gradient_in_fp16() -> None:
    """Inductor's C++ for it does not compile where their sums, which are the same, share a loop."""
    small = miniature(reference_run("gpt-neox-20b"), "cpu", ranks=1)
    architecture = msgspec.structs.replace(
        small.architecture, layers=1, padded_vocabulary=small.architecture.vocabulary
    )
    recipe = small.recipe
    assert architecture.residual is Residual.PARALLEL
    assert recipe.precision is Precision.FP16
    assert recipe.hidden_dropout == 0
    tokens = torch.randint(0, architecture.vocabulary, (2, architecture.sequence))
    gradients = []
    for compiled in (False, True):
        decoder = Decoder(architecture, recipe)
        initialise(decoder, recipe, seed=1)
        store_weights([decoder], recipe, shards=1, device=torch.device("cpu"))
        if compiled:
            compile_blocks([decoder], torch.float16, torch.device("cpu"))
        (1024 * decoder(tokens, tokens)).backward()
        of_biases = {name: p.grad for name, p in decoder.named_parameters() if "bias" in name and p.grad is not None}
        gradients.append(of_biases)
    eager, from_compiled = gradients
    assert len(eager) == 7
    for name, gradient in eager.items():
        # 128 tokens are summed: the order of the sums and fp16 values on the way differ
        torch.testing.assert_close(from_compiled[name], gradient, rtol=0.05, atol=0.05 * gradient.abs().max().item())
