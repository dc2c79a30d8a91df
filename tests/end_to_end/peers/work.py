"""The work of the ranks in the comparisons with DeepSpeed."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from suite.execute.measure.counters import CollectiveCounter
from suite.execute.parallel.one_bit import ErrorFeedback, OneBitAdam, compressed_all_reduce
from suite.execute.parallel.one_bit.all_reduce import part_elements
from tests.end_to_end.peers import deepspeed_on_cpu
from tests.execute.parallel.one_bit.simulation import mean
from tests.execute.parallel.one_bit.work import gradient

SIZES = ((32, 64), (512,))  # without padding on 2 and 4 ranks


def vector(rank: int, step: int, elements: int) -> Tensor:
    """The gradient of one rank in one step: sizes far apart, exact zeros of both signs; all 0 in the first."""
    values = gradient(3, rank, step, elements) * 10.0 ** (step % 7 - 3)
    values[step::5] = 0.0
    values[step::10] = -0.0
    return values * (step > 0)


def averaged(group: dist.ProcessGroup, kind: str, elements: int, steps: int) -> Any:
    """After each step result, worker error and server error, ours and those of a backend of DeepSpeed."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    part = part_elements(elements, ranks)
    ours = ErrorFeedback.zeros(elements, group=group, device=torch.device("cpu"))
    worker, server = torch.zeros(part * ranks), torch.zeros(part)
    backend = deepspeed_on_cpu.backend(kind, group)
    reported = []
    for step in range(steps):
        own = vector(rank, step, elements)
        assert compressed_all_reduce([own], [ours], group=group)
        theirs = backend.compressed_allreduce(vector(rank, step, elements), worker, server, 0)
        reported.append(
            ((own, ours.worker.clone(), ours.server.clone()), (theirs.clone(), worker.clone(), server.clone()))
        )
    return reported


def of_three(group: dist.ProcessGroup, elements: int, steps: int) -> Any:
    """For each step the errors before, this rank's vector, and both results, DeepSpeed's from the same errors."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    ours = ErrorFeedback.zeros(elements, group=group, device=torch.device("cpu"))
    backend = deepspeed_on_cpu.backend("nccl", group)
    assert part_elements(elements, ranks) * ranks == elements
    reported = []
    for step in range(steps):
        own = vector(rank, step + 1, elements)
        worker, server = ours.worker.clone(), ours.server.clone()
        before = (own.clone(), worker.clone(), server.clone())
        theirs = backend.compressed_allreduce(own.clone(), worker, server, 0)
        assert compressed_all_reduce([own], [ours], group=group)
        reported.append((*before, own, theirs.clone(), torch.equal(worker, ours.worker)))
    return reported


class InTheirOrder(OneBitAdam):
    """Adds up the momentum as DeepSpeed does, and keeps by how much our own sum is off, in units of its bound."""

    off = 0.0

    def _momentum(self, bucket: Any) -> Tensor:
        usual = super()._momentum(bucket)
        (parameter,) = bucket.parameters
        beta = self.param_groups[0]["betas"][0]
        moment, gradient = self.state[parameter]["exp_avg"].flatten(), parameter.grad.flatten()
        theirs = moment.mul(beta).add_(gradient, alpha=1 - beta)
        self.off = max(self.off, float(((usual - theirs).abs() / momentum_bound(moment, gradient, beta)).max()))
        return theirs


def momentum_bound(moment: Tensor, gradient: Tensor, beta: float) -> Tensor:
    """A bound of the difference of beta m + (1 - beta) g and m + (1 - beta)(g - m), each rounded in fp32; w = 1 - beta.

    The first rounds both factors, both products and the sum: 3 (beta |m| + w |g|). The second rounds w, g - m, their
    product and the sum: 3 w (|m| + |g|) + beta |m| + w |g|. Together (3 w + 4 beta) |m| + 7 w |g|, roundings of 2^-24.
    """
    return (4 * moment.double().abs() + 7 * (1 - beta) * gradient.double().abs()) * 2**-24


def same_rule(settings: dict[str, Any], step: int, warm_up: int) -> dict[str, float]:
    """lr, eps and weight_decay with which DeepSpeed's update, without bias correction, is ours in step t.

    With r = sqrt(1 - beta2^min(t, T)): lr / (1 - beta1^t) m / (sqrt(v) / r + eps) is lr r / (1 - beta1^t) m over
    (sqrt(v) + eps r), and its decay, times that learning rate, has to be lr weight_decay.
    """
    (beta1, beta2), rate = settings["betas"], settings["lr"]
    root = math.sqrt(1 - beta2 ** min(step, warm_up))
    theirs = rate * root / (1 - beta1**step)
    return {"lr": theirs, "eps": settings["eps"] * root, "weight_decay": settings["weight_decay"] * rate / theirs}


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.linspace(-2, 2, math.prod(size)).reshape(size)) for size in SIZES]


def of_step(ranks: int, step: int) -> list[list[Tensor]]:
    """Gradients of each rank, of each parameter."""
    return [
        [gradient(17 + number, rank, step, math.prod(size)).view(size) for number, size in enumerate(SIZES)]
        for rank in range(ranks)
    ]


def given(group: dist.ProcessGroup, parameters: list[nn.Parameter], step: int, *, averaged: bool) -> None:
    """Set `grad`, to the mean or to this rank's own."""
    of_all = of_step(dist.get_world_size(group), step)
    for number, parameter in enumerate(parameters):
        own = of_all[dist.get_rank(group)][number]
        parameter.grad = mean([each[number] for each in of_all]) if averaged else own.clone()


def trained(group: dist.ProcessGroup, kind: str, settings: dict[str, Any], warm_up: int, steps: int) -> Any:
    """After each step weight, m, v and both errors of each parameter, ours and theirs, and the largest `off`."""
    mine, other = weights(), weights()
    ours = InTheirOrder([{"params": mine, "compressed": True}], process_group=group, warmup_steps=warm_up, **settings)
    engine = deepspeed_on_cpu.engine(group)
    # its first step is a dry run that counts
    theirs = deepspeed_on_cpu.optimizer(other, engine, freeze_step=warm_up + 1, comm_backend_name=kind, **settings)
    given(group, other, 0, averaged=True)
    theirs.step()
    reported = []
    for step in range(1, steps + 1):
        assert ours.compresses is not engine.enable_backward_allreduce  # both switch after the same step
        for parameters in (mine, other):
            given(group, parameters, step, averaged=not ours.compresses)
        theirs.param_groups[0].update(same_rule(settings, step, warm_up))
        ours.step()
        theirs.step()
        reported.append(([_kept(ours, n, mine[n]) for n in range(len(SIZES))], [_theirs(theirs, p) for p in other]))
        if step == warm_up:
            for a, b in zip(mine, other, strict=True):
                ours.state[a]["exp_avg"].copy_(theirs.state[b]["exp_avg"])
    return reported, ours.off


def _kept(optimizer: OneBitAdam, number: int, parameter: nn.Parameter) -> list[Tensor]:
    state = optimizer.state[parameter]
    errors = [optimizer._feedback[number].worker, optimizer._feedback[number].server] if optimizer._feedback else []
    return _copies([parameter, state["exp_avg"], state["exp_avg_sq"], *errors])


def _theirs(optimizer: Any, parameter: nn.Parameter) -> list[Tensor]:
    state = optimizer.state[parameter]
    errors = [state[name] for name in ("worker_error", "server_error") if name in state]
    return _copies([parameter, state["exp_avg"], state["exp_avg_sq"], *errors])


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().flatten().clone() for tensor in tensors]


def first_step(group: dist.ProcessGroup) -> Any:
    """Weights, moments and step count after DeepSpeed's first step, and the weights before."""
    parameters = weights()
    theirs = deepspeed_on_cpu.optimizer(parameters, deepspeed_on_cpu.engine(group), freeze_step=100)
    before = _copies(list(parameters))
    given(group, parameters, 1, averaged=True)
    theirs.step()
    return before, [(_theirs(theirs, parameter), theirs.state[parameter]["step"]) for parameter in parameters]


def with_bias_correction(group: dist.ProcessGroup, reported: bool) -> Any:
    """DeepSpeed's weights after 5 steps."""
    parameters = weights()
    engine = deepspeed_on_cpu.engine(group)
    theirs = deepspeed_on_cpu.optimizer(parameters, engine, freeze_step=3, bias_correction=reported)
    for step in range(5):
        given(group, parameters, step, averaged=True)
        theirs.step()
    return _copies(list(parameters))


def from_checkpoint(group: dist.ProcessGroup) -> Any:
    """DeepSpeed after 6 steps, 4 of them compressed: its errors; a new one that loads its state: errors, its weights
    before, and after each of 3 steps, and whether its engine then averages gradients."""
    parameters = weights()
    engine = deepspeed_on_cpu.engine(group)
    theirs = deepspeed_on_cpu.optimizer(parameters, engine, freeze_step=2)
    for step in range(6):
        given(group, parameters, step, averaged=engine.enable_backward_allreduce)
        theirs.step()
    state = theirs.state_dict()
    errors = [_theirs(theirs, parameter)[3:] for parameter in parameters]
    again = weights()
    for a, b in zip(again, parameters, strict=True):
        a.data.copy_(b.data)
    engine = deepspeed_on_cpu.engine(group)
    loaded = deepspeed_on_cpu.optimizer(again, engine, freeze_step=2)
    loaded.load_state_dict(state)
    kept = [_theirs(loaded, parameter)[3:] for parameter in again]
    after = [torch.cat(_copies(list(again)))]
    averages = engine.enable_backward_allreduce
    for step in range(6, 9):
        given(group, again, step, averaged=averages)
        loaded.step()
        after.append(torch.cat(_copies(list(again))))
    return errors, kept, after, averages


def masked(group: dist.ProcessGroup) -> Any:
    """DeepSpeed's weight and worker error, where its mask is 0, after 6 steps with gradients of 0 there."""
    weight = nn.Parameter(torch.zeros(64))
    mask = (torch.arange(64) >= 32).float()
    groups = [{"params": [weight], "exp_avg_mask": mask}]
    theirs = deepspeed_on_cpu.optimizer(groups, deepspeed_on_cpu.engine(group), freeze_step=2)
    for step in range(6):
        weight.grad = gradient(5, dist.get_rank(group), step, 64) * mask
        theirs.step()
    return weight.detach()[:32].clone(), theirs.state[weight]["worker_error"][:32].clone()


def messages(group: dist.ProcessGroup) -> Any:
    """Collectives of a compressed step, ours and theirs: operation and messages.

    The second one: in the first, ours looks once whether something has averaged the gradients.
    """
    reported = []
    for make in ("ours", "theirs"):
        parameters = weights()
        optimizer: Any
        if make == "ours":
            groups = [{"params": parameters, "compressed": True}]
            optimizer = OneBitAdam(groups, process_group=group, warmup_steps=2)
        else:
            optimizer = deepspeed_on_cpu.optimizer(parameters, deepspeed_on_cpu.engine(group), freeze_step=2)
        for step in range(4):
            given(group, parameters, step, averaged=True)
            counter = CollectiveCounter({group.group_name: "dp"})
            with counter:
                optimizer.step()
        reported.append(sorted((each.operation, each.messages) for each in counter.collectives()))
    return reported
