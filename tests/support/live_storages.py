"""Bytes of tensors that live while operators run, by a dispatch mode that sees each new storage."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter


class LiveStorages(TorchDispatchMode):
    """Counts storages from the operator that makes them, or from `see`, until they are freed or emptied.

    Args:
        own: tensors whose storages do not count.
    """

    def __init__(self, own: tuple[torch.Tensor, ...] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._own = {tensor.untyped_storage()._cdata for tensor in own}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.most = 0

    @property
    def bytes(self) -> int:
        """Bytes that live now."""
        storages = [reference() for reference in self._alive.values()]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def see(self, result: object) -> None:
        """Count the storages of a result from now on."""
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self._own:
                key = storage._cdata
                if key not in self._alive or self._alive[key]() is None:
                    self._alive[key] = weakref.ref(storage)
        self.most = max(self.most, self.bytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result

    def one_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a compiler fuses it: nothing between its arguments and its result lives."""

        @wraps(function)
        def fused(*args: Any) -> Any:
            with _disable_current_modes():
                result = function(*args)
            self.see(result)
            return result

        return fused
