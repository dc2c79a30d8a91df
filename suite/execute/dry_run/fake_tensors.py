"""Tensors without memory, and a process group without processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage, _meta_registrations, nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor

from suite.execute.data.loader import Batches
from suite.execute.data.token_stream import TokenBatch
from suite.execute.dry_run.allocations import Allocations
from suite.execute.measure.counters import shapes_unseen

_aten = torch.ops.aten
_device = torch.ops.prim.device.default
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
_NONE: Mapping[str, Any] = {}
# Collectives for which gloo has a buffer of its own, as large as the argument with this number
_WHOLE = {torch.ops.c10d._allgather_base_.default: 0, torch.ops.c10d._reduce_scatter_base_.default: 1}
BUFFERS = "message buffers"  # the category
_OF_ONE_TENSOR = 2  # uses of a storage: by the tensor, and by Python's object for the storage
# functions of graph nodes that Python computes, which have names for their tensors: custom ones, and DTensor's
_NODES_IN_PYTHON = ("torch/autograd/function.py", "torch/distributed/tensor/")


class FakeTensors(FakeTensorMode):
    """PyTorch's mode in which operators compute shapes alone. A number that Python reads is 1.

    Args:
        allocations: that follow what operators return.
        gloo: whether messages go through gloo, which has buffers of its own.

    Attributes:
        observers: are called with each operator, its arguments and what it returns. They see what modes above this one
            would, without a dispatch for each.
    """

    def __init__(self, allocations: Allocations, *, gloo: bool = True) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._allocations = allocations
        self._gloo = gloo
        self._within = False
        self.observers: list[Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Otherwise compiled modules would run eagerly under it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NONE
    ) -> Any:
        kwargs = kwargs or {}
        if func is _device and type(args[0]) is FakeTensor and not self.in_kernel_invocation:
            return args[0].fake_device
        if self._within:  # an operator that another one is made of here, whose kernel is not
            return self._returned(func, types, args, kwargs)
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operators on local tensors
        returned = self._returned(func, types, args, kwargs)
        for observe in self.observers:
            observe(func, args, kwargs, returned)
        return returned

    def _returned(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is _aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        if func is _aten.empty.memory_format and kwargs.get("dtype") is torch.int32:
            # DistributedDataParallel's bucket numbers, which its C++ reads
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as the real one does; PyTorch's for fake tensors allocates another (torch 2.13)
        if self._within:
            return self.dispatch(func, types, args, kwargs)
        if func is _aten.add.Tensor and not torch.is_grad_enabled() and self._added_in_place(*args, **kwargs):
            return args[0]
        self._within = True
        try:
            returned = self.dispatch(func, types, args, kwargs)
        finally:
            self._within = False
        self._allocations.see(returned)
        if self._gloo and func in _WHOLE:
            self._allocations.pass_through(args[_WHOLE[func]].nbytes, BUFFERS)
        return returned

    def _prep_args_for_hash(self, result: list[object], args: Any, state: Any, id_hashed_objects: list[object]) -> None:
        """Add what decides the shapes of results to the key of PyTorch's cache, of plain tensors in fewer steps."""
        if isinstance(args, Mapping):
            result.append(tuple(args))
            args = args.values()
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor and arg.fake_mode is self and arg.constant is None and arg.layout is torch.strided:
                storage = arg.untyped_storage().nbytes(), arg.storage_offset(), arg._fake_device
                states = arg.requires_grad, arg.is_conj(), arg.is_neg(), arg.is_inference()
                result.append((arg.dtype, arg.shape, arg.stride(), *storage, *states))
            elif kind is list or kind is tuple:
                result.append((kind, len(arg)))
                self._prep_args_for_hash(result, arg, state, id_hashed_objects)
            elif kind in _PLAIN:
                result.append((kind, arg))
            else:
                super()._prep_args_for_hash(result, [arg], state, id_hashed_objects)

    def _get_output_tensor_from_cache_entry(
        self, state: Any, entry: Any, key: Any, func: Any, args: Sequence[Any]
    ) -> Any:
        """The tensor of an entry of PyTorch's cache, a plain one in fewer steps."""
        made = entry.metadata
        if made is None or made.layout is not torch.strided or made.is_conj or made.is_neg:
            return super()._get_output_tensor_from_cache_entry(state, entry, key, func, args)
        storage = None if entry.view_idx is None else args[entry.view_idx].untyped_storage()
        with in_kernel_invocation_manager(self):
            if storage is None:
                of_meta = torch.empty_strided(
                    made.shape, made.stride, dtype=made.dtype, device="meta", requires_grad=made.requires_grad
                )
            else:
                of_meta = torch.empty(0, dtype=made.dtype, device="meta")
                of_meta.set_(storage, made.storage_offset, made.shape, made.stride)
        return FakeTensor(self, of_meta, made.device)

    def _added_in_place(self, sum_: Any, other: Any, *, alpha: float = 1) -> bool:
        """Whether autograd would add `other` to the gradient `sum_` in place, which it does not under a mode.

        It does where nothing else refers to `sum_`, a plain tensor, and its storage. A pipeline stage refers to what it
        received.
        Source: torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace.
        """
        if (
            not _adds_for_autograd()
            or not isinstance(sum_, Tensor)
            or not isinstance(other, Tensor)
            or alpha != 1
            or sum_.shape != other.shape
        ):
            return False
        storage = sum_.untyped_storage()
        if self._allocations.category(sum_) == BUFFERS:
            return False
        return torch._C._storage_Use_Count(storage._cdata) == _OF_ONE_TENSOR and storage.nbytes() == sum_.nbytes


def _adds_for_autograd() -> bool:
    """Whether a backward pass itself has called the operator that is dispatched, not Python for one of its nodes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if any(name in frame.f_code.co_filename for name in _NODES_IN_PYTHON):
            return False
        frame = frame.f_back
    return frame is not None


class Chunks:
    """Chunks as `torch.chunk` returns them, each made when asked for; beyond the last one empty ones, as FSDP has them.

    A rank needs two of them, of as many as there are ranks.
    """

    def __init__(self, tensor: Tensor, chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._length = -(-tensor.size(dim) // chunks)

    def __getitem__(self, number: int) -> Tensor:
        start, size = number * self._length, self._tensor.size(self._dim)
        if start >= size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._length, size - start))


class Conversions:
    """`module.to(dtype)` and the like, which replace parameters; a tied one by one.

    PyTorch would swap the contents of two tensors instead, and refuses it for those without memory, to which there are
    weak references (torch 2.13).
    """

    def __init__(self) -> None:
        self._depth = 0
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # by the old one, which lives so that its id does

    def apply(self, module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """As `nn.Module._apply`: convert the parameters and buffers of a module, and those within it."""
        self._depth += 1
        try:
            for child in module.children() if recurse else ():
                child._apply(function)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = self._converted(parameter, function)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = function(buffer)
        finally:
            self._depth -= 1
            if not self._depth:
                self._made.clear()
        return module

    def _converted(self, parameter: nn.Parameter, function: Callable[[Tensor], Tensor]) -> nn.Parameter:
        if id(parameter) not in self._made:
            with torch.no_grad():
                new = function(parameter)
            made = new if isinstance(new, nn.Parameter) else nn.Parameter(new, parameter.requires_grad)
            self._made[id(parameter)] = parameter, made
        return self._made[id(parameter)][1]


class _Sent(NamedTuple):
    """A message on its way. Like a real one it holds what is sent for as long as someone holds it."""

    work: dist.Work
    tensors: list[Tensor]

    def wait(self) -> bool:
        return self.work.wait()


@contextmanager
def fake_tensors(allocations: Allocations, *, gloo: bool = True) -> Iterator[FakeTensors]:
    """Within this no tensor has memory, and `Tensor.tolist` of one is a list of ones."""
    send, reset_sharded, concatenate = (dist.ProcessGroup.send, FSDPParam.reset_sharded_param, DeviceMesh._concatenate)
    tolist, resize = Tensor.tolist, UntypedStorage.resize_
    of_groups: Callable[..., Tensor] = _meta_registrations._meta_grouped_mm_common

    def ones(tensor: Tensor) -> Any:
        return [1.0] * tensor.numel() if isinstance(tensor, FakeTensor) else tolist(tensor)

    def resized(storage: UntypedStorage, size: int) -> Any:  # how FSDP frees gathered weights
        returned = resize(storage, size)
        allocations.resized(storage)
        return returned

    def reset(parameter: FSDPParam) -> None:
        """Where nothing has replaced the parameter, keep its padded shard; by addresses, which none has here, PyTorch
        would pad a shorter one once more (torch 2.13)."""
        now: Any = getattr(parameter._module_info.module, parameter._module_info.param_name)
        storages = [each.untyped_storage()._cdata for each in (now._local_tensor, parameter._sharded_param_data)]
        if now is not parameter.sharded_param or storages[0] != storages[1]:
            reset_sharded(parameter)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def joined(meshes: list[DeviceMesh]) -> DeviceMesh:  # its numbers are no tensors of the model
        with unset_fake_temporarily():
            return concatenate(meshes)

    def sent(group: dist.ProcessGroup, tensors: list[Tensor], *args: Any) -> _Sent:
        return _Sent(send(group, tensors, *args), tensors)

    def grouped(rows: Tensor, matrices: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """PyTorch's own refuses fp32, which its kernels take (torch 2.13)."""
        if rows.dtype is not torch.float32:
            return of_groups(rows, matrices, *args, **kwargs)
        if any(stride != 1 and stride % 4 for each in (rows, matrices) for stride in each.stride()[-2:]):
            raise RuntimeError("strides should be multiple of 16 bytes")  # as its kernels say
        made: Tensor = _meta_registrations._create_grouped_mm_output_tensor(
            rows, matrices, kwargs["offs"], kwargs["out_dtype"]
        )
        return made

    conversions = Conversions()

    def converted(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        return conversions.apply(module, function, recurse)

    with (
        mock.patch.object(nn.Module, "_apply", converted),
        mock.patch.object(dist.ProcessGroup, "send", sent),
        mock.patch.object(Tensor, "tolist", ones),
        mock.patch.object(UntypedStorage, "resize_", resized),
        mock.patch.object(DeviceMesh, "_concatenate", staticmethod(joined)),
        mock.patch.object(FSDPParam, "reset_sharded_param", reset),
        mock.patch.object(_fsdp_param, "_chunk_with_empty", Chunks),
        mock.patch.object(_meta_registrations, "_meta_grouped_mm_common", grouped),
        shapes_unseen(),  # DTensor's own fake tensors take no memory either
        FakeTensors(allocations, gloo=gloo) as mode,
    ):
        yield mode


class FakedBatches:
    """Real micro-batches, made as they are for training, as tensors without memory."""

    def __init__(self, batches: Batches, mode: FakeTensors, allocations: Allocations) -> None:
        self._batches, self._mode, self._allocations = batches, mode, allocations

    def micro_batch(self, first: int, samples: int) -> TokenBatch:
        with unset_fake_temporarily():
            batch = self._batches.micro_batch(first, samples)
        tokens_BT, *others = (self._mode.from_tensor(x) for x in (batch.tokens_BT, *batch.arguments.values()))
        self._allocations.see((tokens_BT, others))
        return TokenBatch(tokens_BT, dict(zip(batch.arguments, others, strict=True)))
