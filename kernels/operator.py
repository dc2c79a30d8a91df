"""What every kernel shares: where it runs, which inputs it takes, and how many rows and columns one program has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton

from kernels.interpreter import round_to_nearest

NAMESPACE = "llm_reference_runs"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTERPRETED: bool = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1
MOST_COLUMNS = 65_536  # of a row that one program holds: 256 fp32 values in each of 256 threads


class UnsupportedInputError(ValueError):
    """An input that a kernel does not take: which, what is allowed, what came."""


def runs_triton(x: Tensor) -> bool:
    """Whether Triton's kernel runs on this tensor: on CUDA, or interpreted; else the plain reference does."""
    return x.is_cuda or INTERPRETED


if INTERPRETED:
    round_to_nearest()


def operator(name: str, *, mutates: Sequence[str] = (), opaque: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as the operator `llm_reference_runs::name`, which changes the arguments in `mutates` alone.

    With torch.library's triton_op torch.compile looks into it; interpreted, where there is no compiled kernel to see,
    it is one opaque call of custom_op, so that tracing and fake tensors work there too. So it is where a function asks
    for what only real tensors have, such as addresses; its kernels are launched without `launchable`.
    """
    registered: Any = custom_op if INTERPRETED or opaque else triton_op
    return lambda function: registered(f"{NAMESPACE}::{name}", function, mutates_args=tuple(mutates))


def launchable(kernel: Any) -> Any:
    """The kernel in the form in which an operator launches it, as always by `[grid](arguments)`."""
    return kernel if INTERPRETED else wrap_triton(kernel)


def require(condition: bool, kernel: str, what: str, allowed: str, got: object) -> None:
    """Nothing where the condition holds.

    Raises:
        UnsupportedInputError: it does not.
    """
    if not condition:
        raise UnsupportedInputError(f"{kernel}: {what}: allowed {allowed}, got {got}")


def require_float(kernel: str, **tensors: Tensor) -> None:
    """Nothing where all tensors are of a dtype that kernels take, and on one device.

    Raises:
        UnsupportedInputError: one is not.
    """
    (first, one), *_ = tensors.items()
    for name, tensor in tensors.items():
        require(tensor.dtype in FLOATS, kernel, f"dtype of {name}", "float32, bfloat16, float16", tensor.dtype)
        require(tensor.device == one.device, kernel, f"device of {name}", f"{first}'s, {one.device}", tensor.device)


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


def rows_at_once(block: int) -> int:
    """Rows of `block` columns that one program holds: as many as make 2048 values, so that short rows fill warps."""
    return max(1, 2048 // block)


def warps_of(values: int) -> int:
    """Warps of a program that holds so many values: about 16 a thread, at most 16 warps."""
    return min(16, max(1, values // 512))


def _multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; interpreted, 2 stand for them, so that partial sums have several rows."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def programs_over_rows(rows: int, at_once: int, device: torch.device) -> int:
    """Programs that divide rows among them and keep partial sums, at least 1: two a multiprocessor."""
    return max(1, min(-(-rows // at_once), 2 * _multiprocessors(device)))


def stages_of(lap_bytes: int) -> int:
    """Stages of a pipelined loop whose every lap loads so many bytes: the laps that are loaded ahead, and 1.

    A multiprocessor has to have its share of bandwidth times latency on the way, about 25 kB (of an H200, 4.8 TB/s and
    a latency taken as 0.7 us in 132 parts): two programs with two laps of 8 KiB ahead, or with one of 16 KiB. Of its
    228 KiB of shared memory one program may take nearly all for one lap.
    """
    return 3 if lap_bytes < 16_384 else 2 if lap_bytes <= 131_072 else 1


def programs_over_tiles(rows: int, at_once: int, block: int, blocks: int, device: torch.device) -> int:
    """Programs that divide the rows of each of `blocks` blocks of columns among them, at least 1.

    Together 8192 values a multiprocessor, as many as its registers hold with the sums that go with them.
    """
    at_most = max(1, 8192 // (at_once * block)) * _multiprocessors(device) // blocks
    return max(1, min(-(-rows // at_once), at_most))
