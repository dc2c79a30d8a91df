"""How many rows and columns one program has, how many warps, and how many programs there are."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.operator import require

MOST_COLUMNS = 65_536  # of a row that one program holds: 256 fp32 values in each of 256 threads


def require_columns(kernel: str, columns: int) -> None:
    """Nothing where a row of so many columns fits into one program.

    Raises:
        UnsupportedInputError: it does not, or has none.
    """
    require(1 <= columns <= MOST_COLUMNS, kernel, "columns", f"1 to {MOST_COLUMNS:,}", f"{columns:,}")


def rows_of(x: Tensor) -> Tensor:
    """x as [M, N] with neighbouring columns next to each other, the last dim N; a copy only where it must be."""
    flat = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def block_of(columns: int) -> int:
    """The power of two that holds so many columns: a block of a Triton program."""
    return int(triton.next_power_of_2(columns))


def tile_of(columns: int, most: int = MOST_COLUMNS, values: int = 1) -> tuple[int, int, int]:
    """Rows and columns of a block, and blocks in a row of so many columns, of which a program holds at most `most`.

    As many rows as make 2048 values, so that short rows fill warps. A column is so many values.
    """
    block = min(block_of(columns), most)
    return max(1, 2048 // (values * block)), block, -(-columns // block)


def warps_of(values: int, device: torch.device, each: int = 16) -> int:
    """Warps of a program that holds so many values: about `each` a thread, at most 512 threads."""
    threads = _warp_threads(device)
    return min(512 // threads, max(1, values // (each * threads)))


def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; interpreted, 2 stand for them, so that partial sums have several rows."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _warp_threads(device: torch.device) -> int:
    """Threads of a warp: 32 on NVIDIA and interpreted, 64 on most of AMD's GPUs for data centres."""
    return torch.cuda.get_device_properties(device).warp_size if device.type == "cuda" else 32


def programs_over_rows(rows: int, at_once: int, device: torch.device, most: int = 2) -> int:
    """Programs that divide rows among them, at least 1: at most `most` a multiprocessor."""
    return max(1, min(-(-rows // at_once), most * _multiprocessors(device)))


def stages_of(pass_bytes: int) -> int:
    """Stages of a pipelined loop whose every pass loads so many bytes: the passes that are loaded ahead, and 1.

    A multiprocessor has to have its share of bandwidth times latency on the way, about 25 kB (of an H200, 4.8 TB/s and
    a latency taken as 0.7 us in 132 parts): two programs with two passes of 8 KiB ahead, or with one of 16 KiB. Of its
    228 KiB of shared memory one program may take nearly all for one pass.
    """
    return 3 if pass_bytes < 16_384 else 2 if pass_bytes <= 200_000 else 1


def programs_over_tiles(rows: int, at_once: int, block: int, blocks: int, device: torch.device) -> int:
    """Programs that divide the rows of each of `blocks` blocks of columns among them, at least 1.

    Together 8192 values a multiprocessor, as many as its registers hold with the sums that go with them.
    """
    at_most = max(1, 8192 // (at_once * block)) * _multiprocessors(device) // blocks
    return max(1, min(-(-rows // at_once), at_most))
