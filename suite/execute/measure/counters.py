"""Counts what happened: collectives as they are issued, flop as operators run, bytes from storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from suite.job.events import CountedCollective

# How PyTorch's c10d and functional operators are called here, and whether the payload is their input or output.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv_": None,
    "recv_any_source_": None,
    "barrier": None,
    "monitored_barrier_": None,
    "wait_tensor": None,
    "_wrap_tensor_autograd": None,
}
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class CollectiveCounter(TorchDispatchMode):
    """Counts calls and payload bytes of every collective, DistributedDataParallel's C++ reducer included.

    Payload is the input of all-reduce, reduce-scatter, all-to-all, broadcast and send, and the output of all-gather.

    Args:
        axis_of_group: process group name -> mesh axis.
    """

    # what a compiled region runs of operators with a random generator, such as fused attention that is computed again
    supports_higher_order_operators = True

    def __init__(self, axis_of_group: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._axis_of_group = axis_of_group
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled regions compiled; without this an active mode silently makes them run eagerly."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # otherwise collectives issued inside DTensor's own dispatch are lost
        if func.namespace in _NAMESPACES:
            self._count(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = func._opname
        if name not in _OPERATIONS and name.removesuffix("_") in _OPERATIONS:
            name = name.removesuffix("_")
        if name not in _OPERATIONS:
            raise RuntimeError(f"collective {func.namespace}.{func._opname} has no entry in the counter's table")
        operation = _OPERATIONS[name]
        if operation is None:
            return
        axis = self._axis(func, args, kwargs)
        payload, messages = self._counts.get((axis, operation), (0, 0))
        self._counts[axis, operation] = (payload + _payload_bytes(operation, args), messages + 1)

    def _axis(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        for argument, value in [*zip(func._schema.arguments, args, strict=False)]:
            if argument.name in ("process_group", "group_name"):
                group = value
                break
        else:
            group = kwargs.get("process_group", kwargs.get("group_name"))
        name = group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name
        if name not in self._axis_of_group:
            raise RuntimeError(f"a collective ran in group {name!r}, which is no mesh axis")
        return self._axis_of_group[name]

    def __enter__(self) -> CollectiveCounter:
        self._counts.clear()
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def collectives(self) -> list[CountedCollective]:
        """What was counted, sorted by axis and operation."""
        return [CountedCollective(*key, *self._counts[key]) for key in sorted(self._counts)]


def _payload_bytes(operation: str, args: tuple[Any, ...]) -> int:
    """Bytes of the counted side of one call; c10d operators of two sides name their output first."""
    tensors = [value for value in args if _tensors(value)]
    if len(tensors) > 1:
        side = tensors[0] if operation == "all_gather" else tensors[1]
        return sum(_bytes(tensor) for tensor in _tensors(side))
    own = sum(_bytes(tensor) for tensor in _tensors(tensors[0]))
    if operation == "all_gather":  # functional form: only the input is handed in
        sizes = [value for value in args if isinstance(value, int)]
        return own * sizes[0]
    return own


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _LocalFlopMode(_FlopCounterMode):
    """Leaves DTensor operators to DTensor, and sees the operators on local tensors that it makes of them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # otherwise they count at their global shape
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]  # as above


def _attention_flop(q_BHTK: Any, k_BHSK: Any, v_BHSK: Any, *_: Any, **_out: Any) -> int:
    """Both products of the forward pass, over the full square."""
    return int(sdpa_flop_count(q_BHTK, k_BHSK, v_BHSK))


def _attention_backward_flop(gradient_BHTK: Any, q_BHTK: Any, k_BHSK: Any, v_BHSK: Any, *_: Any, **_out: Any) -> int:
    """Five products: the scores once more, and the gradients of both factors of both products."""
    return int(sdpa_backward_flop_count(gradient_BHTK, q_BHTK, k_BHSK, v_BHSK))


def _attention_gradient_flop(_gradient_BHTK: Any, q_BHTK: Any, k_BHSK: Any, v_BHSK: Any, *_: Any, **_out: Any) -> int:
    """The same without the scores: what is computed again is no model flop."""
    return 2 * int(sdpa_flop_count(q_BHTK, k_BHSK, v_BHSK))


_aten = torch.ops.aten
# PyTorch's table has all of CUDA's and none of the CPU's
_ON_CPU = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flop,
}
_WITHOUT_SCORES = dict.fromkeys(
    (
        _aten._scaled_dot_product_flash_attention_for_cpu_backward,
        _aten._scaled_dot_product_flash_attention_backward,
        _aten._scaled_dot_product_efficient_attention_backward,
        _aten._scaled_dot_product_cudnn_attention_backward,
    ),
    _attention_gradient_flop,
)


class LocalFlopCounter(FlopCounterMode):
    """PyTorch's flop counter, silent, of what this rank computes: 2 M N K a product; element-wise operators are not
    counted. Of fused attention the full square counts, as of the unfused one, though a kernel skips what the mask
    hides.

    Args:
        recomputes: whether the scores count that a fused backward pass computes again.
    """

    def __init__(self, *, recomputes: bool = True) -> None:
        super().__init__(display=False, custom_mapping=_ON_CPU if recomputes else _ON_CPU | _WITHOUT_SCORES)

    def __enter__(self) -> LocalFlopCounter:
        self.flop_counts.clear()
        self.mod_tracker.__enter__()
        self.mode = _LocalFlopMode(self)
        self.mode.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self


def flop_counter(*, recomputes: bool = True) -> LocalFlopCounter:
    """A fresh counter of this rank's flop."""
    return LocalFlopCounter(recomputes=recomputes)


@contextmanager
def eagerly() -> Iterator[None]:
    """Compiled blocks run eagerly within: counters see operators, not compiled regions."""
    with torch.compiler.set_stance("force_eager"):
        yield


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each storage once, however many tensors look into it."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class KeptForBackward:
    """Collects what autograd keeps for the backward pass while `hooks()` is active.

    Args:
        weights: gives the tensors whose storages do not count, as they exist anyway; asked each time one is kept.
    """

    def __init__(self, weights: Callable[[], Iterable[Tensor]]) -> None:
        self._weights = weights
        self._kept: list[Tensor] = []  # references: an address must not be used again while we count

    def hooks(self) -> AbstractContextManager[object]:
        """Sees every tensor that is saved, recomputation's inputs included."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpacked)

    def _pack(self, tensor: Tensor) -> Tensor:
        local = _local(tensor.detach())
        storages = {_local(weight.detach()).untyped_storage().data_ptr() for weight in self._weights()}
        if local.untyped_storage().data_ptr() not in storages:
            self._kept.append(local)
        return tensor

    def bytes(self) -> int:
        """Bytes of the storages that were kept, each once, without the weights."""
        return storage_bytes(self._kept)


def _local(tensor: Tensor) -> Tensor:
    """The plain tensor behind a DTensor, and behind one whose collective may still run."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if isinstance(tensor, AsyncCollectiveTensor):
        waited: Tensor = tensor.trigger_wait()
        return waited
    return tensor


def _unpacked(tensor: Tensor) -> Tensor:
    return tensor
