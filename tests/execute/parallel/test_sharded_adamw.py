"""Adam on flat shards, and on parameters that are shards themselves."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference_runs.run import Optimizer, Precision, Recipe, Workload
from suite.execute.measure.counters import storage_bytes
from suite.execute.model.decoder import Decoder
from suite.execute.parallel.scattered_gradients import Share
from suite.execute.parallel.sharded_adamw import (
    ShardedAdamW,
    TensorAdamW,
    fully_sharded_adamw,
    sharded_adamw,
    whole_adamw,
    write_flat_gradient,
)
from suite.execute.precision import DTYPES, GRADIENT_DTYPES, WeightGroup, store_weights, stored_weights
from suite.predict.simulation.state import executed_state
from tests.support.launches import small_plan
from tests.support.small_weights import recipe_of, set_gradients, small_model

CPU = torch.device("cpu")
RULES = {Optimizer.ADAM: torch.optim.Adam, Optimizer.ADAMW: torch.optim.AdamW}
OPTIMIZERS = pytest.mark.parametrize("optimizer", RULES)
PRECISIONS = pytest.mark.parametrize("precision", DTYPES)
OPTIMIZER_KINDS: dict[str, Callable[[list[WeightGroup], Recipe], ShardedAdamW | TensorAdamW]] = {
    "flat": lambda groups, recipe: sharded_adamw(groups, recipe, shards=1, shard=0, process_group=None),
    "whole": whole_adamw,
}


def _plain(recipe: Recipe, groups: list[tuple[float, list[nn.Parameter]]]) -> torch.optim.Optimizer:
    return RULES[recipe.optimizer](
        [{"params": parameters, "weight_decay": weight_decay} for weight_decay, parameters in groups],
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        fused=True,
    )


def _step(plain: torch.optim.Optimizer, learning_rate: float) -> None:
    for settings in plain.param_groups:
        settings["lr"] = learning_rate
    plain.step()


def test_adam_decays_in_the_gradient_and_adamw_apart_from_it() -> None:
    for optimizer, after in ((Optimizer.ADAM, 0.9), (Optimizer.ADAMW, 0.95)):
        recipe = recipe_of(optimizer=optimizer, weight_decay=0.5)
        weight = torch.ones(4)
        ours = fully_sharded_adamw([(recipe.weight_decay, [nn.Parameter(weight)])], recipe)
        ours.step(0.1)  # no gradient: Adam's first step is the rate's size, AdamW's the rate times the decay's
        assert torch.allclose(weight, torch.full((4,), after), rtol=0, atol=1e-6)


def _flat(group: WeightGroup) -> Tensor:
    gradients = [leaf.grad.flatten().float() for leaf in group.leaves if leaf.grad is not None]
    flat = torch.cat(gradients)
    return torch.cat([flat, flat.new_zeros(group.flat.numel() - flat.numel())])


@OPTIMIZERS
@PRECISIONS
def test_every_precision_updates_fp32_masters_by_the_gradient_times_its_factor_in_fp32(
    precision: Precision, optimizer: Optimizer
) -> None:
    recipe = recipe_of(precision=precision, optimizer=optimizer)
    groups = store_weights([small_model()], recipe, shards=2, device=CPU)
    ours = sharded_adamw(groups, recipe, shards=1, shard=0, process_group=None)
    masters = [nn.Parameter(group.flat.float().clone()) for group in groups]
    theirs = _plain(recipe, [(group.weight_decay, [master]) for group, master in zip(groups, masters, strict=True)])
    # in fp16 the products with this factor would all lie below the smallest number
    factor = 2.0**-36 / 3
    for step in range(4):
        set_gradients(groups, step)
        for group, master in zip(groups, masters, strict=True):
            master.grad = _flat(group) * factor
        ours.step(1e-3, factor if step % 2 else torch.tensor(factor))
        _step(theirs, 1e-3)
        for group, master in zip(groups, masters, strict=True):
            assert torch.equal(group.flat, master.detach().to(group.flat.dtype))
            if precision is Precision.FP16_NO_MASTER:
                master.data = group.flat.float()  # what was rounded away is lost
    assert not torch.equal(groups[0].flat, store_weights([small_model()], recipe, shards=2, device=CPU)[0].flat)


@PRECISIONS
def test_whole_weights_update_as_the_plain_optimizer_does_tensor_by_tensor(precision: Precision) -> None:
    recipe = recipe_of(precision=precision)
    groups = store_weights([small_model()], recipe, shards=1, device=CPU)
    ours = whole_adamw(groups, recipe)
    stored = [weight for group in groups for weight in stored_weights(group)]
    grouped = [(g.weight_decay, [nn.Parameter(w.float().clone()) for w in stored_weights(g)]) for g in groups]
    masters = [master for _, members in grouped for master in members]
    theirs = _plain(recipe, grouped)
    factor = 2.0**-36 / 3
    for step in range(4):
        set_gradients(groups, step)
        for master, leaf in zip(masters, [leaf for group in groups for leaf in group.leaves], strict=True):
            assert leaf.grad is not None
            master.grad = leaf.grad.float() * factor
        widened = ours.widened()
        assert all(gradient.dtype is torch.float32 for gradient in widened.values())
        ours.step(1e-3, factor if step % 2 else torch.tensor(factor), widened if step > 1 else None)
        _step(theirs, 1e-3)
        for weight, master in zip(stored, masters, strict=True):
            assert torch.equal(weight, master.detach().to(weight.dtype))
            if precision is Precision.FP16_NO_MASTER:
                master.data = weight.float()  # what was rounded away is lost
    assert not torch.equal(groups[0].flat, store_weights([small_model()], recipe, shards=1, device=CPU)[0].flat)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_whole_weights_are_updated_without_a_copy_of_fp32_gradients(precision: Precision) -> None:
    recipe = recipe_of(precision=precision)
    groups = store_weights([small_model()], recipe, shards=1, device=CPU)
    ours = whole_adamw(groups, recipe)
    set_gradients(groups, 0)
    gradients = [leaf.grad for group in groups for leaf in group.leaves]
    assert [gradient is own for gradient, own in zip(gradients, ours.widened().values(), strict=True)] == [True] * 6


@PRECISIONS
def test_shards_together_update_as_one_does(precision: Precision) -> None:
    recipe = recipe_of(precision=precision)
    whole, *parts = (store_weights([small_model()], recipe, shards=3, device=CPU) for _ in range(4))
    one = sharded_adamw(whole, recipe, shards=1, shard=0, process_group=None)
    several = [
        sharded_adamw(groups, recipe, shards=3, shard=shard, process_group=None) for shard, groups in enumerate(parts)
    ]
    for step in range(3):
        for groups in (whole, *parts):
            set_gradients(groups, step)
        for optimizer in (one, *several):
            optimizer.step(1e-2, 2.0**-10)
    for index, group in enumerate(whole):
        together = torch.cat([optimizer.masters.weights[index] for optimizer in several])
        # other tails, as above: 3 steps of 16 roundings in fp32 can move a value to the next one of its dtype, in bf16
        # by 2^-7, in fp16 by 2^-10 of itself; in each step where no master carries on what was rounded away
        moved = {torch.float32: 3 * 16 * 2**-24, torch.bfloat16: 2**-7, torch.float16: 2**-10}[group.flat.dtype]
        moved *= 3 if precision is Precision.FP16_NO_MASTER else 1
        assert torch.allclose(together.float(), group.flat.float(), rtol=moved, atol=3 * 16 * 2**-24)


def test_masters_carry_what_sixteen_bits_lose_and_without_them_it_is_lost() -> None:
    for precision in DTYPES:
        recipe = recipe_of(precision=precision, weight_decay=0.0)
        weight = torch.ones(64).to(torch.float32 if precision is Precision.FP32 else torch.float16)
        if precision is Precision.BF16:
            weight = weight.bfloat16()
        group = WeightGroup(0.0, weight, [nn.Parameter(torch.zeros(64, dtype=GRADIENT_DTYPES[weight.dtype]))])
        optimizer = whole_adamw([group], recipe)
        for _ in range(16):
            group.leaves[0].grad = torch.ones_like(group.leaves[0])
            optimizer.step(2.0**-12)  # less than half of what moves a 16-bit 1 downwards: 2^-9 and 2^-12
        # constant gradients make every step of Adam as long as the rate
        expected = 1.0 if precision is Precision.FP16_NO_MASTER else 1 - 16 * 2.0**-12
        assert weight.float().mean().item() == pytest.approx(expected, abs=2**-20), precision


@pytest.mark.parametrize("kind", OPTIMIZER_KINDS)
def test_the_gradient_copy_persists_and_holds_the_unscaled_gradient(kind: str) -> None:
    recipe = recipe_of(precision=Precision.FP16_GRADIENT_COPY)
    groups = store_weights([small_model()], recipe, shards=1, device=CPU)
    optimizer = OPTIMIZER_KINDS[kind](groups, recipe)
    pointers = [copy.data_ptr() for copy in optimizer.masters.gradient_copies]
    for step in range(2):
        set_gradients(groups, step)
        optimizer.step(1e-3, 1 / 3)
        copied = torch.cat([copy.flatten() for copy in optimizer.masters.gradient_copies])
        assert torch.equal(copied, torch.cat([_flat(group) for group in groups]) * (1 / 3))
    assert [copy.data_ptr() for copy in optimizer.masters.gradient_copies] == pointers


@PRECISIONS
@pytest.mark.parametrize("shards", [1, 3])
def test_state_bytes_are_the_predicted_ones(precision: Precision, shards: int) -> None:
    plan = small_plan(ranks=1, recipe={"precision": precision})
    layout = msgspec.structs.replace(plan.layout, data_parallel=shards, zero_stage=1)
    decoder = Decoder(plan.architecture, plan.recipe)
    groups = store_weights([decoder], plan.recipe, shards=shards, device=CPU)
    optimizer = (
        whole_adamw(groups, plan.recipe)
        if shards == 1
        else sharded_adamw(groups, plan.recipe, shards=shards, shard=shards - 1, process_group=None)
    )
    set_gradients(groups, 0)
    optimizer.step(1e-3)
    state = executed_state(Workload(plan.architecture, plan.recipe, layout), stage=0, replica=shards - 1)
    assert storage_bytes(optimizer.state_tensors) == state.optimizer_bytes
    assert all(master.grad is None for master in optimizer.masters.masters)


@PRECISIONS
def test_local_shards_update_as_the_plain_optimizer_does(precision: Precision) -> None:
    recipe = recipe_of(precision=precision)
    stored = torch.float16 if precision is Precision.FP16_NO_MASTER else torch.float32
    torch.manual_seed(3)
    # a rank may have no rows of a small parameter
    locals_ = [torch.randn(shape).to(stored) for shape in ((5, 3), (0, 3), (7,), (0,))]
    parameters = [nn.Parameter(local) for local in locals_]
    ours = fully_sharded_adamw([(0.1, parameters[:2]), (0.0, parameters[2:])], recipe)
    masters = [nn.Parameter(local.float().clone()) for local in locals_]
    theirs = _plain(recipe, [(0.1, masters[:2]), (0.0, masters[2:])])
    factor = 2.0**-36 / 3
    for step in range(3):
        for parameter, master in zip(parameters, masters, strict=True):
            parameter.grad = (1024 * torch.randn(parameter.shape)).to(stored)
            master.grad = parameter.grad.float() * factor
        ours.step(0.01 * (step + 1), factor)
        _step(theirs, 0.01 * (step + 1))
        for parameter, local, master in zip(parameters, locals_, masters, strict=True):
            assert parameter.data_ptr() == local.data_ptr()
            assert torch.equal(parameter, master.detach().to(stored))
            master.data = parameter.detach().float().clone()  # in fp16 without what was rounded away
    elements = 5 * 3 + 7
    copy = 4 * elements if precision is Precision.FP16_GRADIENT_COPY else 0
    # two moments an element, and a counter for each tensor, empty ones too; fp32 shards are their own masters
    assert storage_bytes(ours.state_tensors) == 8 * elements + 4 * len(parameters) + copy


@given(sizes=st.lists(st.integers(1, 17), min_size=1, max_size=6), shards=st.integers(1, 5))
def test_gradient_shards_concatenate_to_the_whole_gradient(sizes: list[int], shards: int) -> None:
    leaves = [nn.Parameter(torch.zeros(size, dtype=torch.float16)) for size in sizes]
    whole = torch.arange(1.0, sum(sizes) + 1)
    for leaf, part in zip(leaves, whole.split(sizes), strict=True):
        leaf.grad = part.half()
    elements = -(-sum(sizes) // shards)
    group = WeightGroup(0.0, torch.zeros(elements * shards), leaves)
    pieces = [torch.full((elements,), torch.nan) for _ in range(shards)]
    for shard, piece in enumerate(pieces):
        write_flat_gradient(group, start=shard * elements, shard=piece)
    together = torch.cat(pieces)
    assert together.dtype is torch.float32
    assert torch.equal(together[: sum(sizes)], whole)
    assert not together[sum(sizes) :].any()


def test_experts_that_ranks_share_out_are_updated_in_shards_of_their_own() -> None:
    recipe = recipe_of(precision=Precision.BF16)
    models = [small_model() for _ in range(4)]
    whole, *parts = (
        store_weights([model], recipe, shards=3, device=CPU, apart={id(model[2].weight)}, apart_shards=2)
        for model in models
    )
    assert [(group.apart, group.flat.numel()) for group in whole] == [(False, 36), (True, 22), (False, 24)]
    one = sharded_adamw(whole, recipe, shards=1, shard=0, process_group=None)
    several = [
        sharded_adamw(groups, recipe, shards=3, shard=rank, process_group=None, apart=Share(rank % 2, 2, None))
        for rank, groups in enumerate(parts)
    ]
    for groups in (whole, *parts):
        set_gradients(groups, 0)
    for optimizer in (one, *several):
        optimizer.step(1e-2, 2.0**-10)
    for index, group in enumerate(whole):
        held = [optimizer.masters.weights[index] for optimizer in several]
        if group.apart:
            assert torch.equal(held[0], held[2])  # both are the first of two
        together = torch.cat(held[:2] if group.apart else held)
        assert torch.allclose(together.float(), group.flat.float(), rtol=2**-7, atol=3 * 16 * 2**-24)
