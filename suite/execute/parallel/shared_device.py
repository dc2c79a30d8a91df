"""Messages of ranks that share a GPU, which NCCL refuses: gloo's, through the host's memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as distributed_c10d

# c10d's operators; what each writes is its first argument
_WRITE = (
    *("allreduce_", "allreduce_coalesced_", "reduce_", "broadcast_"),
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "gather_"),
    *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "scatter_"),
    *("alltoall_", "alltoall_base_"),
)
_RECEIVE = ("recv_", "recv_any_source_")
_registered: list[torch.library.Library] = []
_receiving: set[_Received] = set()  # C++ holds their base class alone: Python must keep them alive


class _Received(dist.Work):
    """A message on its way to the host: whoever waits for it finds it on the GPU."""

    def __init__(self, work: dist.Work, written: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._work, self._written = work, written
        _receiving.add(self)

    def wait(self, *timeout: Any) -> bool:
        """Wait for the message, and copy it to the GPU."""
        if self in _receiving:
            self._work.wait(*timeout)
            _copy_back(self._written)
            _receiving.discard(self)
        return True


def communicate_through_host() -> None:
    """From here on c10d's operators on CUDA tensors run as gloo's on copies in the host's memory.

    gloo has no reduce-scatter and no send of CUDA tensors (PyTorch 2.11 and 2.13). The operators are replaced below
    PyTorch's dispatcher, so that DistributedDataParallel's C++ and compiled regions use them too, and so that counters
    see each call once. All but receiving waits for its end.
    """
    library = torch.library.Library("c10d", "IMPL")
    for name in (*_WRITE, "send", *_RECEIVE):
        operator = getattr(torch.ops.c10d, name).default
        library.impl(name, partial(_on_host, operator, name), "CUDA", allow_override=True)
    _registered.append(library)  # it unregisters with its end


def _on_host(operator: Any, name: str, first: Any, *others: Any) -> Any:
    written: list[tuple[Tensor, Tensor]] = []
    result = operator(_host_copy(first, written), *(_host_copy(value, []) for value in others))
    if name == "send":
        return result
    work = dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)
    if name in _RECEIVE:
        return _Received(work, written).boxed()
    work.wait()
    _copy_back(written)
    ended = _ended([tensor for tensor, _ in written]).boxed()
    return (first, ended) if isinstance(result, tuple) else ended


def _host_copy(value: Any, copies: list[tuple[Tensor, Tensor]]) -> Any:
    """`value` with its tensors, also those in lists, on the host; `copies` gets each with its copy."""
    if isinstance(value, list):
        return [_host_copy(item, copies) for item in value]
    if not isinstance(value, Tensor):
        return value
    copies.append((value, value.cpu()))
    return copies[-1][1]


def _copy_back(written: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, host in written:
        tensor.data.copy_(host)  # no operator that autograd sees, as in NCCL's kernels


def _ended(tensors: list[Tensor]) -> dist.Work:
    """A collective that has ended with `tensors` as its result, which DistributedDataParallel reads from it."""
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=[tensors[0].device])
    future.set_result(tensors)
    work: dist.Work = distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]  # not in its stubs
    return work
