"""One launch over many tensors: a table of their addresses on the device, and which tensor a program works on.

Every tensor is cut into chunks of CHUNK elements, the last one shorter; chunks are numbered through all tensors.
Table, int64, one column a tensor: its first chunk, its elements, then its address in each role (weight, gradient, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.operator import INTERPRETED, require

CHUNK = 1024  # elements of a program at once
EACH = 8  # of these in a thread: two loads of 16 bytes, fp32
ALIGNMENT = 16  # bytes that one thread loads at once


class TensorTable(NamedTuple):
    """Tensors of one launch.

    Args:
        rows: the table, on their device.
        tensors: its columns.
        chunks: of all tensors.
        aligned: whether all addresses are multiples of `ALIGNMENT`.
    """

    rows: Tensor
    tensors: int
    chunks: int
    aligned: bool


def tensor_table(*roles: Sequence[Tensor]) -> TensorTable:
    """The table of tensors that are contiguous and have, place by place, as many elements in every role.

    It goes to the device from pinned memory, so that the host waits for nothing.
    """
    elements = [tensor.numel() for tensor in roles[0]]
    first, chunks = [], 0
    for count in elements:
        first.append(chunks)
        chunks += triton.cdiv(count, CHUNK)
    addresses = [[tensor.data_ptr() for tensor in role] for role in roles]
    device = roles[0][0].device
    rows = torch.tensor([first, elements, *addresses], dtype=torch.int64, pin_memory=device.type == "cuda")
    aligned = all(address % ALIGNMENT == 0 for role in addresses for address in role)
    return TensorTable(rows.to(device, non_blocking=True), len(elements), chunks, aligned)


def require_one_memory(kernel: str, device: torch.device) -> None:
    """Nothing where a program can follow an address: interpreted programs run on the host.

    Raises:
        UnsupportedInputError: interpreted, with tensors on a GPU.
    """
    require(not (INTERPRETED and device.type == "cuda"), kernel, "device, interpreted", "cpu", device)


@triton.jit
def tensor_of_chunk(table_ptr, tensors, chunk):
    """The column of the tensor that a chunk belongs to: the last one whose first chunk is not behind it.

    Empty tensors have the first chunk of the next one: they are never the last.
    """
    low = chunk * 0
    high = low + tensors - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(table_ptr + middle) <= chunk:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def address_in_role(table_ptr, tensors, column, role, like_ptr, ALIGNED: tl.constexpr):
    """A tensor's address in a role (0 is the first), as a pointer like `like_ptr`."""
    pointer = tl.load(table_ptr + (role + 2) * tensors + column).to(like_ptr.dtype)
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer
