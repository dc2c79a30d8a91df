"""Counts collectives as they are issued, reads of the device, flop as operators run, and bytes of storages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import (
    FlopCounterMode,
    _FlopCounterMode,
    mm_flop,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from suite.execute.measure.phases import Part, Phases
from suite.job.events import CountedCollective

# PyTorch's c10d and functional operators -> the collective; None for those without a payload of their own
_OPERATIONS = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced", "all_reduce_coalesced"), "all_reduce"),
    **dict.fromkeys(("allgather", "_allgather_base", "allgather_coalesced", "all_gather_into_tensor"), "all_gather"),
    **dict.fromkeys(("allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced"), "all_gather"),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor"), "reduce_scatter"),
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), "all_to_all"),
    "send": "send",
    **dict.fromkeys(("recv_", "recv_any_source_", "barrier", "monitored_barrier_"), None),
    **dict.fromkeys(("wait_tensor", "_wrap_tensor_autograd"), None),
}
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class ObservingMode(TorchDispatchMode):
    """A dispatch mode that leaves compiled regions compiled."""

    # compiled regions run operators with a random generator, such as recomputed fused attention, as higher-order ones
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this an active mode silently makes compiled regions run eagerly."""
        return True


class CollectiveCounter(ObservingMode):
    """Counts calls and payload bytes of every collective, DistributedDataParallel's C++ reducer included.

    Payload is the input of all-reduce, reduce-scatter, all-to-all, broadcast and send, and the output of all-gather.

    Args:
        axis_of_group: process group name -> mesh axis.
    """

    def __init__(self, axis_of_group: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._axis_of_group = axis_of_group
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # otherwise collectives issued inside DTensor's own dispatch are lost
        self.observe(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def observe(self, func: Any, args: Any, kwargs: Any, _returned: object = None) -> None:
        """Count an operator, if it is a collective."""
        if func.namespace in _NAMESPACES:
            self._count(func, args, kwargs)

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = func._opname if func._opname in _OPERATIONS else func._opname.removesuffix("_")
        if name not in _OPERATIONS:
            raise RuntimeError(f"collective {func.namespace}.{func._opname} has no entry in the counter's table")
        operation = _OPERATIONS[name]
        if operation is None:
            return
        axis = self._axis(func, args, kwargs)
        payload, messages = self._counts.get((axis, operation), (0, 0))
        self._counts[axis, operation] = (payload + _payload_bytes(operation, args), messages + 1)

    def _axis(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        arguments = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        group: Any = arguments.get("process_group", arguments.get("group_name"))
        name = group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name
        if name not in self._axis_of_group:
            raise RuntimeError(f"a collective ran in group {name!r}, which is no mesh axis")
        return self._axis_of_group[name]

    def __enter__(self) -> CollectiveCounter:
        self._counts.clear()
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def collectives(self) -> list[CountedCollective]:
        """Counted collectives, sorted by axis and operation."""
        return [CountedCollective(*key, *self._counts[key]) for key in sorted(self._counts)]


def _payload_bytes(operation: str, args: tuple[Any, ...]) -> int:
    """Bytes of the payload of one call. c10d operators have their output before their input."""
    sides = [tensors for value in args if (tensors := _tensors(value))]
    side = sides[0] if len(sides) == 1 or operation == "all_gather" else sides[1]
    size = sum(tensor.nbytes for tensor in side)
    if operation == "all_gather" and len(sides) == 1:  # functional form: the input, and the number of ranks
        return size * next(value for value in args if isinstance(value, int))
    return size


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class SynchronisationCounter(ObservingMode):
    """Counts how often Python reads numbers of the training device: `.item()`, `.tolist()`, and copies to the host.

    Tensors that are on the host for every device do not count. On a CPU these are reads while batches are made, and the
    optimizers' step counters. Copies that the host does not wait for (non_blocking) do not count either.

    Args:
        device: that trains.
        phases: of the step: they say when batches are made.

    Attributes:
        count: since it was entered last.
    """

    def __init__(self, device: torch.device, phases: Phases | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0
        self._device = device.type
        self._phases = phases
        self._optimizers: list[Optimizer] = []

    def __enter__(self) -> SynchronisationCounter:
        self.count = 0
        self._optimizers.clear()
        self._hook = register_optimizer_step_pre_hook(self._on_update)
        self._tolist = Tensor.tolist

        def tolist(tensor: Tensor) -> Any:
            # dispatched, as a copy to the host, for a GPU's tensors alone
            if tensor.device.type == "cpu":
                self._read(tensor)
            return self._tolist(tensor)

        Tensor.tolist = tolist  # type: ignore[method-assign, assignment]  # for as long as this counts
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        Tensor.tolist = self._tolist  # type: ignore[method-assign]  # as it was
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
        makes_batches = self._phases is not None and self._phases.now is Part.DATA_LOADING
        excluded = self._device == "cpu" and (makes_batches or self._counts_steps(tensor))
        if tensor.device.type == self._device and not excluded:
            self.count += 1

    def _on_update(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizers.append(optimizer)

    def _counts_steps(self, tensor: Tensor) -> bool:
        states = (state for optimizer in self._optimizers for state in optimizer.state.values())
        return any(state.get("step") is tensor for state in states)


class _LocalFlopMode(_FlopCounterMode):
    """Counts the operators on local tensors that DTensor makes of its own."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # otherwise they count at their global shape
        return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]  # as above


def _attention_flop(q_BHTK: Any, k_BGSK: Any, v_BGSK: Any, *_: Any, **_out: Any) -> int:
    """Both products of the forward pass, over the full square."""
    return int(sdpa_flop_count(q_BHTK, _of_all_heads(k_BGSK, q_BHTK), _of_all_heads(v_BGSK, q_BHTK)))


def _attention_backward_flop(gradient_BHTK: Any, q_BHTK: Any, k_BGSK: Any, v_BGSK: Any, *_: Any, **_out: Any) -> int:
    """Five products: the scores once more, and the gradients of both factors of both products."""
    k_BHSK, v_BHSK = _of_all_heads(k_BGSK, q_BHTK), _of_all_heads(v_BGSK, q_BHTK)
    return int(sdpa_backward_flop_count(gradient_BHTK, q_BHTK, k_BHSK, v_BHSK))


def _attention_gradient_flop(_gradient_BHTK: Any, q_BHTK: Any, k_BGSK: Any, v_BGSK: Any, *_: Any, **_out: Any) -> int:
    """The same without the scores: recomputation is no model flop."""
    return 2 * _attention_flop(q_BHTK, k_BGSK, v_BGSK)


def _of_all_heads(x_BGSK: Sequence[int], q_BHTK: Sequence[int]) -> tuple[int, ...]:
    """The shape of keys or values with those of each query: PyTorch's own count knows no groups before torch 2.13."""
    return (x_BGSK[0], q_BHTK[1], *x_BGSK[2:])


def _product_flop(_added_MN: Any, a_MK: Any, b_KN: Any, *_: Any, **_out: Any) -> int:
    """Flop of a product that is added to a matrix. PyTorch's own takes a result's dtype for its shape (torch 2.13)."""
    return int(mm_flop(a_MK, b_KN))


def _grouped_flop(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Flop of rows [R, K] by their group's matrix of [E, K, M], or of [M, R] by [R, K] for each group of rows.

    2 R K M either way: every row belongs to one group.
    """
    return 2 * math.prod(a) * b[-1]


_aten = torch.ops.aten
_FORWARD = (
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
    _aten._scaled_dot_product_cudnn_attention,
)
_BACKWARD = (
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
    _aten._scaled_dot_product_cudnn_attention_backward,
)
# PyTorch's table has no attention of the CPU, and no grouped products
_OWN = {
    _aten.addmm: _product_flop,
    _aten._grouped_mm: _grouped_flop,
    **dict.fromkeys(_FORWARD, _attention_flop),
    **dict.fromkeys(_BACKWARD, _attention_backward_flop),
}
_WITHOUT_SCORES = dict.fromkeys(_BACKWARD, _attention_gradient_flop)


def counts_as_attention_backward(operator: Any) -> None:
    """Count the flop of an operator as those of attention's backward pass, whose first arguments it has."""
    _OWN[operator] = _attention_backward_flop
    _WITHOUT_SCORES[operator] = _attention_gradient_flop


class LocalFlopCounter(FlopCounterMode):
    """PyTorch's flop counter, silent, of this rank's products: 2 M N K each. Element-wise operators do not count.

    Of fused attention the full square counts, though a kernel skips what the mask hides. Modules are not told apart:
    PyTorch's module tracker hangs a hook on inputs and outputs of every module, and its hooks keep all that checkpoints
    recompute until the counter ends (22 GiB a micro-batch of bloom-mini's GPU size).

    Args:
        recomputes: whether the scores count that a fused backward pass computes again.
    """

    def __init__(self, *, recomputes: bool = True) -> None:
        super().__init__(display=False, custom_mapping=_OWN if recomputes else _OWN | _WITHOUT_SCORES)

    def __enter__(self) -> LocalFlopCounter:
        self.flop_counts.clear()
        self._within = ExitStack()
        self._within.enter_context(shapes_unseen())
        self.mode = self._within.enter_context(_LocalFlopMode(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._within.close()
        self.mode = None


@contextmanager
def shapes_unseen() -> Iterator[None]:
    """Within this no mode sees DTensor run an operator on new shapes, to know its result's: nothing is computed."""
    propagate: Any = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(propagator: ShardingPropagator, schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(propagator, schema)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


_EAGER = ContextVar("eager", default=False)


@contextmanager
def eagerly() -> Iterator[None]:
    """Within this, compiled blocks run eagerly: counters see operators, not compiled regions."""
    token = _EAGER.set(True)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _EAGER.reset(token)


def runs_eagerly() -> bool:
    """Whether `eagerly` is active."""
    return _EAGER.get()


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of `tensors`, each storage once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def stored(tensor: Tensor) -> Tensor:
    """The plain tensor with this rank's part of `tensor`, which no operator makes: there are thousands."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class KeptForBackward:
    """Collects what autograd keeps for the backward pass while `hooks()` is active.

    Args:
        weights: returns the tensors whose storages do not count; called each time a tensor is kept.
    """

    def __init__(self, weights: Callable[[], Iterable[Tensor]]) -> None:
        self._weights = weights
        self._kept: list[Tensor] = []  # references, so that no address is used again

    def hooks(self) -> AbstractContextManager[object]:
        """Hooks that see every saved tensor, inputs of recomputation included."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        local = _local(tensor.detach())
        storages = {stored(weight).untyped_storage()._cdata for weight in self._weights()}
        if local.untyped_storage()._cdata not in storages:
            self._kept.append(local)
        return tensor

    def bytes(self) -> int:
        """Bytes of the storages that were kept, each once, without the weights."""
        return storage_bytes(self._kept)


def _local(tensor: Tensor) -> Tensor:
    """The plain tensor of a DTensor, after its collective."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local().detach()
    if isinstance(tensor, AsyncCollectiveTensor):
        waited: Tensor = tensor.trigger_wait()
        return waited
    return tensor
