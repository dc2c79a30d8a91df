"""Compiled blocks: as many graphs as there are kinds of blocks, however many layers, and no silent fallback."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from reference_runs.layout import Recomputation
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.precision import store_weights
from tests.launches import small_plan

LAYERS = torch._dynamo.config.recompile_limit + 3


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("recomputation", [Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL])
def test_one_graph_serves_all_blocks(recomputation: Recomputation) -> None:
    plan = small_plan(ranks=1)
    decoder = Decoder(msgspec.structs.replace(plan.architecture, layers=LAYERS), plan.recipe)
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
