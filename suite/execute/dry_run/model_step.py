"""A step of any PyTorch model, executed without its memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.rank import GATHERED, complete_reductions
from suite.execute.measure.counters import storage_bytes, stored
from suite.job.operators import TracePhase

WEIGHTS, GRADIENTS, STATE = "weights", "gradients", "optimizer state"
CATEGORIES = {
    TracePhase.FORWARD: "forward pass",
    TracePhase.BACKWARD: "backward pass",
    TracePhase.RECOMPUTATION: "computed again",
    TracePhase.UPDATE: "update",
}


class StepClock:
    """The part of a step that runs now.

    Attributes:
        part: None before the first step.
    """

    def __init__(self) -> None:
        self.part: TracePhase | None = None

    def phase(self) -> TracePhase:
        """The part, or recomputation within a backward pass."""
        if self.part is TracePhase.BACKWARD and torch._C._current_graph_task_id() >= 0 and torch.is_grad_enabled():
            return TracePhase.RECOMPUTATION
        return self.part or TracePhase.FORWARD

    def category(self) -> str:
        """Purpose of what is allocated now, until something else is known of it."""
        return WEIGHTS if self.part is None else CATEGORIES[self.phase()]


class ModelStep:
    """A model and its optimizers, within `fake_tensors`.

    Args:
        forward: the loss of the micro-batch with this number.
        optimizers: of its parameters, each of one optimizer.

    Attributes:
        gradient_bytes: of the gradients before the last update.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[int], Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        allocations: Allocations,
        clock: StepClock,
        micro_batches: int = 1,
    ) -> None:
        self._model = model
        self._forward = forward
        self._optimizers = optimizers
        self._allocations = allocations
        self._clock = clock
        self._micro_batches = micro_batches
        self.gradient_bytes = 0
        self._replicas = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        for replica in self._replicas:
            complete_reductions([replica], replica.process_group)

    def prepare(self) -> None:
        """Make what a first step makes: the optimizers' state, and what sharding arranges in its first passes."""
        parameters = [each for each in self._model.parameters() if each.requires_grad]
        self._name(WEIGHTS, lambda parameter: [parameter])
        if self._replicas or any(isinstance(each, FSDPModule) for each in self._model.modules()):
            last = self._micro_batches - 1
            self.run(first=last)
            if self._replicas:
                self.run(first=last)  # which begins with new buckets
        else:
            self._clock.part = TracePhase.UPDATE
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            self._update()
        self._allocations.name_emptied(GATHERED)
        state = {id(parameter): values for each in self._optimizers for parameter, values in each.state.items()}
        self._name(STATE, lambda parameter: tree_leaves(state.get(id(parameter))))

    def run(self, *, first: int = 0) -> None:
        """Execute micro-batches, from the one with number `first` on, and the update."""
        for number in range(first, self._micro_batches):
            self._clock.part = TracePhase.FORWARD
            loss = self._forward(number)
            self._clock.part = TracePhase.BACKWARD
            loss.backward()
            self._name(GRADIENTS, lambda parameter: [parameter.grad])
            self._name_unsharded()
        self.gradient_bytes = storage_bytes(stored(p.grad) for p in self._model.parameters() if p.grad is not None)
        self._update()

    def measure(self, *modes: AbstractContextManager[object]) -> None:
        """Execute a step under `modes`, whose allocations are recorded."""
        gc.collect()
        self._allocations.record()
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            self.run()

    def _update(self) -> None:
        self._clock.part = TracePhase.UPDATE
        for optimizer in self._optimizers:
            optimizer.step()
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def _name_unsharded(self) -> None:
        """Gradients that FSDP2 has not reduced yet are gradients too."""
        for module in self._model.modules():
            group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for each in group.fsdp_params if group else ():
                unsharded = getattr(each, "_unsharded_param", None)
                whole = [each.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad]
                owner = (each._param_fqn or "").rpartition(".")[0]
                self._allocations.name(GRADIENTS, (grad for grad in whole if grad is not None), owner=owner)

    def _name(self, category: str, tensors: Callable[[nn.Parameter], Sequence[object]]) -> None:
        for name, parameter in self._model.named_parameters():
            found = (stored(each) for each in tensors(parameter) if isinstance(each, Tensor))
            self._allocations.name(category, found, owner=name.rpartition(".")[0])
