"""How often a step waits for a number that the device computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from suite.execute.measure.phases import Part, Phases


class SynchronisationCounter(TorchDispatchMode):
    """Counts how often Python reads numbers of the training device: `.item()`, `.tolist()`, and copies to the host.

    What lies on the host beside any device is not counted. On a CPU, where every tensor is on the training device, that
    is what is read while batches are made, and the optimizers' step counters, which PyTorch keeps on the host for every
    device. Copies that the host does not wait for (non_blocking) are not counted either.

    Args:
        device: that trains.
        phases: of the step, which tell when batches are made.

    Attributes:
        count: since it was entered last.
    """

    # what a compiled region runs of operators with a random generator, such as fused attention that is computed again
    supports_higher_order_operators = True

    def __init__(self, device: torch.device, phases: Phases | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0
        self._device = device.type
        self._phases = phases
        self._optimizers: list[Optimizer] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled under this mode."""
        return True

    def __enter__(self) -> SynchronisationCounter:
        self.count = 0
        self._optimizers.clear()
        self._hook = register_optimizer_step_pre_hook(self._on_update)
        self._tolist = Tensor.tolist

        def tolist(tensor: Tensor) -> Any:
            # of a GPU's tensor it is a copy to the host, which is dispatched; of a CPU's it is no operator
            if tensor.device.type == "cpu":
                self._read(tensor)
            return self._tolist(tensor)

        Tensor.tolist = tolist  # type: ignore[method-assign, assignment]  # for as long as this counts
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        Tensor.tolist = self._tolist  # type: ignore[method-assign]
        self._hook.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        given = kwargs or {}
        name = func._opname if hasattr(func, "_opname") else ""
        if name == "_local_scalar_dense":
            self._read(args[0])
        result = func(*args, **given)
        if name in ("_to_copy", "copy_") and self._device != "cpu" and result.device.type == "cpu":
            source = args[0] if name == "_to_copy" else args[1]
            if not (given.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])):
                self._read(source)
        return result

    def _read(self, tensor: Tensor) -> None:
        if tensor.device.type != self._device:
            return
        if self._device == "cpu" and (self._makes_batches() or self._counts_steps(tensor)):
            return
        self.count += 1

    def _on_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizers.append(optimizer)

    def _makes_batches(self) -> bool:
        return self._phases is not None and self._phases.now is Part.DATA_LOADING

    def _counts_steps(self, tensor: Tensor) -> bool:
        states = (state for optimizer in self._optimizers for state in optimizer.state.values())
        return any(state.get("step") is tensor for state in states)
