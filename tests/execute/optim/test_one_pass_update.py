"""An update in one pass over memory is PyTorch's, up to roundings, with the same state."""

from __future__ import annotations

import weakref

import msgspec
import pytest
import torch
from torch import Tensor, nn

from reference_runs.run import Optimizer, Precision, Recipe
from suite.execute.optim.learning_rate import squared_norm
from suite.execute.optim.one_pass_update import (
    UpdatesTaken,
    squared_norm_in_one_launch,
    update_norm,
    updates_in_one_pass,
)
from suite.execute.parallel.sharded_adamw import TensorAdamW, fully_sharded_adamw, sharded_adamw, whole_adamw
from suite.execute.precision import DTYPES, WeightGroup, store_weights
from suite.job.options import DEFAULT_OPTIONS, Optimization, Update
from tests.support.small_weights import recipe_of, set_gradients, small_model

CPU = torch.device("cpu")
PRECISIONS = pytest.mark.parametrize("precision", DTYPES)
OPTIMIZERS = pytest.mark.parametrize("optimizer", [Optimizer.ADAM, Optimizer.ADAMW])
RATE = 1e-2
FACTOR = 2.0**-36 / 3  # in fp16 the products with it would all lie below the smallest number


def groups_of(recipe: Recipe, shards: int = 1) -> list[WeightGroup]:
    return store_weights([small_model()], recipe, shards=shards, device=CPU)


def states(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    return [dict(state) for state in optimizer.state.values()]


def assert_alike(one: list[WeightGroup], other: list[WeightGroup], steps: int) -> None:
    """With 16 roundings in fp32 a step an update may differ by its 2^-20, and what is rounded by the next number."""
    for ours, theirs in zip(one, other, strict=True):
        dtype = ours.flat.dtype
        rounded = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps * steps
        assert torch.allclose(ours.flat.float(), theirs.flat.float(), rtol=rounded, atol=steps * RATE * 2**-20)


@OPTIMIZERS
@PRECISIONS
@pytest.mark.parametrize("flat", [False, True])
def test_weights_and_state_are_those_of_pytorchs_optimizer(
    precision: Precision, optimizer: Optimizer, flat: bool
) -> None:
    recipe = recipe_of(precision=precision, optimizer=optimizer)
    plain_groups, groups = groups_of(recipe), groups_of(recipe)
    start = [group.flat.clone() for group in groups]
    plain, ours = (
        sharded_adamw(of, recipe, shards=1, shard=0, process_group=None, one_pass=one_pass)
        if flat
        else whole_adamw(of, recipe, one_pass=one_pass)
        for of, one_pass in ((plain_groups, False), (groups, True))
    )
    for step in range(4):
        for of, each in ((plain_groups, plain), (groups, ours)):
            set_gradients(of, step)
            each.step(RATE, FACTOR if step % 2 else torch.tensor(FACTOR))
    assert_alike(groups, plain_groups, 4)
    assert not any(torch.equal(before, group.flat) for before, group in zip(start, groups, strict=True))
    for own, theirs in zip(states(ours.masters.optimizer), states(plain.masters.optimizer), strict=True):
        assert list(own) == list(theirs) == ["step", "exp_avg", "exp_avg_sq"]
        for name, tensor in theirs.items():
            assert (own[name].dtype, own[name].shape) == (tensor.dtype, tensor.shape)
            # 16 roundings of terms as large as the largest moment, which may cancel
            assert torch.allclose(own[name], tensor, rtol=0, atol=2**-20 * float(tensor.abs().max()))
        assert own["step"] == 4


@PRECISIONS
def test_nothing_is_widened_and_gradients_stay(precision: Precision) -> None:
    recipe = recipe_of(precision=precision)
    groups = groups_of(recipe)
    ours = whole_adamw(groups, recipe, one_pass=True)
    set_gradients(groups, 0)
    gradients = [leaf.grad for group in groups for leaf in group.leaves if leaf.grad is not None]
    before = [gradient.clone() for gradient in gradients]
    widened = list(ours.widened().values())
    if precision is Precision.FP16_GRADIENT_COPY:  # which it keeps
        assert all(a is b for a, b in zip(widened, ours.masters.gradient_copies, strict=True))
    else:
        assert all(a is b for a, b in zip(widened, gradients, strict=True))
    ours.step(RATE, FACTOR)
    assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))
    empty = precision is Precision.FP16_NO_MASTER
    assert all((master.numel() == 0) is empty for master in ours.masters.masters)


@OPTIMIZERS
def test_either_update_goes_on_from_the_other_ones_state(optimizer: Optimizer) -> None:
    recipe = recipe_of(precision=Precision.BF16, optimizer=optimizer)
    alone = groups_of(recipe)
    reference = whole_adamw(alone, recipe)
    for step in range(6):
        set_gradients(alone, step)
        reference.step(RATE, FACTOR)
    turns = groups_of(recipe)
    by_turns = [whole_adamw(turns, recipe, one_pass=one_pass) for one_pass in (False, True)]
    for step in range(6):
        now, before = by_turns[step % 2], by_turns[1 - step % 2]
        if step:
            load(now, before)
        set_gradients(turns, step)
        now.step(RATE, FACTOR)
    assert_alike(turns, alone, 6)


def load(now: TensorAdamW, before: TensorAdamW) -> None:
    """In place, as a checkpoint is loaded: the state has to be there."""
    if not now.masters.optimizer.state:
        kept = [weight.clone() for weight in now.masters.weights]
        now.step(0.0)
        for weight, values in zip(now.masters.weights, kept, strict=True):
            weight.copy_(values)
    with torch.no_grad():
        for tensor, values in zip(now.state_tensors, before.state_tensors, strict=True):
            tensor.copy_(values)


def test_a_rank_may_have_no_rows_of_a_parameter() -> None:
    recipe = recipe_of()
    torch.manual_seed(3)
    values = [torch.randn(shape) for shape in ((5, 3), (0, 3), (7,), (0,))]
    sharded = []
    for one_pass in (False, True):
        parameters = [nn.Parameter(value.clone()) for value in values]
        ours = fully_sharded_adamw([(0.1, parameters[:2]), (0.0, parameters[2:])], recipe, one_pass=one_pass)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        ours.step(RATE)
        sharded.append(parameters)
    for own, theirs, before in zip(*sharded, values, strict=True):
        assert torch.allclose(own, theirs, rtol=0, atol=RATE * 2**-20)
        assert not own.numel() or not torch.equal(own, before)


def test_the_counter_is_read_only_where_it_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    item = Tensor.item
    monkeypatch.setattr(Tensor, "item", lambda self: read.append(item(self)) or item(self))
    taken, counters = UpdatesTaken(), [torch.zeros(()), torch.zeros(())]
    assert [taken.next(counters) for _ in range(3)] == [1, 2, 3]
    assert read == [0]
    counters[0].fill_(9)
    assert [taken.next(counters) for _ in range(2)] == [10, 11]
    assert read == [0, 9]
    assert [float(counter) for counter in counters] == [11, 5]


def test_the_counter_is_held_so_that_none_that_replaces_it_has_the_same_identity() -> None:
    taken, counter = UpdatesTaken(), torch.zeros(())
    taken.next([counter])
    held = weakref.ref(counter)
    del counter
    assert held() is not None
    assert taken.next([torch.tensor(9.0)]) == 10
    assert held() is None


def test_the_norm_is_that_of_all_gradients() -> None:
    gradients = [torch.randn(5, 3), torch.randn(7), torch.randn(0)]
    found = squared_norm_in_one_launch(iter(gradients), device=CPU)
    assert torch.allclose(found, squared_norm(gradients, device=CPU), rtol=1e-6)
    assert squared_norm_in_one_launch([], device=CPU) == 0


def test_it_is_for_fused_adam_on_a_gpu() -> None:
    asked = msgspec.structs.replace(DEFAULT_OPTIONS, optimizations=(Optimization.ONE_PASS_UPDATE,))
    cuda = torch.device("cuda", 0)
    assert updates_in_one_pass(asked, cuda)
    assert [update_norm(asked, place) for place in (cuda, CPU)] == [squared_norm_in_one_launch, squared_norm]
    assert not updates_in_one_pass(asked, CPU)
    assert not updates_in_one_pass(DEFAULT_OPTIONS, cuda)
    assert not updates_in_one_pass(msgspec.structs.replace(asked, update=Update.LOOP), cuda)
