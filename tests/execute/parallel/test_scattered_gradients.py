from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from reference_runs.run import Precision
from suite.execute.measure.counters import CollectiveCounter, storage_bytes
from suite.execute.parallel.scattered_gradients import ScatteredGradients, Share, scattered_gradients
from suite.execute.parallel.sharded_adamw import sharded_adamw
from suite.execute.precision import GRADIENT_DTYPES, WeightGroup, store_weights
from suite.job.events import CountedCollective
from tests.support.small_weights import recipe_of, small_model

CPU = torch.device("cpu")
SHARDS = 3
RECIPE = recipe_of(gradient_clip=1.0)


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of three ranks, of which only the first exists; its reduce-scatters leave the shards as they are."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SHARDS)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def _scattered(group: Any, shard: int, precision: Precision) -> tuple[nn.Module, list[WeightGroup], ScatteredGradients]:
    model = small_model()
    recipe = recipe_of(precision=precision)
    groups = store_weights([model], recipe, shards=SHARDS, device=CPU)
    return model, groups, scattered_gradients(groups, shards=SHARDS, shard=shard, process_group=group)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_backward_passes_add_to_flat_buffers_whose_slices_are_the_shards(group: Any, precision: Precision) -> None:
    model, groups, scattered = _scattered(group, 1, precision)
    plain, stored, _ = _scattered(group, 1, precision)
    for of_group in stored:
        for leaf in of_group.leaves:
            leaf.grad = None
    x = torch.randn(6, 5).to(groups[0].flat.dtype)
    for _ in range(2):
        for each in (model, plain):
            each(x).square().sum().backward()
    leaves = [leaf for of_group in groups for leaf in of_group.leaves]
    alone = [leaf for of_group in stored for leaf in of_group.leaves]
    for ours, theirs in zip(leaves, alone, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.dtype == GRADIENT_DTYPES[groups[0].flat.dtype]
        assert torch.equal(ours.grad, theirs.grad)
    assert storage_bytes(leaf.grad for leaf in leaves if leaf.grad is not None) == storage_bytes(scattered.flat)
    for of_group, flat, shard in zip(groups, scattered.flat, scattered.shards, strict=True):
        assert flat.numel() == of_group.flat.numel()
        assert torch.equal(shard, flat.chunk(SHARDS)[1])
    scattered.clear()
    assert not any(flat.any() for flat in scattered.flat)


def test_own_parts_and_whole_gradients_of_all_ranks_are_the_gradient(group: Any) -> None:
    gradients: dict[str, Tensor] = {}
    summed: dict[str, Tensor] = {}
    squared = 0.0
    for shard in range(SHARDS):
        model, _, scattered = _scattered(group, shard, Precision.FP32)
        model(torch.arange(30.0).view(6, 5) / 30).square().sum().backward()
        own = scattered.own()
        squared += sum(part.square().sum().item() for _, part in own.values())
        for name, leaf in model.named_parameters():
            assert leaf.grad is not None
            gradients[name] = leaf.grad
            summed[name] = summed.get(name, torch.zeros_like(leaf)) + scattered.whole()[leaf]
    for name, gradient in gradients.items():
        assert torch.equal(summed[name], gradient)
    assert squared == pytest.approx(sum(gradient.square().sum().item() for gradient in gradients.values()))


def test_reducing_is_a_reduce_scatter_of_each_padded_group_into_the_mean(group: Any) -> None:
    model, groups, scattered = _scattered(group, 0, Precision.BF16)
    model(torch.ones(6, 5, dtype=torch.bfloat16)).square().sum().backward()
    before = [shard.clone() for shard in scattered.shards]
    with CollectiveCounter({group.group_name: "dp"}) as counter:
        scattered.reduce()
    elements = sum(of_group.flat.numel() for of_group in groups)
    assert elements == 57 + 24  # 56 weights of matrices and 24 of vectors, in thirds
    assert counter.collectives() == [CountedCollective("dp", "reduce_scatter", 4 * elements, 2)]
    for shard, own in zip(scattered.shards, before, strict=True):
        assert torch.equal(shard, own / SHARDS)


def test_the_update_of_a_shard_reads_its_gradient_in_place(group: Any) -> None:
    updated = []
    for scatters in (False, True):
        model = small_model()
        groups = store_weights([model], RECIPE, shards=SHARDS, device=CPU)
        scattered = scattered_gradients(groups, shards=SHARDS, shard=1, process_group=group)
        optimizer = sharded_adamw(
            groups, RECIPE, shards=SHARDS, shard=1, process_group=None, scattered=scattered if scatters else None
        )
        model(torch.ones(6, 5)).square().sum().backward()
        optimizer.step(0.1, 0.5)
        for master in optimizer.masters.masters:
            assert master.grad is None
        updated.append(torch.cat([of_group.flat for of_group in groups]))
    assert torch.equal(*updated)
    untouched = store_weights([small_model()], RECIPE, shards=SHARDS, device=CPU)
    assert not torch.equal(updated[0], torch.cat([of_group.flat for of_group in untouched]))


def test_experts_that_ranks_share_out_are_scattered_over_those_with_the_same_ones(group: Any) -> None:
    model = small_model()
    experts = {id(model[2].weight)}
    groups = store_weights([model], RECIPE, shards=SHARDS, device=CPU, apart=experts, apart_shards=2)
    apart = Share(1, 2, None)  # the other rank is not there: its gradients are left out of the sum
    scattered = scattered_gradients(groups, shards=SHARDS, shard=0, process_group=group, apart=apart)
    model(torch.ones(6, 5)).square().sum().backward()
    before = model[2].weight.grad
    assert before is not None
    before = before.flatten().clone()
    scattered.reduce()
    whole = scattered.whole()[groups[1].leaves[0]].flatten()
    half = -(-before.numel() // 2)
    assert torch.equal(whole[half:], before[half:] / SHARDS)
    assert not whole[:half].any()
    assert torch.equal(scattered.own()[groups[1].leaves[0]][1], before[half:] / SHARDS)
