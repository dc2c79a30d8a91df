"""Known patterns that fill memory and messages, products with known results, and how wrong bits in them are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from suite.execute.probe.free_memory import fillable_bytes, free_bytes, hand_back
from suite.job.events import Event, Phase
from suite.job.probe_job import ProbeJob, Soaked

# of patterns, modulo 2**32: odd, so that all places differ; Knuth, The Art of Computer Programming 3, 6.4, multiplies
# by the golden ratio; the other one is murmur3's
FACTOR, SALT_FACTOR = 2654435769, 2246822507
CHUNK = 1 << 22  # elements whose pattern is made and compared at a time
TRIED = 4 * CHUNK  # elements of the pass that says how long the others take
PASSES = 2  # at least: a pattern and its complement
WORK_BYTES = 16 * CHUNK  # pattern of a chunk; where it differs, what differs and places in int64
UNTOLD_BYTES = 2**28  # of a rank where the system does not tell what is free
FREE_SHARE = 0.95  # of a GPU's free memory
PRODUCT = 512  # rows and columns of verified products
EVERY = 19  # of the left factor of bf16, one entry in so many is not 0: 27 * 3 * 3 = 243 at most


def pattern(first: int, elements: int, salt: int, device: torch.device, *, complement: bool = False) -> Tensor:
    """Known numbers, [elements] in int32: each depends on its place and on `salt`, and uses all 32 bits.

    (place * FACTOR + salt * SALT_FACTOR) mod 2**32, which int32 wraps to; the complement has every bit turned.
    """
    start = (first * FACTOR + salt * SALT_FACTOR) % 2**32  # in Python, whose integers do not overflow
    out = torch.arange(elements, device=device, dtype=torch.int32).mul_(_signed(FACTOR)).add_(_signed(start))
    return out.bitwise_not_() if complement else out


def _signed(number: int) -> int:
    """The same 32 bits as a signed number."""
    return number - 2**32 if number >= 2**31 else number


def differences(found: Tensor, expected: Tensor) -> tuple[int, str]:
    """How many elements differ, and the first one in words; empty where none does."""
    if torch.equal(found, expected):
        return 0, ""
    places = (found != expected).reshape(-1).nonzero().reshape(-1)
    place = int(places[0])
    got, wanted = found.reshape(-1)[place].item(), expected.reshape(-1)[place].item()
    return len(places), f"element {place} is {got}, not {wanted}"


def factors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Two factors, [PRODUCT, PRODUCT] of entries 0 to 3, and their product; all exact in `dtype`, in any order of sums.

    In fp32 (and in tf32, which keeps 11 bits of a factor) sums are 512 * 9 = 4,608 at most. bf16 keeps 8 bits, so that
    whole numbers are exact to 256: there most entries of the left factor are 0, others in each row, and sums and parts
    of them are 243 at most, whether they are kept in fp32 or in bf16.
    """
    place = torch.arange(PRODUCT * PRODUCT)
    left, right = (place // 5 % 4).view(PRODUCT, PRODUCT), (place // 3 % 4).view(PRODUCT, PRODUCT)
    if dtype is torch.bfloat16:
        row, column = place // PRODUCT, place % PRODUCT
        left = torch.where((row + column) % EVERY == 0, 1 + place % 3, 0).view(PRODUCT, PRODUCT)
    product = left @ right
    return left.to(dtype), right.to(dtype), product.to(dtype)


def soak_bytes(job: ProbeJob, device: torch.device, control: dist.ProcessGroup | None) -> int:
    """What this rank fills: what the job says, or what is free and its own; without the memory that it works in.

    All ranks have handed back what they held before one asks, and have asked before one fills anything. On a CPU they
    share what is free, each as much as the one that saw the least.

    Args:
        control: of gloo; None: this rank is alone.
    """
    hand_back(device)
    if control is not None:
        dist.barrier(group=control)
    if device.type == "cuda":
        own = int(FREE_SHARE * torch.cuda.mem_get_info(device)[0])
    else:
        ranks, free = 1 if control is None else dist.get_world_size(control), free_bytes()
        own = UNTOLD_BYTES if free is None else fillable_bytes(free, ranks=ranks)
    if control is not None and device.type != "cuda":
        least = torch.tensor([own])
        dist.all_reduce(least, dist.ReduceOp.MIN, group=control)
        own = int(least[0])
    return max(8, min(job.soak_bytes or own, max(own - WORK_BYTES, own // 2)))


def soaked(
    job: ProbeJob, device: torch.device, control: dist.ProcessGroup | None, report: Callable[[Event], None]
) -> Soaked:
    """Products with a known result, and copies from one half of the memory to the other, until the time is over.

    Each pass has a pattern of its own, every other one the complement of the one before. A first pass over a small part
    says how long the others take; they are over as much memory as lets two of them fit the time.
    """
    half = soak_bytes(job, device, control) // 8
    source, target = (torch.empty(half, dtype=torch.int32, device=device) for _ in range(2))
    products = [tuple(one.to(device) for one in factors(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    told, number, wrong, first = 0.0, 0, 0, ""

    def chunks(size: int) -> Iterator[tuple[int, int]]:
        nonlocal told
        for place in range(0, size, CHUNK):
            yield place, min(place + CHUNK, size)
            if time.monotonic() - told > 1:
                told = time.monotonic()
                report(Phase(f"soak pass {number}", time.time()))

    def compared(found: Tensor, expected: Tensor, where: str) -> None:
        nonlocal wrong, first
        count, words = differences(found, expected)
        wrong, first = wrong + count, first or (words and f"{where}, pass {number}: {words}")

    def known(start: int, stop: int) -> Tensor:
        return pattern(start, stop - start, number // 2, device, complement=number % 2 == 1)

    def verify(size: int) -> float:
        """One pass over so many elements; its seconds."""
        begun = time.monotonic()
        for start, stop in chunks(size):
            source[start:stop] = known(start, stop)
        for start, stop in chunks(size):
            target[start:stop].copy_(source[start:stop])
        for start, stop in chunks(size):
            compared(target[start:stop], known(start, stop), f"memory from element {start}")
            for left, right, expected in products:
                compared(left @ right, expected, f"product in {str(expected.dtype).removeprefix('torch.')}")
        return time.monotonic() - begun

    end, tried = time.monotonic() + job.soak_seconds, min(half, TRIED)
    fits = tried * job.soak_seconds / PASSES / verify(tried)
    size = max(tried, min(half, int(fits)))
    while number < PASSES or time.monotonic() < end:
        verify(size)
        number += 1
    return Soaked(bytes=8 * size, passes=number, wrong=wrong, first=first, time=time.time())
