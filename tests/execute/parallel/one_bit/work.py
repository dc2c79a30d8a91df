"""Work of the ranks in the tests of 1-bit Adam."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from suite.execute.measure.counters import CollectiveCounter
from suite.execute.parallel.one_bit import ErrorFeedback, OneBitAdam, Renewal, Settled, compressed_all_reduce
from tests.execute.parallel.one_bit.simulation import mean

WARM_UP = 4


def average(group: dist.ProcessGroup, steps: list[list[list[Tensor]]], active: list[Tensor | None]) -> Any:
    """Average `steps[step][rank]`, some vectors, with one feedback; after each step vectors, both errors, verdict."""
    rank = dist.get_rank(group)
    feedback = [ErrorFeedback.zeros(value.numel(), group=group, device=value.device) for value in steps[0][rank]]
    for each, mask in zip(feedback, active, strict=True):
        each.active = mask
    reported = []
    for step in steps:
        vectors = [value.clone() for value in step[rank]]
        done = compressed_all_reduce(vectors, feedback, group=group)
        reported.append(
            (vectors, [each.worker.clone() for each in feedback], [e.server.clone() for e in feedback], done)
        )
    return reported


def average_wrongly(group: dist.ProcessGroup, vectors: list[Tensor], errors: list[tuple[Tensor, Tensor]]) -> None:
    """The same on every rank; refused before anything is sent."""
    compressed_all_reduce(vectors, [ErrorFeedback(*pair) for pair in errors], group=group)


def gradient(seed: int, rank: int, step: int, elements: int) -> Tensor:
    """Gradient of one rank in one step: mostly its own noise, a little that all share."""
    numbers = torch.Generator().manual_seed(seed * 1_000_003 + step * 101 + rank)
    shared = torch.linspace(-1, 1, elements)
    return torch.randn(elements, generator=numbers) + 0.3 * shared


def gradients(ranks: int, step: int, elements: int, *, zeros: int) -> list[Tensor]:
    """Gradients of every rank in one step; the first `zeros` elements are 0 in 20 steps, half of them in 49."""
    own = [gradient(7, rank, step, elements) for rank in range(ranks)]
    for each in own:
        each[: zeros if step < 20 else zeros // 2 if step < 49 else 0] = 0
    return own


def train(group: dist.ProcessGroup, elements: int, steps: int, settings: dict[str, Any], zeros: int) -> Any:
    """Weights after each step of one tensor with `gradients`."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    weight = nn.Parameter(torch.linspace(-2, 2, elements).reshape(1, -1))
    optimizer = OneBitAdam([weight], process_group=group, **settings)
    weights = []
    for step in range(steps):
        of_all = gradients(ranks, step, elements, zeros=zeros)
        weight.grad = (of_all[rank] if optimizer.compresses else mean(of_all)).view_as(weight)
        optimizer.step()
        weights.append(weight.detach().flatten().clone())
    return weights


class Network(nn.Module):
    """An embedding, two numbered layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(2)])
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def tokens(rank: int, step: int) -> Tensor:
    """A batch of 4 samples of one rank; the last 5 tokens of the vocabulary never come."""
    return torch.randint(0, 15, (4, 8), generator=torch.Generator().manual_seed(1000 * step + rank))


def _network() -> Network:
    torch.manual_seed(5)
    return Network()


def _made(group: dist.ProcessGroup, **settings: Any) -> tuple[DistributedDataParallel, OneBitAdam]:
    network = _network()
    model = DistributedDataParallel(network, process_group=group)
    settings = {"lr": 1e-2, "weight_decay": 0.1, "warmup_steps": WARM_UP} | settings
    optimizer = OneBitAdam(network.named_parameters(), process_group=group, **settings)
    optimizer.average_gradients_of(model)
    return model, optimizer


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> float:
    optimizer.zero_grad()
    loss: Tensor = model(batch)
    loss.backward()
    optimizer.step()
    return loss.item()


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def warned(group: dist.ProcessGroup, wrapped: bool, hooked: bool) -> list[str]:
    """File and words of what OneBitAdam warns of in three steps after the warm-up, with or without
    DistributedDataParallel."""
    network = _network()
    model = DistributedDataParallel(network, process_group=group) if wrapped else network
    optimizer = OneBitAdam(network.named_parameters(), warmup_steps=1, process_group=group)
    if hooked and isinstance(model, DistributedDataParallel):
        optimizer.average_gradients_of(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            _step(model, optimizer, tokens(dist.get_rank(group), step))
    return [f"{Path(each.filename).name}: {each.message}" for each in caught if each.category is UserWarning]


def warned_without_gradients(group: dist.ProcessGroup) -> int:
    """How often OneBitAdam warns in three steps after the warm-up whose gradients are 0 on all ranks."""
    weight = nn.Parameter(torch.ones(2, 4))
    optimizer = OneBitAdam([weight], warmup_steps=1, process_group=group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            weight.grad = torch.ones_like(weight) if step == 0 else torch.zeros_like(weight)
            optimizer.step()
    return sum(each.category is UserWarning for each in caught)


def with_a_model(group: dist.ProcessGroup, steps: int) -> Any:
    """Weights after each step of OneBitAdam, of AdamW with DistributedDataParallel alone, and collectives by step."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    exact = DistributedDataParallel(_network(), process_group=group)
    adamw = torch.optim.AdamW(exact.parameters(), lr=1e-2, weight_decay=0.1)
    ours, theirs, collectives = [], [], []
    for step in range(steps):
        counter = CollectiveCounter({group.group_name: "dp"})
        with counter:
            _step(model, optimizer, tokens(rank, step))
        _step(exact, adamw, tokens(rank, step))
        ours.append(_weights(model))
        theirs.append(_weights(exact))
        collectives.append([(each.operation, each.payload_bytes, each.messages) for each in counter.collectives()])
    sizes = [bucket.elements for bucket in optimizer._buckets]
    return ours, theirs, collectives, sizes, sum(parameter.numel() for parameter in optimizer._exact)


def accumulated(group: dist.ProcessGroup, micro_batches: int) -> Any:
    """Weights after the warm-up and two compressed steps, each of one batch in so many parts."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    for step in range(WARM_UP + 2):
        optimizer.zero_grad()
        parts = tokens(rank, step).chunk(micro_batches)
        with model.no_sync():
            for part in parts[:-1]:
                (model(part) / micro_batches).backward()
        (model(parts[-1]) / micro_batches).backward()
        optimizer.step()
    return _weights(model)


def resumed(group: dist.ProcessGroup, before: int, after: int, settings: dict[str, Any] | None = None) -> Any:
    """Weights after before + after steps, in one go, and with a new optimizer from a file between."""
    rank, settings = dist.get_rank(group), settings or {}
    model, optimizer = _made(group, **settings)
    for step in range(before):
        _step(model, optimizer, tokens(rank, step))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    again, other = _made(group, lr=3.0, **settings)
    again_state, other_state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again.load_state_dict(again_state)
    other.load_state_dict(other_state)
    for step in range(before, before + after):
        _step(model, optimizer, tokens(rank, step))
        _step(again, other, tokens(rank, step))
    return _weights(model), _weights(again)


def saved(group: dist.ProcessGroup, steps: int) -> Any:
    """After `steps`: weights, both state dicts, and this rank's errors."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    for step in range(steps):
        _step(model, optimizer, tokens(rank, step))
    errors = [(each.worker, each.server) for each in optimizer._feedback]
    return model.state_dict(), optimizer.state_dict(), optimizer.portable_state_dict(), errors


def loaded(group: dist.ProcessGroup, weights: Any, state: Any, steps: int) -> Any:
    """This rank's errors after loading, then losses of `steps` more."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    errors = [(each.worker.clone(), each.server.clone()) for each in optimizer._feedback]
    return errors, [_step(model, optimizer, tokens(rank, 100 + step)) for step in range(steps)]


def with_bad_gradients(group: dist.ProcessGroup, name: str, value: float, bad_step: int) -> Any:
    """After each of 8 steps weights, state and `skipped`; one element of rank 1's gradient of `name` is `value`."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    reported = []
    for step in range(8):
        optimizer.zero_grad()
        model(tokens(rank, step)).backward()
        if (step == bad_step and rank == 1) or step == bad_step < WARM_UP:  # an all-reduce spreads it in the warm-up
            gradient = dict(model.module.named_parameters())[name].grad
            assert gradient is not None
            gradient.view(-1)[0] = value
        optimizer.step()
        state = [t.clone() for s in optimizer.state.values() for t in s.values()]
        state += [t.clone() for each in optimizer._feedback for t in (each.worker, each.server)]
        reported.append((_weights(model), state, optimizer.skipped))
    return reported


def scaled(group: dist.ProcessGroup, sharded: bool, bad_step: int) -> Any:
    """Weights, `skipped` and the loss scale of 8 steps with a gradient scaler; rank 1's loss is infinite in one."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    scaler: torch.amp.GradScaler
    if sharded:
        scaler = ShardedGradScaler("cpu", init_scale=1024.0, process_group=group)
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    reported = []
    for step in range(8):
        optimizer.zero_grad()
        loss = model(tokens(rank, step))
        scaler.scale(loss * (float("inf") if step == bad_step and rank == 1 else 1.0)).backward()
        if sharded:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        reported.append((_weights(model), optimizer.skipped, scaler.get_scale()))
    return reported


def unscaled(group: dist.ProcessGroup) -> Any:
    """Weights of 8 steps without a scaler."""
    rank = dist.get_rank(group)
    model, optimizer = _made(group)
    weights = []
    for step in range(8):
        _step(model, optimizer, tokens(rank, step))
        weights.append(_weights(model))
    return weights


def settled(
    group: dist.ProcessGroup,
    steps: int,
    window: int | None,
    at_least: int,
    lag: int,
    resumed: int | None = None,
    vector: bool = False,
) -> Any:
    """When the warm-up ended, and the norms of v; a gradient grows for 20 steps, that of rank 1 `lag` steps behind.
    After step `resumed` another optimizer goes on. A vector is not compressed."""
    rank = dist.get_rank(group)
    weight = nn.Parameter(torch.ones(16) if vector else torch.ones(2, 8))
    rule = Settled(window=window, at_least=at_least)
    optimizer = OneBitAdam([weight], betas=(0.5, 0.9), warmup_steps=rule, process_group=group)
    norms = []
    for step in range(steps):
        weight.grad = torch.full_like(weight, 1 + min(20, max(0, step - lag * rank)))
        optimizer.step()
        norms.append(optimizer.state[weight]["exp_avg_sq"].sum().item())
        if step == resumed:
            state = optimizer.state_dict()
            optimizer = OneBitAdam([weight], warmup_steps=rule, process_group=group)
            optimizer.load_state_dict(state)
        if optimizer.compresses:
            break
    return optimizer.frozen_at, norms


def exact_steps(group: dist.ProcessGroup, steps: int, settings: dict[str, Any], beta2: list[float]) -> list[int]:
    """Numbers of the steps that are exact, with a group of parameters for each beta2 and gradients of 1."""
    weights = [nn.Parameter(torch.ones(2, 4)) for _ in beta2]
    groups = [{"params": [weight], "betas": (0.6, beta)} for weight, beta in zip(weights, beta2, strict=True)]
    optimizer = OneBitAdam(groups, process_group=group, **settings)
    exact = []
    for step in range(1, steps + 1):
        if not optimizer.compresses:
            exact.append(step)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    return exact


def late(group: dist.ProcessGroup, first: int, warm_up: int, steps: int, renewal: Renewal | None = None) -> Any:
    """Weights after each step of one that has gradients of 1 from step `first` on, of ours and of AdamW; beside it one
    that has them always, and one that has them never, whose steps are counted too. A gradient that all have is not
    changed by compressing."""
    weights = [nn.Parameter(torch.full((4, 4), 2.0)) for _ in range(4)]
    settings: dict[str, Any] = {"warmup_steps": warm_up, "renewal": renewal}
    ours = OneBitAdam(weights[:3], lr=0.1, weight_decay=0.1, process_group=group, **settings)
    exact = torch.optim.AdamW(weights[3:], lr=0.1, weight_decay=0.1)
    reported = []
    for step in range(steps):
        weights[0].grad = torch.ones(4, 4)
        weights[1].grad = weights[3].grad = torch.ones(4, 4) if step >= first else None
        ours.step()
        exact.step()
        reported.append((weights[1].detach().clone(), weights[3].detach().clone()))
    return reported, weights[2].detach(), int(ours.state[weights[2]]["step"])


def frozen(group: dist.ProcessGroup, thaw: bool) -> Any:
    """Sizes of what is compressed, and four weights after 6 steps, 3 of them compressed: of a matrix that is trained,
    of a matrix and a vector that are frozen, and of a matrix that is frozen within the warm-up."""
    weights = [nn.Parameter(torch.ones(size)) for size in ((2, 8), (2, 6), (5,), (2, 4))]
    for parameter in weights[1:3]:
        parameter.requires_grad_(False)
    optimizer = OneBitAdam(weights, lr=0.1, weight_decay=0.5, warmup_steps=3, process_group=group)
    for step in range(6):
        weights[3].requires_grad_(step == 0)
        for parameter in weights:
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        if thaw and step == 4:
            weights[1].grad = torch.ones(2, 6)
        optimizer.step()
        if step == 0:
            once = weights[3].detach().clone()
    again = [nn.Parameter(weight.detach().clone()) for weight in weights]
    other = OneBitAdam(again, warmup_steps=3, process_group=group)
    for parameter in again[1:]:  # after the optimizer was made
        parameter.requires_grad_(False)
    other.load_state_dict(optimizer.state_dict())
    assert [bucket.elements for bucket in other._buckets] == [16]
    return [bucket.elements for bucket in optimizer._buckets], [each.detach() for each in weights], once


def in_half(group: dist.ProcessGroup) -> Any:
    """Whether each of 4 steps was left out with fp16 gradients of norm 75000, which no fp16 holds."""
    weight = nn.Parameter(torch.ones(300, 300, dtype=torch.float16))
    optimizer = OneBitAdam([weight], warmup_steps=2, process_group=group)
    reported = []
    for _ in range(4):
        weight.grad = torch.full_like(weight, 250.0)
        optimizer.step()
        reported.append(optimizer.skipped)
    return reported


def in_groups(group: dist.ProcessGroup, steps: int) -> Any:
    """Sizes of what is compressed and what is not, and weights after `steps` with gradients of 1 and rates of 0.1 to
    0.4; then a group is added."""
    names = ("layers.0.first", "layers.0.second", "norm", "embedding")
    weights = [nn.Parameter(torch.zeros(size)) for size in ((2, 4), (3, 2, 2), (7,), (5, 4))]
    compressed = (None, None, True, False)
    groups = [
        {"params": [(name, weight)], "lr": 0.1 * (number + 1), "compressed": chosen}
        for number, (name, weight, chosen) in enumerate(zip(names, weights, compressed, strict=True))
    ]
    optimizer = OneBitAdam(groups[:2], warmup_steps=2, process_group=group)
    for each in groups[2:]:
        optimizer.add_param_group(each)
    division = [bucket.elements for bucket in optimizer._buckets]
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert [bucket.elements for bucket in optimizer._buckets] == division
    sizes = [bucket.elements for bucket in optimizer._buckets], [each.numel() for each in optimizer._exact]
    refused = ""
    try:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))]})
    except ValueError as error:
        refused = str(error)
    return *sizes, [weight.detach() for weight in weights], refused


def with_coupled_decay(group: dist.ProcessGroup, settings: dict[str, Any], steps: int) -> Any:
    """Weights after each step with gradients of 1; all elements are the same, and so what one bit says is exact."""
    weight = nn.Parameter(torch.full((2, 4), 2.0))
    optimizer = OneBitAdam([weight], decoupled_weight_decay=False, process_group=group, **settings)
    reported = []
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        reported.append(weight.detach().clone())
    return reported


def with_closure(group: dist.ProcessGroup) -> Any:
    """Results of 4 steps with a closure, and the gradients after the last."""
    weight, bias = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(3))
    optimizer = OneBitAdam([weight, bias], warmup_steps=2, process_group=group)
    rank = dist.get_rank(group)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (weight * (2 * rank + 1)).sum() + (bias * (2 * rank + 1)).sum()
        loss.backward()
        return loss.item()

    return [optimizer.step(closure) for _ in range(4)], weight.grad, bias.grad


def without_gradient_on_one(group: dist.ProcessGroup) -> Any:
    """Weights after 4 steps, of which rank 0 has no gradients in the last two."""
    weights = [nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(3))]
    optimizer = OneBitAdam(weights, lr=0.1, warmup_steps=2, process_group=group)
    before = []
    for step in range(4):
        before = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.grad = None if step >= 2 and dist.get_rank(group) == 0 else torch.ones_like(weight)
        optimizer.step()
    return before, [weight.detach() for weight in weights]


def constructed(group: dist.ProcessGroup, settings: list[dict[str, Any]], elements: list[int]) -> None:
    """An optimizer with each rank's own settings and number of elements."""
    rank = dist.get_rank(group)
    own = dict(settings[rank])
    weight = torch.zeros(2, elements[rank], dtype=own.pop("dtype", None))
    OneBitAdam([nn.Parameter(weight)], process_group=group, **own)


def sharded(group: dist.ProcessGroup, over_ours: bool) -> None:
    """An optimizer of a tensor that is sharded over the group's ranks, or replicated over them."""
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    weight = distribute_tensor(torch.zeros(8, 8), mesh, [Shard(0) if over_ours else Replicate()])
    OneBitAdam([nn.Parameter(weight)], warmup_steps=1, process_group=group)


def sharded_beside(group: dist.ProcessGroup) -> Tensor:
    """This rank's part of a tensor that two ranks share and two others have again, after 4 steps of the latter pairs,
    two of them compressed, with gradients of 1."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 8), mesh, [Replicate(), Shard(0)]))
    optimizer = OneBitAdam([weight], lr=0.1, warmup_steps=2, process_group=mesh.get_group(0))
    for _ in range(4):
        weight.grad = distribute_tensor(torch.ones(4, 8), mesh, [Replicate(), Shard(0)])
        optimizer.step()
    return weight.detach().to_local()


def another_group(group: dist.ProcessGroup) -> None:
    """A model that averages over all four ranks, an optimizer over two of them."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    network = _network()
    model = DistributedDataParallel(network, process_group=group)
    own = halves[dist.get_rank(group) // 2]
    OneBitAdam(network.named_parameters(), warmup_steps=1, process_group=own).average_gradients_of(model)
