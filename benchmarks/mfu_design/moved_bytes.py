"""Bytes that kernels of a step move, apart from matrix products and attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._pytree import tree_leaves

from suite.execute.measure.counters import ObservingMode

# products and attention are counted by their flop, the others move nothing
_LEFT_OUT = ("mm", "addmm", "bmm", "baddbmm", "empty", "empty_like", "empty_strided", "new_empty", "record_stream")
_ATTENTION = "_scaled_dot_product"


class MovedBytes(ObservingMode):
    """Adds up what operators read (arguments) and write (results, and arguments in place), each tensor once a call.

    A kernel of its own moves that at least; those of reductions and softmax may read twice. Operators inside of
    compiled regions are counted by the compiler's own estimate (see `compiled_bytes`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._opname
        if name not in _LEFT_OUT and not name.startswith(_ATTENTION) and not _is_view(func):
            self.bytes += _bytes(args) + _bytes(kwargs) + _bytes(result) * (not _writes(func)) + _written(func, args)
        return result


def _is_view(func: Any) -> bool:
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _writes(func: Any) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments)


def _written(func: Any, args: tuple[Any, ...]) -> int:
    pairs = zip(func._schema.arguments, args, strict=False)
    return sum(_bytes(value) for argument, value in pairs if argument.alias_info and argument.alias_info.is_write)


def _bytes(values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.device.type == "cuda")


@contextmanager
def compiled_bytes() -> Iterator[list[float]]:
    """Within this, bytes of every launch of a compiled kernel, as Inductor estimates them, are appended.

    Kernels must have been compiled with `torch._inductor.config.benchmark_kernel`, which keeps the estimates.
    """
    launched: list[float] = []
    kernels: Any = CachingAutotuner
    run = kernels.run

    def noting(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(1e9 * kernel.inductor_meta["kernel_num_gb"])
        return run(kernel, *args, **kwargs)

    kernels.run = noting
    try:
        yield launched
    finally:
        kernels.run = run


def step_bytes(step: Any) -> tuple[int, int]:
    """Bytes that compiled kernels, and that PyTorch's own kernels, move while `step` is called."""
    mode: Any = MovedBytes()
    with compiled_bytes() as launched, mode:
        step()
    torch.cuda.synchronize()
    return round(sum(launched)), int(mode.bytes)
