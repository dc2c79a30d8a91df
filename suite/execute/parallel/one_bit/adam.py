"""Adam whose averaging over ranks takes one bit an element after a warm-up (1-bit Adam)."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor, Shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from suite.execute.parallel.one_bit.all_reduce import ErrorFeedback, compressed_all_reduce
from suite.execute.parallel.one_bit.schedule import Renewal, Settled

STATE = "one_bit"  # key in the state dict
_exact_step = inspect.unwrap(torch.optim.Adam.step)  # without the hooks that this class's own step runs


@dataclass
class _Bucket:
    """Parameters that are averaged as one vector."""

    group: int  # the number of their parameter group
    parameters: list[Tensor] = field(default_factory=list)

    @property
    def elements(self) -> int:
        return sum(_local(parameter).numel() for parameter in self.parameters)


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Named parameters of `network` in two groups: compressed as usual, and tables that are averaged exactly.

    Tables are the weights of nn.Embedding, and all others of the same shape: a head over the same vocabulary. Rows of
    rare tokens have small second moments; with the same momentum for all of a vector they would run away.
    """
    tables = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    shapes = {table.shape for table in tables}
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    layers = [pair for pair in named if pair[1].shape not in shapes]
    others = [pair for pair in named if pair[1].shape in shapes]
    groups: list[dict[str, Any]] = [{"params": layers}, {"params": others, "compressed": False}]
    return [group for group in groups if group["params"]]


class OneBitAdam(torch.optim.Adam):
    """1-bit Adam: exact Adam at first; then v stays, and the momentum is averaged in one bit an element.

    With ranks that each have their own gradient g of a loss that is averaged over them, step t, learning rate l, T the
    number of warm-up steps:
        t <= T    torch.optim.AdamW on gradients that DistributedDataParallel has averaged
        t > T     m := compressed_all_reduce(beta1 m + (1 - beta1) g)
                  w := (1 - l weight_decay) w - l / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^T) + eps)
    For a parameter that had no gradient in the first steps, t and T count from its first one, as in torch.optim.AdamW.
    Elements whose v is 0 after the warm-up never had a gradient: one bit cannot say 0, and so they stay as they are.
    With a renewal T is the last exact step. v is scaled by (1 - beta2^t) / (1 - beta2^T) before the first new one, so
    that exact Adam, which corrects by t, sees the same mean; errors stay what they are.
    Parameters that are not compressed go on with exact Adam, on gradients averaged in one fp32 all-reduce. Those that
    require no gradient stay as they are; which ones, is settled when the warm-up ends.

    Three lines for an ordinary model:
        model = DistributedDataParallel(network)
        optimizer = OneBitAdam(parameter_groups(network), lr=1e-3, warmup_steps=2000)
        optimizer.average_gradients_of(model)

    Gradients accumulate over micro-batches under `no_sync()` as usual. Clip by torch.nn.utils.clip_grad_norm_: after
    the warm-up each rank clips its own gradient. torch.amp.GradScaler and ShardedGradScaler are understood. A step in
    which a gradient of any rank is not finite is left out on all ranks, `skipped` says so.

    State per element: 8 bytes of moments, 4 of worker error, 4 / p of server error; in a step another 12 in passing.

    Args:
        params: parameters, named ones (`module.named_parameters()`), or groups of either. A group's "compressed": False
            averages it exactly, as an embedding needs (see `parameter_groups`); True compresses vectors too; None, the
            default, compresses tensors of two dims or more, so that biases and norms are exact. Named parameters of one
            layer ("blocks.3.mlp.weight", "blocks.3.attention.weight": the same up to the first number) share one vector
            and its scale; each other is one.
        warmup_steps: of exact Adam, or the rule that ends them. 15 to 25 % of all steps in the paper.
        renewal: of the second moment later; None: never, as in the paper.
        decoupled_weight_decay: False: the decay is added to the gradient, as in torch.optim.Adam.
        process_group: the data-parallel ranks; None: all.
        fused: of exact Adam, as in torch.optim.Adam.

    Raises:
        ValueError: a setting out of range, parameters that are complex or sharded over `process_group` (ZeRO-3, FSDP:
            a rank needs the whole momentum), or ranks that were given different ones.

    Source: Tang et al. 2021, arXiv 2102.02888, algorithm 1. Differs from DeepSpeed 0.19.6's OnebitAdam: bias correction
    is applied; every step counts; errors are part of the state; two messages a step rather than four a tensor.
    """

    _step_supports_amp_scaling = True  # GradScaler hands on its scale and calls every step, on every rank

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warmup_steps: int | Settled,
        renewal: Renewal | None = None,
        decoupled_weight_decay: bool = True,
        process_group: dist.ProcessGroup | None = None,
        fused: bool | None = None,
    ) -> None:
        decoupled = decoupled_weight_decay
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay=decoupled, fused=fused)
        if isinstance(warmup_steps, int) and warmup_steps < 1:
            raise ValueError(f"warmup_steps: allowed 1 or more, got {warmup_steps}")
        if not isinstance(warmup_steps, int | Settled):
            raise ValueError(f"warmup_steps: allowed a whole number or Settled, got {warmup_steps}")
        self.process_group = process_group
        self.warmup_steps = warmup_steps
        self.renewal = renewal
        self.steps = 0  # that were made, left out ones not counted
        self.warm_up: int | None = None  # steps that it took, once it is over
        self.frozen_at: int | None = None  # T: the last exact step, once the warm-up is over
        self.skipped = False  # whether the last step was left out
        self._own_gradients = False  # whether each rank is known to keep its own behind the warm-up
        self._feedback: list[ErrorFeedback] = []
        self._norms: deque[float] = deque()
        self._exact: list[Tensor] = []
        self._frozen: list[Tensor] = []
        self._buckets = self._divided()
        self._check_agreement()

    @property
    def error_tensors(self) -> list[Tensor]:
        """What the bits have missed so far, of every vector and of the part of it that this rank serves."""
        return [tensor for each in self._feedback for tensor in (each.worker, each.server)]

    @property
    def compresses(self) -> bool:
        """Whether the next step is compressed: no gradient is averaged before it."""
        if self.warm_up is None:
            return False
        beta2 = self.param_groups[0]["betas"][1]
        return self.renewal is None or not self.renewal.is_exact(self.steps + 1, warm_up=self.warm_up, beta2=beta2)

    def average_gradients_of(self, model: DistributedDataParallel) -> None:
        """Have `model` average its gradients during the warm-up, and leave each rank its own afterwards.

        Raises:
            ValueError: its process group has other ranks.
        """
        theirs, ours = _ranks_of(model.process_group), _ranks_of(self.process_group)
        if theirs != ours:
            raise ValueError(f"process group of the model: allowed the optimizer's, ranks {ours}, got {theirs}")
        self._own_gradients = True
        model.register_comm_hook(self, lambda optimizer, bucket: _average(optimizer, bucket))  # it takes no annotations

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the parameters' `grad`; a missing one counts as 0 once the warm-up is over.

        Raises:
            ValueError: a parameter that required no gradient at the end of the warm-up has one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # attributes that GradScaler sets for the call, and that Adam would hand to its kernels
        theirs: dict[str, Any] = {
            name: self.__dict__.pop(name) for name in ("grad_scale", "found_inf") if name in self.__dict__
        }
        try:
            if theirs.get("grad_scale") is not None:
                self._unscale(theirs["grad_scale"])
            self.skipped = not (self._compressed_step() if self.compresses else self._averaged_step())
        finally:
            self.__dict__.update(theirs)
        return loss

    def _gradients(self) -> list[Tensor]:
        return [_local(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _unscale(self, grad_scale: Tensor) -> None:
        for gradient in self._gradients():
            gradient.mul_(grad_scale.to(gradient.device).double().reciprocal().float())

    def _averaged_step(self) -> bool:
        self._refuse_thawed()
        gradients = self._gradients()
        if gradients and not bool(torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).isfinite().all()):
            return False
        if self.frozen_at is not None and self.frozen_at < self.steps:
            self._catch_up(self.steps - self.frozen_at)
        _exact_step(self)
        self.steps += 1
        if self.warm_up is not None:
            self.frozen_at = self.steps
            if self.compresses:
                for bucket, feedback in zip(self._buckets, self._feedback, strict=True):
                    feedback.active = self._active(bucket)
        elif self._is_warm():
            self.warm_up = self.frozen_at = self.steps
            self._buckets = self._divided()
            self._feedback = [self._fresh_feedback(bucket) for bucket in self._buckets]
        return True

    def _is_warm(self) -> bool:
        rule = self.warmup_steps
        if isinstance(rule, int):
            return self.steps >= rule
        window = rule.window or round(1 / (1 - self.param_groups[0]["betas"][1]))
        moments = [_local(self.state[p]["exp_avg_sq"]) for b in self._buckets for p in b.parameters if self.state[p]]
        norm = torch.stack(torch._foreach_norm(moments, 1)).sum() if moments else torch.zeros(())
        self._norms.append(float(norm))
        if len(self._norms) <= window:
            return False
        earlier = self._norms.popleft()
        if self.steps < rule.at_least or self.steps % max(1, window // 10):
            return False
        settled = torch.tensor(float(earlier >= rule.share * self._norms[-1]), device=norm.device)
        dist.all_reduce(settled, dist.ReduceOp.MIN, group=self.process_group)
        return bool(settled)

    def _fresh_feedback(self, bucket: _Bucket) -> ErrorFeedback:
        first = _local(bucket.parameters[0])
        feedback = ErrorFeedback.zeros(bucket.elements, group=self.process_group, device=first.device)
        feedback.active = self._active(bucket)
        return feedback

    def _active(self, bucket: _Bucket) -> Tensor | None:
        """The elements that ever had a gradient; None: all."""
        active = self._second_moment(bucket) != 0
        return None if bool(active.all()) else active

    def _catch_up(self, compressed: int) -> None:
        """Scale second moments as if they had been updated in the last, `compressed` steps too."""
        for bucket in self._buckets:
            beta2 = self.param_groups[bucket.group]["betas"][1]
            for state in map(self._state_of, bucket.parameters):
                if (updates := int(state["step"]) - compressed) > 0:
                    state["exp_avg_sq"].mul_((1 - beta2 ** int(state["step"])) / (1 - beta2**updates))

    def _second_moment(self, bucket: _Bucket) -> Tensor:
        return _flat([_local(self._state_of(p)["exp_avg_sq"]) for p in bucket.parameters])

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        """Moments of a parameter; 0 where it never had a gradient."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    def _compressed_step(self) -> bool:
        self._refuse_thawed()
        if not self._own_gradients:
            self._warn_of_averaged_gradients()
            self._own_gradients = True
        if not self._average_exact():
            return False
        momenta = [self._momentum(bucket) for bucket in self._buckets]
        if not compressed_all_reduce(momenta, self._feedback, group=self.process_group):
            return False
        self.steps += 1
        for bucket, momentum in zip(self._buckets, momenta, strict=True):
            self._update(bucket, momentum)
        own = {parameter: parameter.grad for bucket in self._buckets for parameter in bucket.parameters}
        for parameter in own:
            parameter.grad = None
        _exact_step(self)  # of all others
        for parameter, gradient in own.items():
            parameter.grad = gradient
        return True

    def _refuse_thawed(self) -> None:
        if self.warm_up is not None and any(parameter.grad is not None for parameter in self._frozen):
            raise ValueError("parameters: allowed frozen as at the end of the warm-up, got gradients of others")

    def _warn_of_averaged_gradients(self) -> None:
        """Say so where the ranks' gradients are equal before the first compressed step: something has averaged them."""
        gradients = [_gradient(parameter) for bucket in self._buckets for parameter in bucket.parameters]
        if dist.get_world_size(self.process_group) == 1 or not gradients:
            return
        norm = torch.stack(torch._foreach_norm(gradients)).sum()
        extremes = torch.stack([norm, -norm])
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self.process_group)
        if float(extremes[0]) == -float(extremes[1]) != 0:
            warnings.warn(
                "all ranks have the same gradients after the warm-up, as DistributedDataParallel makes them when "
                "OneBitAdam.average_gradients_of(model) was not called: they are still averaged, and nothing is saved",
                stacklevel=3,
            )

    def _average_exact(self) -> bool:
        """Average the gradients that are not compressed; whether all of them are finite on all ranks."""
        if not self._exact:
            return True
        gradients = [_gradient(parameter) for parameter in self._exact]
        flat = _flat(gradients)
        ranks = dist.get_world_size(self.process_group)
        if ranks > 1:
            dist.all_reduce(flat.div_(ranks), group=self.process_group)
        if not bool(torch.linalg.vector_norm(flat).isfinite()):
            return False
        for parameter, mean in zip(self._exact, flat.split([g.numel() for g in gradients]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            _local(parameter.grad).copy_(mean.view_as(_local(parameter.grad)))
        return True

    def _momentum(self, bucket: _Bucket) -> Tensor:
        """This rank's own, of its own gradient: flat, fp32, new."""
        group = self.param_groups[bucket.group]
        gradient = _flat([_gradient(parameter) for parameter in bucket.parameters])
        if group["weight_decay"] and not group["decoupled_weight_decay"]:
            gradient.add_(_flat([_local(p) for p in bucket.parameters]), alpha=group["weight_decay"])
        momentum = _flat([_local(self._state_of(p)["exp_avg"]) for p in bucket.parameters])
        return momentum.lerp_(gradient, 1 - group["betas"][0])

    def _update(self, bucket: _Bucket, momentum: Tensor) -> None:
        """Write the averaged momentum and update the weights with the second moment as it was frozen."""
        group = self.param_groups[bucket.group]
        parameters = [_local(parameter.detach()) for parameter in bucket.parameters]
        states = [self._state_of(parameter) for parameter in bucket.parameters]
        moments = [_local(state["exp_avg"]) for state in states]
        parts = momentum.split([p.numel() for p in parameters])
        torch._foreach_copy_(moments, [part.view_as(p) for part, p in zip(parts, parameters, strict=True)])
        for state in states:
            state["step"] += 1
        rate, (beta1, beta2) = float(group["lr"]), group["betas"]
        assert self.frozen_at is not None
        steps = [int(state["step"]) for state in states]
        warm = [each - (self.steps - self.frozen_at) for each in steps]
        scale = torch._foreach_sqrt([_local(state["exp_avg_sq"]) for state in states])
        # v of a parameter that never had a gradient is 0, and its m too
        torch._foreach_div_(scale, [math.sqrt(1 - beta2**each) if each else 1.0 for each in warm])
        torch._foreach_add_(scale, group["eps"])
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(parameters, moments, scale, [-rate / (1 - beta1**each) for each in steps])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of any optimizer, before the first step; a group may say whether it is "compressed".

        Raises:
            ValueError: later: the buckets and their errors stand.
        """
        param_group.setdefault("compressed", None)
        if getattr(self, "steps", 0):
            raise ValueError("add_param_group: allowed before the first step")
        super().add_param_group(param_group)
        if hasattr(self, "_buckets"):
            self._buckets = self._divided()

    def _divided(self) -> list[_Bucket]:
        """The compressed parameters in buckets; the others go into `_exact`, or, frozen, into `_frozen`."""
        buckets: dict[tuple[int, str], _Bucket] = {}
        self._exact, self._frozen = [], []
        ranks = _ranks_of(self.process_group)
        for place, group in enumerate(self.param_groups):
            numbered = [f"parameter {number} of group {place}" for number, _ in enumerate(group["params"])]
            names = group.get("param_names") or numbered
            for name, parameter in zip(names, group["params"], strict=True):
                _refuse_sharded(name, parameter, ranks)
                if parameter.is_complex():
                    raise ValueError(f"{name}: allowed real numbers, got {parameter.dtype}")
                compressed = parameter.dim() >= 2 if group["compressed"] is None else group["compressed"]
                if not parameter.requires_grad:
                    self._frozen.append(parameter)
                elif not compressed:
                    self._exact.append(parameter)
                elif parameter.numel():
                    layer = re.match(r"(?:[^.]+\.)*?\d+\.", name)
                    key = (place, layer[0] if layer else name)
                    buckets.setdefault(key, _Bucket(place)).parameters.append(parameter)
        return list(buckets.values())

    def _check_agreement(self) -> None:
        ours = (self.warmup_steps, self.renewal, [bucket.elements for bucket in self._buckets], len(self._exact))
        everyone: list[Any] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(everyone, ours, group=self.process_group)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise ValueError(f"warm-up and parameters: allowed the same on all ranks, got others on rank {rank}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, its errors included: each rank saves its own, and goes on with it bit for bit.

        Only the errors differ between ranks. `portable_state_dict` is for another number of ranks.
        """
        state = super().state_dict()
        state[STATE] = {
            "rank": dist.get_rank(self.process_group),
            "ranks": dist.get_world_size(self.process_group),
            "steps": self.steps,
            "warm_up": self.warm_up,
            "frozen_at": self.frozen_at,
            "norms": list(self._norms),
            "worker_errors": [each.worker for each in self._feedback],
            "server_errors": [each.server for each in self._feedback],
        }
        return state

    def portable_state_dict(self) -> dict[str, Any]:
        """The state for any number of ranks, the same on all: every rank has to call it, one of them may save it.

        What is still to be corrected of each element, the mean of the worker errors plus its server error, becomes the
        worker error of every rank: the sum of what will be sent stays. Server errors start at 0.
        """
        ranks, rank = dist.get_world_size(self.process_group), dist.get_rank(self.process_group)
        whole = []
        for each in self._feedback:
            outstanding = each.worker / ranks
            part = each.server.numel()
            mine = outstanding[rank * part : (rank + 1) * part]
            mine += each.server[: mine.numel()]
            dist.all_reduce(outstanding, group=self.process_group)
            whole.append(outstanding)
        state = self.state_dict()
        state[STATE] |= {"rank": None, "ranks": None, "worker_errors": whole, "server_errors": None}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`, of this rank among as many ranks, or a portable one.

        Raises:
            ValueError: the state of another rank, number of ranks or optimizer, or of other buckets.
        """
        if STATE not in state_dict:
            raise ValueError(f"state: allowed that of OneBitAdam, got none under {STATE!r}")
        saved = state_dict[STATE]
        place = (dist.get_rank(self.process_group), dist.get_world_size(self.process_group))
        if saved["rank"] is not None and (saved["rank"], saved["ranks"]) != place:
            got = f"rank {saved['rank']} of {saved['ranks']}"
            raise ValueError(f"state: allowed rank {place[0]} of {place[1]}, or portable_state_dict(), got {got}")
        ours, theirs = (
            [each.get("compressed") for each in of] for of in (self.param_groups, state_dict["param_groups"])
        )
        if theirs != ours:
            raise ValueError(f'"compressed" of the groups: allowed {ours}, got {theirs}')
        self._buckets = self._divided()
        sizes = [bucket.elements for bucket in self._buckets]
        errors = saved["worker_errors"]
        if saved["frozen_at"] is not None and [error.numel() for error in errors] != sizes:
            raise ValueError(f"errors: allowed {sizes} elements, got {[error.numel() for error in errors]}")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != STATE})
        self.steps, self.warm_up, self.frozen_at = saved["steps"], saved["warm_up"], saved["frozen_at"]
        self._norms = deque(saved["norms"])
        self._feedback = []
        if self.frozen_at is None:
            return
        for number, bucket in enumerate(self._buckets):
            feedback = self._fresh_feedback(bucket)
            feedback.worker.copy_(errors[number])
            if saved["server_errors"] is not None:
                feedback.server.copy_(saved["server_errors"][number])
            self._feedback.append(feedback)


def _average(optimizer: OneBitAdam, bucket: Any) -> Future[Tensor]:
    """DistributedDataParallel's communication hook."""
    if optimizer.compresses:
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done
    return allreduce_hook(_group(optimizer.process_group), bucket)


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    whole = group or dist.group.WORLD
    assert whole is not None, "the process group is initialised"
    return whole


def _ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    return dist.get_process_group_ranks(_group(group))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(_local(parameter)) if parameter.grad is None else _local(parameter.grad)


def _flat(tensors: list[Tensor]) -> Tensor:
    """One after the other, in fp32; a copy."""
    return torch.cat([tensor.reshape(-1).float() for tensor in tensors])


def _refuse_sharded(name: str, parameter: Tensor, ranks: list[int]) -> None:
    if not isinstance(parameter, DTensor):
        return
    mesh = parameter.device_mesh
    for dim, placement in enumerate(parameter.placements):
        over = dist.get_process_group_ranks(mesh.get_group(dim))
        if isinstance(placement, Shard) and len(set(over) & set(ranks)) > 1:
            raise ValueError(f"{name}: allowed whole on each data-parallel rank, got sharded over ranks {over}")
