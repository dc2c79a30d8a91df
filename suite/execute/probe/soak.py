"""Known patterns in memory and messages, products with known results, and the comparison that finds wrong bits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from suite.job.events import Event, Phase
from suite.job.probe_job import ProbeJob, Soaked
from suite.machine.free_memory import free_bytes

# of patterns, modulo 2**32: odd, so that all elements differ. Sources: the golden ratio, Knuth, The Art of Computer
# Programming 3, 6.4; murmur3
FACTOR, SALT_FACTOR = 2654435769, 2246822507
CHUNK = 1 << 22  # elements whose pattern is made and compared at a time
TRIED = 4 * CHUNK  # elements of a first pass, from whose seconds the size of the others follows
PASSES = 2  # at least: a pattern and its complement
WORK_BYTES = 16 * CHUNK  # pattern of a chunk; where it differs, the differences and their indices in int64
GPU_SHARE = 0.95  # of a GPU's free memory
HOST_SHARE = 0.9  # of the free memory
RESERVED_BYTES = 2**30  # always left: for the launcher, torchrun and other processes
LEAST_SHARE = 0.25  # taken even where little is free
PRODUCT = 512  # rows and columns of verified products
EVERY = 19  # of the left bf16 factor, one entry in so many is not 0: sums are 27 * 3 * 3 = 243 at most


def pattern(first: int, elements: int, salt: int, device: torch.device, *, complement: bool = False) -> Tensor:
    """Known numbers, [elements] in int32: each depends on its index and on `salt`, and uses all 32 bits.

    (index * FACTOR + salt * SALT_FACTOR) mod 2**32, to which int32 wraps. The complement has every bit inverted.
    """
    start = (first * FACTOR + salt * SALT_FACTOR) % 2**32  # in Python, whose integers do not overflow
    out = torch.arange(elements, device=device, dtype=torch.int32).mul_(_signed(FACTOR)).add_(_signed(start))
    return out.bitwise_not_() if complement else out


def _signed(number: int) -> int:
    """The same 32 bits as a signed number."""
    return number - 2**32 if number >= 2**31 else number


def differences(actual: Tensor, expected: Tensor) -> tuple[int, str]:
    """How many elements differ, and the first one in words; empty if none does."""
    if torch.equal(actual, expected):
        return 0, ""
    differing = (actual != expected).reshape(-1).nonzero().reshape(-1)
    if not len(differing):
        return actual.numel(), "the device calls them different, and finds no difference"
    first = int(differing[0])
    got, wanted = actual.reshape(-1)[first].item(), expected.reshape(-1)[first].item()
    return len(differing), f"element {first} is {got}, not {wanted}"


def factors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Two factors, [PRODUCT, PRODUCT] of entries 0 to 3, and their product; all exact in `dtype`, in any order of sums.

    In fp32, and in tf32 with its 11 bits, sums are 512 * 9 = 4,608 at most. bf16 has 8 bits, so whole numbers are exact
    to 256: there most entries of the left factor are 0, others in each row, and sums are 243 at most.
    """
    index = torch.arange(PRODUCT * PRODUCT)
    left, right = (index // 5 % 4).view(PRODUCT, PRODUCT), (index // 3 % 4).view(PRODUCT, PRODUCT)
    if dtype is torch.bfloat16:
        row, column = index // PRODUCT, index % PRODUCT
        left = torch.where((row + column) % EVERY == 0, 1 + index % 3, 0).view(PRODUCT, PRODUCT)
    product = left @ right
    return left.to(dtype), right.to(dtype), product.to(dtype)


def release_cached(device: torch.device) -> None:
    """Return memory that Python, PyTorch and the C library cache to the device and the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # of glibc, which keeps freed memory in ranks


def fillable_bytes(free: int, *, ranks: int) -> int:
    """Bytes that each rank fills of `free` bytes for all: 90 %, less to leave 1 GiB, but at least a quarter."""
    return max(int(LEAST_SHARE * free), min(int(HOST_SHARE * free), free - RESERVED_BYTES)) // ranks


def soak_bytes(job: ProbeJob, device: torch.device, control: dist.ProcessGroup | None) -> int:
    """Bytes that this rank fills: the job's, or its part of the free memory without `WORK_BYTES`.

    All ranks return cached memory before one looks, and have looked before one fills anything. On a CPU they share the
    free memory, each as much as the rank that saw the least.

    Args:
        control: a gloo group; None: this rank is alone.
    """
    release_cached(device)
    if control is not None:
        dist.barrier(group=control)
    if device.type == "cuda":
        free = int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    else:
        free = fillable_bytes(free_bytes(), ranks=1 if control is None else dist.get_world_size(control))
        if control is not None:
            least = torch.tensor([free])
            dist.all_reduce(least, dist.ReduceOp.MIN, group=control)
            free = int(least[0])
    return max(8, min(job.soak_bytes or free, max(free - WORK_BYTES, free // 2)))


def soaked(
    job: ProbeJob, device: torch.device, control: dist.ProcessGroup | None, report: Callable[[Event], None]
) -> Soaked:
    """Products with a known result, and copies from one half of the memory to the other, until the time is over.

    Each pass has its own pattern, every other one the complement of the previous one. From the seconds of a first pass
    over a small part follows the size of the others: at least two fit the time.
    """
    half = soak_bytes(job, device, control) // 8
    source, target = (torch.empty(half, dtype=torch.int32, device=device) for _ in range(2))
    products = [tuple(matrix.to(device) for matrix in factors(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    reported, number, wrong, first = 0.0, 0, 0, ""

    def chunks(size: int) -> Iterator[tuple[int, int]]:
        nonlocal reported
        for start in range(0, size, CHUNK):
            yield start, min(start + CHUNK, size)
            if time.monotonic() - reported > 1:
                reported = time.monotonic()
                report(Phase(f"soak pass {number}", time.time()))

    def compare(actual: Tensor, expected: Tensor, where: str) -> None:
        nonlocal wrong, first
        count, words = differences(actual, expected)
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
            compare(target[start:stop], known(start, stop), f"memory from element {start}")
            for left, right, expected in products:
                compare(left @ right, expected, f"product in {str(expected.dtype).removeprefix('torch.')}")
        return time.monotonic() - begun

    end, tried = time.monotonic() + job.soak_seconds, min(half, TRIED)
    fits = tried * job.soak_seconds / PASSES / verify(tried)
    size = max(tried, min(half, int(fits)))
    while number < PASSES or time.monotonic() < end:
        verify(size)
        number += 1
    return Soaked(bytes=8 * size, passes=number, wrong=wrong, first=first, time=time.time())
