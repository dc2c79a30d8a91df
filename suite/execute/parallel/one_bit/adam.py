"""Adam whose averaging over ranks takes one bit an element after a warm-up (1-bit Adam)."""

from __future__ import annotations

import inspect
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from suite.execute.parallel.one_bit.all_reduce import ErrorFeedback, compressed_all_reduce
from suite.execute.parallel.one_bit.buckets import (
    Bucket,
    average_exactly,
    division,
    flat,
    gradient_of,
    has_equal_gradients,
    local,
)
from suite.execute.parallel.one_bit.schedule import Renewal, Settled

STATE = "one_bit"  # key in the state dict
AVERAGED = (
    "all ranks have the same gradients after the warm-up, as DistributedDataParallel makes them when "
    "OneBitAdam.average_gradients_of(model) was not called: they are still averaged, and nothing is saved"
)
_exact_step = inspect.unwrap(torch.optim.Adam.step)  # without the hooks that this class's own step runs


class OneBitAdam(torch.optim.Adam):
    """1-bit Adam: exact Adam at first; then v stays, and the momentum is averaged in one bit an element.

    With g each rank's own gradient of a loss that is averaged over ranks, step t, learning rate l, and T warm-up steps:
        t <= T    torch.optim.AdamW on gradients that DistributedDataParallel has averaged
        t > T     m := compressed_all_reduce(beta1 m + (1 - beta1) g)
                  w := (1 - l weight_decay) w - l / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^T) + eps)
    For a parameter that had no gradient in the first steps, t and T count from its first one, as in torch.optim.AdamW.
    Elements whose v is 0 after the warm-up never had a gradient: one bit cannot say 0, so they stay as they are. With a
    renewal T is the last exact step. Before the first new one v is scaled by (1 - beta2^t) / (1 - beta2^T), so that
    exact Adam, which corrects by t, sees the same mean; errors stay what they are.
    Parameters that are not compressed go on with exact Adam, on gradients averaged in one fp32 all-reduce. Those that
    require no gradient at the end of the warm-up stay as they are.

    Use:
        model = DistributedDataParallel(network)
        optimizer = OneBitAdam(parameter_groups(network), lr=1e-3, warmup_steps=2000)
        optimizer.average_gradients_of(model)

    Gradients accumulate under `no_sync()`. Clip by torch.nn.utils.clip_grad_norm_: after the warm-up each rank clips
    its own gradient. torch.amp.GradScaler and ShardedGradScaler work. If a gradient of any rank is not finite, all
    ranks skip the step: see `skipped`.

    State per element: 8 bytes of moments, 4 of worker error, 4 / p of server error; in a step another 12 in passing.

    Args:
        params: parameters, named ones (`module.named_parameters()`), or groups of either. A group's "compressed": False
            averages it exactly, as an embedding needs (see `parameter_groups`); True compresses vectors too; None, the
            default, compresses tensors of two dims or more, so that biases and norms are exact. Named parameters of one
            layer ("blocks.3.mlp.weight", "blocks.3.attention.weight": equal up to the first number) share one vector
            and its scale; each other one has its own.
        warmup_steps: of exact Adam, or the rule that ends them. 15 to 25 % of all steps in the paper.
        renewal: of the second moment later; None: never, as in the paper.
        decoupled_weight_decay: False: the decay is added to the gradient, as in torch.optim.Adam.
        process_group: the data-parallel ranks; None: all.
        fused: of exact Adam, as in torch.optim.Adam.

    Raises:
        ValueError: a setting out of range, parameters that are complex or sharded over `process_group` (ZeRO-3, FSDP:
            a rank needs the whole momentum), or different ones on other ranks.

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
        self.steps = 0  # without skipped ones
        self.warm_up: int | None = None  # its steps, once it is over
        self.frozen_at: int | None = None  # T: the last exact step, once the warm-up is over
        self.skipped = False  # whether the last step was
        self._own_gradients = False  # whether each rank is known to keep its own after the warm-up
        self._feedback: list[ErrorFeedback] = []
        self._norms: deque[float] = deque()
        self._divide()
        self._check_agreement()

    @property
    def error_tensors(self) -> list[Tensor]:
        """The errors so far, of every vector and of the part of it that this rank serves."""
        return [tensor for each in self._feedback for tensor in (each.worker, each.server)]

    @property
    def compresses(self) -> bool:
        """Whether the next step is compressed."""
        if self.warm_up is None:
            return False
        beta2 = self.param_groups[0]["betas"][1]
        return self.renewal is None or not self.renewal.is_exact(self.steps + 1, warm_up=self.warm_up, beta2=beta2)

    def average_gradients_of(self, model: DistributedDataParallel) -> None:
        """Have `model` average its gradients in exact steps alone.

        Raises:
            ValueError: its process group has other ranks.
        """
        theirs, ours = (dist.get_process_group_ranks(owner.process_group) for owner in (model, self))
        if theirs != ours:
            raise ValueError(f"process group of the model: allowed the optimizer's, ranks {ours}, got {theirs}")
        self._own_gradients = True
        model.register_comm_hook(self, lambda optimizer, bucket: _average(optimizer, bucket))  # no annotations allowed

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
        # attributes that GradScaler sets for the call, and that Adam would pass to its kernels
        names = {"grad_scale", "found_inf"} & self.__dict__.keys()
        scaler = {name: self.__dict__.pop(name) for name in names}
        try:
            if (scale := scaler.get("grad_scale")) is not None:
                for gradient in self._gradients():
                    gradient.mul_(scale.to(gradient.device).double().reciprocal().float())
            self.skipped = not (self._compressed_step() if self.compresses else self._averaged_step())
        finally:
            self.__dict__.update(scaler)
        return loss

    def _gradients(self) -> list[Tensor]:
        return [local(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]

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
            self._divide()
            self._feedback = [self._fresh_feedback(bucket) for bucket in self._buckets]
        return True

    def _is_warm(self) -> bool:
        rule = self.warmup_steps
        if isinstance(rule, int):
            return self.steps >= rule
        window = rule.window or round(1 / (1 - self.param_groups[0]["betas"][1]))
        moments = [local(self.state[p]["exp_avg_sq"]) for b in self._buckets for p in b.parameters if self.state[p]]
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

    def _fresh_feedback(self, bucket: Bucket) -> ErrorFeedback:
        first = local(bucket.parameters[0])
        feedback = ErrorFeedback.zeros(bucket.elements, group=self.process_group, device=first.device)
        feedback.active = self._active(bucket)
        return feedback

    def _active(self, bucket: Bucket) -> Tensor | None:
        """The elements that ever had a gradient; None: all."""
        active = flat([local(self._state_of(p)["exp_avg_sq"]) for p in bucket.parameters]) != 0
        return None if bool(active.all()) else active

    def _catch_up(self, compressed: int) -> None:
        """Scale second moments as if the last, `compressed` steps had updated them too."""
        for bucket in self._buckets:
            beta2 = self.param_groups[bucket.group]["betas"][1]
            for state in map(self._state_of, bucket.parameters):
                if (updates := int(state["step"]) - compressed) > 0:
                    state["exp_avg_sq"].mul_((1 - beta2 ** int(state["step"])) / (1 - beta2**updates))

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
            self._own_gradients = True
            if has_equal_gradients([p for bucket in self._buckets for p in bucket.parameters], self.process_group):
                warnings.warn(AVERAGED, stacklevel=5)  # who called `step`, which PyTorch wraps twice
        if not average_exactly(self._exact, self.process_group):
            return False
        momenta = [self._momentum(bucket) for bucket in self._buckets]
        if not compressed_all_reduce(momenta, self._feedback, group=self.process_group):
            return False
        self.steps += 1
        for bucket, momentum in zip(self._buckets, momenta, strict=True):
            self._update(bucket, momentum)
        compressed = {parameter: parameter.grad for bucket in self._buckets for parameter in bucket.parameters}
        for parameter in compressed:
            parameter.grad = None
        _exact_step(self)  # of all others
        for parameter, gradient in compressed.items():
            parameter.grad = gradient
        return True

    def _refuse_thawed(self) -> None:
        if self.warm_up is not None and any(parameter.grad is not None for parameter in self._frozen):
            raise ValueError("parameters: allowed frozen as at the end of the warm-up, got gradients of others")

    def _momentum(self, bucket: Bucket) -> Tensor:
        """The momentum of this rank's own gradient: flat, fp32, new."""
        group = self.param_groups[bucket.group]
        gradient = flat([gradient_of(parameter) for parameter in bucket.parameters])
        if group["weight_decay"] and not group["decoupled_weight_decay"]:
            gradient.add_(flat([local(p) for p in bucket.parameters]), alpha=group["weight_decay"])
        momentum = flat([local(self._state_of(p)["exp_avg"]) for p in bucket.parameters])
        return momentum.lerp_(gradient, 1 - group["betas"][0])

    def _update(self, bucket: Bucket, momentum: Tensor) -> None:
        """Write the averaged momentum and update the weights with the frozen second moment."""
        group = self.param_groups[bucket.group]
        parameters = [local(parameter.detach()) for parameter in bucket.parameters]
        states = [self._state_of(parameter) for parameter in bucket.parameters]
        moments = [local(state["exp_avg"]) for state in states]
        parts = momentum.split([p.numel() for p in parameters])
        torch._foreach_copy_(moments, [part.view_as(p) for part, p in zip(parts, parameters, strict=True)])
        for state in states:
            state["step"] += 1
        rate, (beta1, beta2) = float(group["lr"]), group["betas"]
        assert self.frozen_at is not None
        steps = [int(state["step"]) for state in states]
        warm = [each - (self.steps - self.frozen_at) for each in steps]
        scale = torch._foreach_sqrt([local(state["exp_avg_sq"]) for state in states])
        # v of a parameter that never had a gradient is 0, and its m too
        torch._foreach_div_(scale, [math.sqrt(1 - beta2**each) if each else 1.0 for each in warm])
        torch._foreach_add_(scale, group["eps"])
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(parameters, moments, scale, [-rate / (1 - beta1**each) for each in steps])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of any optimizer; a group may say whether it is "compressed".

        Raises:
            ValueError: after the first step.
        """
        param_group.setdefault("compressed", None)
        if getattr(self, "steps", 0):
            raise ValueError("add_param_group: allowed before the first step")
        super().add_param_group(param_group)
        if hasattr(self, "_buckets"):
            self._divide()

    def _divide(self) -> None:
        self._buckets, self._exact, self._frozen = division(self.param_groups, self.process_group)

    def _check_agreement(self) -> None:
        ours = (self.warmup_steps, self.renewal, [bucket.elements for bucket in self._buckets], len(self._exact))
        everyone: list[Any] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(everyone, ours, group=self.process_group)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise ValueError(f"warm-up and parameters: allowed the same on all ranks, got others on rank {rank}")

    def state_dict(self) -> dict[str, Any]:
        """This rank's state with its errors, to continue bit for bit: each rank saves its own.

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
        """The state for any number of ranks, the same on all: every rank must call it, one of them may save it.

        The outstanding correction of each element becomes every rank's worker error, so the sum of what will be sent
        stays. Server errors start at 0.
        """
        whole = [each.outstanding(group=self.process_group) for each in self._feedback]
        state = self.state_dict()
        state[STATE] |= {"rank": None, "ranks": None, "worker_errors": whole, "server_errors": None}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`, of this rank among as many ranks, or a portable one.

        Raises:
            ValueError: the state of another rank, number of ranks or optimizer, or of other buckets.
        """
        if STATE not in state_dict:
            raise ValueError(f"state: allowed that of OneBitAdam, got none under {STATE!r}")
        saved = state_dict[STATE]
        rank, ranks = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        if saved["rank"] is not None and (saved["rank"], saved["ranks"]) != (rank, ranks):
            got = f"rank {saved['rank']} of {saved['ranks']}"
            raise ValueError(f"state: allowed rank {rank} of {ranks}, or portable_state_dict(), got {got}")
        ours, theirs = ([g.get("compressed") for g in of] for of in (self.param_groups, state_dict["param_groups"]))
        if theirs != ours:
            raise ValueError(f'"compressed" of the groups: allowed {ours}, got {theirs}')
        self._divide()
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
    return allreduce_hook(optimizer.process_group, bucket)  # type: ignore[arg-type]  # None: all ranks
