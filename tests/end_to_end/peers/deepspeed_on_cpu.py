"""DeepSpeed 0.19.6's own 1-bit Adam on gloo and CPUs.

Replaced, none of it arithmetic:
- cupy, which `NcclBackend` packs bits with, by numpy, whose `packbits` and `unpackbits` are the same functions.
- `PackbitsBuilder`, which `CompressedBackend` packs bits with and which is written for XPUs alone, by numpy's likewise.
- The shape of what `all_gather` is given: a scale has no dim and its destinations one, which gloo refuses.
- The engine, of which `OnebitAdam` reads `mpu` and `local_rank` and sets `enable_backward_allreduce`.
- The operator for all-reduces in shared memory, compiled when communication starts and not used here, by None.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.dlpack import from_dlpack


@cache
def start() -> None:
    """Import DeepSpeed and let it use the process groups that are there."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.comm
    from deepspeed.runtime.comm import compressed

    sys.modules["cupy"] = _numpy_as_cupy()
    compressed.PackbitsBuilder = lambda: SimpleNamespace(
        load=lambda: SimpleNamespace(packbits=_pack, unpackbits=_unpack)
    )
    # by name: the package's own attribute `torch` is PyTorch
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.comm.init_distributed("gloo", auto_mpi_discovery=False)
    gather = deepspeed.comm.all_gather
    deepspeed.comm.all_gather = lambda into, tensor, **more: gather(into, tensor.reshape(into[0].shape), **more)


def backend(kind: str, group: dist.ProcessGroup) -> Any:
    """`NcclBackend` or `CompressedBackend` over the ranks of `group`."""
    start()
    from deepspeed.runtime.comm.compressed import CompressedBackend
    from deepspeed.runtime.comm.nccl import NcclBackend

    return {"nccl": NcclBackend, "compressed": CompressedBackend}[kind](_data_parallel(group))


def engine(group: dist.ProcessGroup) -> Any:
    """The part of an engine that `OnebitAdam` needs."""
    return SimpleNamespace(mpu=_data_parallel(group), local_rank=0, enable_backward_allreduce=True)


def optimizer(parameters: list[Any], of: Any, **settings: Any) -> Any:
    """`OnebitAdam` with an `engine`."""
    start()
    from deepspeed.runtime.fp16.onebit.adam import OnebitAdam

    return OnebitAdam(parameters, deepspeed=of, **settings)


def _data_parallel(group: dist.ProcessGroup) -> Any:
    return SimpleNamespace(get_data_parallel_group=lambda: group)


def _numpy_as_cupy() -> ModuleType:
    cupy = ModuleType("cupy")
    cupy.packbits, cupy.unpackbits = np.packbits, np.unpackbits  # type: ignore[attr-defined]
    cupy.zeros, cupy.split = np.zeros, np.split  # type: ignore[attr-defined]
    cupy.from_dlpack = lambda capsule: from_dlpack(capsule).numpy()  # type: ignore[attr-defined]
    nothing = SimpleNamespace(use=lambda: None, synchronize=lambda: None)
    cupy.cuda = SimpleNamespace(Device=lambda _: nothing, get_current_stream=lambda: nothing)  # type: ignore[attr-defined]
    return cupy


def _pack(values: Tensor, _size: int, _rank: int) -> Tensor:
    """Bits as csrc/xpu/packbits/packing.cpp packs them: 1 where the sign bit is not set, the first element highest."""
    return torch.from_numpy(np.packbits(~np.signbit(values.numpy())))


def _unpack(packed: Tensor, _size: int, _rank: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(packed.numpy())).float().sub_(0.5).mul_(2)
