"""AdamW on flat shards."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reference_runs.run import Precision
from suite.execute.parallel.zero import flat_gradient_shard, sharded_adamw
from suite.execute.precision import WeightGroup, store_weights
from tests.launches import FP32_WITHOUT_DROPOUT, small_plan


def _model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def test_one_shard_updates_as_plain_adamw_does() -> None:
    recipe = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT).recipe
    plain, stored = _model(), _model()
    groups = store_weights(stored, recipe, shards=1, device=torch.device("cpu"))
    ours = sharded_adamw(groups, recipe, shards=1, shard=0, process_group=None)
    matrices = [p for p in plain.parameters() if p.dim() > 1]
    vectors = [p for p in plain.parameters() if p.dim() == 1]
    theirs = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        fused=True,
    )
    x = torch.randn(6, 5)
    for step in range(4):
        for settings in theirs.param_groups:
            settings["lr"] = 0.1 / (step + 1)
        for model in (plain, stored):
            model.zero_grad()
            model(x).square().sum().backward()
        theirs.step()
        ours.step(0.1 / (step + 1))
        # fused AdamW computes a tensor's tail with other instructions than its body, and the flat buffer has another
        # tail: about 16 roundings of 2^-24 a step, on weights and outputs of size 1
        assert torch.allclose(plain(x), stored(x), rtol=0, atol=(step + 1) * 16 * 2**-24)
    assert not torch.equal(plain(x), _model()(x))


def test_bf16_weights_are_the_rounded_masters() -> None:
    recipe = small_plan(ranks=1, recipe={"precision": Precision.BF16}).recipe
    model = _model()
    groups = store_weights(model, recipe, shards=1, device=torch.device("cpu"))
    optimizer = sharded_adamw(groups, recipe, shards=1, shard=0, process_group=None)
    for group in groups:
        for leaf in group.leaves:
            leaf.grad = torch.ones(leaf.shape)
    for _ in range(3):
        optimizer.step(1e-5)  # too small for bf16 alone: the master must carry it
    for group, master in zip(groups, optimizer.masters, strict=True):
        assert master.dtype is torch.float32
        assert torch.equal(group.flat, master.detach().bfloat16())
        assert not torch.equal(master.detach(), master.detach().bfloat16().float())


@given(sizes=st.lists(st.integers(1, 17), min_size=1, max_size=6), shards=st.integers(1, 5))
def test_gradient_shards_concatenate_to_the_whole_gradient(sizes: list[int], shards: int) -> None:
    leaves = [nn.Parameter(torch.zeros(())).data.expand(size).detach().requires_grad_() for size in sizes]
    whole = torch.arange(1.0, sum(sizes) + 1)
    for leaf, part in zip(leaves, whole.split(sizes), strict=True):
        leaf.grad = part.clone()
    elements = -(-sum(sizes) // shards)
    group = WeightGroup(0.0, torch.zeros(elements * shards), leaves)  # type: ignore[arg-type]
    pieces = [flat_gradient_shard(group, start=shard * elements, elements=elements) for shard in range(shards)]
    together = torch.cat(pieces)
    assert torch.equal(together[: sum(sizes)], whole)
    assert not together[sum(sizes) :].any()
