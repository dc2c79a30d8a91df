"""How often a step waits for a number that the device computes."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class SynchronisationCounter(TorchDispatchMode):
    """Counts how often a number leaves the device for Python (`.item()`), and copies from a GPU to the host.

    Attributes:
        count: since it was entered last.
    """

    # what a compiled region runs of operators with a random generator, such as fused attention that is computed again
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled under this mode."""
        return True

    def __enter__(self) -> SynchronisationCounter:
        self.count = 0
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func._opname if hasattr(func, "_opname") else ""
        if name == "_local_scalar_dense" or (
            name == "_to_copy" and args[0].device.type == "cuda" and result.device.type == "cpu"
        ):
            self.count += 1
        return result
