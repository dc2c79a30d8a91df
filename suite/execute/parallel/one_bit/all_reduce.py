"""The mean of vectors over ranks in one bit an element. The errors are sent with the next vectors.

Legend: N elements of a vector, p ranks, K elements of the part that a rank serves (`part_elements`).
Source: Tang et al. 2021, arXiv 2102.02888, algorithm 1 and section 4; scales and padding are those of DeepSpeed 0.19.6,
runtime/fp16/onebit/adam.py and runtime/comm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.bits import BITS, pack_bits, unpack_signs

SCALE_BYTES = 4  # a scale is sent as fp32
# torch 2.13 renamed the collective and warns of the old name; 2.11 has only the old one
all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


def part_elements(elements: int, ranks: int) -> int:
    """K: elements that each rank serves of a vector padded to a multiple of p lcm(p, 8): whole bytes of signs."""
    multiple = ranks * math.lcm(ranks, BITS)
    return -(-elements // multiple) * multiple // ranks


@dataclass
class ErrorFeedback:
    """The errors of the signs of one vector so far, in fp32.

    Args:
        worker: [N], of this rank's own vector.
        server: [K], of the mean of the part that this rank serves.
        active: bool [N], the same on all ranks; other elements are averaged as 0. None: all are active.
    """

    worker: Tensor
    server: Tensor
    active: Tensor | None = None

    @classmethod
    def zeros(cls, elements: int, *, group: dist.ProcessGroup | None, device: torch.device) -> ErrorFeedback:
        """No errors."""
        part = part_elements(elements, dist.get_world_size(group))
        return cls(torch.zeros(elements, device=device), torch.zeros(part, device=device))

    def outstanding(self, *, group: dist.ProcessGroup | None) -> Tensor:
        """The mean of the worker errors plus the server error of each element [N], the same on all ranks of `group`."""
        rank, part = dist.get_rank(group), self.server.numel()
        outstanding = self.worker / dist.get_world_size(group)
        served = outstanding[rank * part : (rank + 1) * part]
        served += self.server[: served.numel()]
        dist.all_reduce(outstanding, group=group)
        return outstanding


def compressed_all_reduce(
    vectors: Sequence[Tensor], feedback: Sequence[ErrorFeedback], *, group: dist.ProcessGroup | None = None
) -> bool:
    """Replace each vector by about its mean over the ranks of `group`, the same bits on every rank.

    With c = vector + worker error and sign(0) = +1:
        s    = ||c|| / sqrt(N);       worker error := c - s sign(c)           sent: all_to_all of signs and s
        u    = mean of the ranks' s sign(c) + server error
        s'   = ||u|| / sqrt(K);       server error := u - s' sign(u)          sent: all_gather of signs and s'
        vector := s' sign(u)
    N and K count active elements without padding. Each vector has its own scales. All vectors travel in two messages: a
    rank sends N' (p - 1) / (4 p) + 8 (p - 1) bytes for each, N' = p K its padded length. A single rank sends nothing
    and leaves its vectors as they are.

    Args:
        vectors: flat, fp32, of one device, with the same lengths on every rank; finite or not.
        feedback: one for each vector, overwritten.

    Returns:
        Whether all vectors of all ranks were finite, their fp32 sums of squares too. If not, vectors and feedback stay.

    Raises:
        ValueError: vectors that are not flat fp32 tensors of one device, or feedback of other lengths.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    _check(vectors, feedback, ranks)
    if not vectors:
        return True
    if ranks == 1:
        return bool(torch.stack([torch.linalg.vector_norm(vector) for vector in vectors]).isfinite().all())
    parts = [each.server.numel() for each in feedback]
    packed = [_compressed(vector, each.worker, each.active) for vector, each in zip(vectors, feedback, strict=True)]
    outgoing = _message(packed, parts, rows=ranks)
    incoming = torch.empty_like(outgoing)
    _run(dist.all_to_all_single, incoming, outgoing, group)
    served = _served(incoming, feedback, parts, rank)
    outgoing = _message(served, parts, rows=1)
    incoming = torch.empty((ranks, outgoing.shape[1]), dtype=torch.uint8, device=outgoing.device)
    _run(all_gather, incoming, outgoing, group)
    signs, scales = _parts_of(incoming, parts)
    if not bool(scales.isfinite().all()):  # a vector that is not finite makes every server's scale so
        return False
    for number, (vector, each) in enumerate(zip(vectors, feedback, strict=True)):
        each.worker.copy_(packed[number].error)
        each.server[: served[number].error.numel()].copy_(served[number].error)
        for part, packed_part, scale in zip(
            vector.split(parts[number]), signs[number], scales[:, number], strict=False
        ):  # after the end of the vector there is padding alone
            part.copy_(unpack_signs(packed_part, part.numel(), torch.float32, scale))
        if each.active is not None:
            vector *= each.active
    return True


def _served(incoming: Tensor, feedback: Sequence[ErrorFeedback], parts: Sequence[int], rank: int) -> list[_Compressed]:
    """The mean of the part of each vector that this rank serves, compressed again."""
    signs, scales = _parts_of(incoming, parts)
    served = []
    for number, each in enumerate(feedback):
        elements = each.worker.numel()
        first = min(rank * parts[number], elements)
        served_elements = min(parts[number], elements - first)
        mean = _mean(signs[number], scales[:, number], served_elements)
        active = None if each.active is None else each.active[first : first + served_elements]
        served.append(_compressed(mean, each.server[:served_elements], active))
    return served


@dataclass(frozen=True)
class _Compressed:
    """Packed signs [ceil(N / 8)], scale (0-dim), and their error [N]."""

    signs: Tensor
    scale: Tensor
    error: Tensor


def _compressed(value: Tensor, error: Tensor, active: Tensor | None) -> _Compressed:
    """Compress value + error and leave both as they are."""
    if value.numel() == 0:
        return _Compressed(value.new_empty(0, dtype=torch.uint8), value.new_zeros(()), value)
    if value.is_cuda and active is None:
        from kernels.sign_pack import sign_pack  # needs Triton, which not every machine has

        missed = error.clone()
        return _Compressed(*sign_pack(value, missed), missed)
    c = value + error
    c += 0.0  # -0 becomes +0, whose sign is + below too
    if active is not None:
        c *= active
    positive = c >= 0
    elements = c.numel() if active is None else int(active.sum())
    scale = torch.linalg.vector_norm(c) / math.sqrt(max(elements, 1))
    c -= torch.copysign(scale, c)
    if active is not None:
        c *= active
    return _Compressed(pack_bits(positive), scale, c)


def _mean(signs: Tensor, scales: Tensor, elements: int) -> Tensor:
    """Mean of scale times sign [elements] of packed signs [p, K / 8] and scales [p], added in the ranks' order."""
    if signs.is_cuda:
        from kernels.sign_pack import sign_unpack  # needs Triton, which not every machine has

        return sign_unpack(signs, scales, signs.shape[1] * BITS)[:elements]
    total = torch.zeros(elements, device=signs.device)
    for packed, scale in zip(signs, scales, strict=True):
        total += unpack_signs(packed, elements, torch.float32, scale)
    return total / signs.shape[0]


def _message(vectors: Sequence[_Compressed], parts: Sequence[int], *, rows: int) -> Tensor:
    """Bytes [rows, ...]: in row r the r-th of `rows` parts of each vector's signs, then each vector's scale."""
    sizes = [part // BITS for part in parts]
    device = vectors[0].signs.device
    message = torch.zeros((rows, sum(sizes) + SCALE_BYTES * len(parts)), dtype=torch.uint8, device=device)
    start = 0
    for vector, size in zip(vectors, sizes, strict=True):
        padded = torch.nn.functional.pad(vector.signs, (0, rows * size - vector.signs.numel()))
        message[:, start : start + size] = padded.view(rows, size)
        start += size
    message[:, start:] = torch.stack([vector.scale for vector in vectors]).view(torch.uint8)
    return message


def _parts_of(message: Tensor, parts: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Each vector's signs [p, K / 8], and the scales of all [p, vectors], in the bytes of each rank [p, ...]."""
    sizes = [part // BITS for part in parts]
    *signs, scales = message.split([*sizes, SCALE_BYTES * len(parts)], dim=1)
    return signs, scales.contiguous().view(torch.float32)


def _run(collective: Callable[..., Any], incoming: Tensor, outgoing: Tensor, group: dist.ProcessGroup | None) -> None:
    """Run `collective`, through the host where the group's backend cannot read GPU memory."""
    if outgoing.is_cuda and dist.get_backend(group) == "gloo":
        host = torch.empty_like(incoming, device="cpu")
        collective(host, outgoing.cpu(), group=group)
        incoming.copy_(host)
    else:
        collective(incoming, outgoing, group=group)


def _check(vectors: Sequence[Tensor], feedback: Sequence[ErrorFeedback], ranks: int) -> None:
    if len(vectors) != len(feedback):
        raise ValueError(f"feedback: allowed one for each of {len(vectors)} vectors, got {len(feedback)}")
    for number, (vector, each) in enumerate(zip(vectors, feedback, strict=True)):
        name, elements = f"vectors[{number}]", vector.numel()
        for what, allowed, got in (
            (f"{name}.dtype", torch.float32, vector.dtype),
            (f"{name}.device", vectors[0].device, vector.device),
            (f"{name}.shape", (elements,), tuple(vector.shape)),
            (f"worker error of {name}", (elements,), tuple(each.worker.shape)),
            (f"server error of {name}", (part_elements(elements, ranks),), tuple(each.server.shape)),
        ):
            if got != allowed:
                raise ValueError(f"{what}: allowed {allowed}, got {got}")
