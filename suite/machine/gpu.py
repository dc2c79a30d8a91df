"""A GPU, its libraries as far as memory and attention depend on them, and its errors in what a rank said."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

KIB = 1024
HEAD_DIM_STEP = 8  # of fused attention in 16 bit; PyTorch pads other head sizes
WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_ERROR = re.compile(r"(?:CUDA (?:driver )?error: |Cuda failure ).*")
_RANK = re.compile(r"\[rank(\d+)\]|\bRank (\d+)\]")  # of PyTorch's log, and of NCCL's watchdog
MOST_CHARACTERS = 300


class Gpu(NamedTuple):
    """Facts that a process with torch reports.

    Args:
        capability: major and minor version of the architecture: 9, 0 is Hopper.
        processors: streaming multiprocessors; `threads` that each can hold.
        cudnn: version as cuDNN states it: 92000 is 9.20.0; 0 without cuDNN.
        torch: major and minor version.
        workspace_config: CUBLAS_WORKSPACE_CONFIG, where it is set.
    """

    capability: tuple[int, int] = (9, 0)
    processors: int = 132
    threads: int = 2048
    cudnn: int = 92000
    torch: tuple[int, int] = (2, 13)
    workspace_config: str = ""


H100 = Gpu()  # of predictions for no particular machine, and of records that do not say


def recorded_gpu(environment: Mapping[str, str]) -> Gpu:
    """The GPU of a recorded rank's environment."""
    if "gpu_capability" not in environment:
        return H100
    return Gpu(
        _version(environment["gpu_capability"]),
        int(environment["gpu_processors"]),
        int(environment["gpu_threads"]),
        int(environment["cudnn"]),
        _version(environment["torch"]),
        environment.get("cublas_workspace_config", ""),
    )


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


class SdpaBackend(enum.StrEnum):
    """PyTorch's implementations of fused attention on CUDA."""

    CUDNN = "cudnn"
    FLASH = "flash"
    FLASH_3 = "FlashAttention 3"
    EFFICIENT = "memory-efficient"


def sdpa_backend(gpu: Gpu, *, half: bool, head_dim: int, dropout: float = 0.0, flash_3: bool = False) -> SdpaBackend:
    """The kernel that scaled_dot_product_attention takes for a causal mask.

    Where it is activated, FlashAttention 3 computes all that PyTorch's flash attention would, and cuDNN is left out.

    fp32 has the memory-efficient one. In 16 bit cuDNN comes first on Hopper and on Blackwell (10.0) from cuDNN 9.15.1
    on, for head sizes in steps of 8 up to 256 (128 on Blackwell); from torch 2.12 on for dropout in steps of 1/16. All
    others have flash attention, for which PyTorch pads head sizes to steps of 8.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention,
    check_cudnn_tensor_shapes; as torch 2.11 and 2.13 answer on simulated devices.
    """
    if not half or gpu.capability < (8, 0):
        return SdpaBackend.EFFICIENT
    if flash_3:
        return SdpaBackend.FLASH_3
    most = {(9, 0): 256, (10, 0): 128}.get(gpu.capability, 0) if gpu.cudnn > 91500 else 0
    drops = gpu.torch < (2, 12) or (16 * dropout).is_integer()
    return SdpaBackend.CUDNN if head_dim % HEAD_DIM_STEP == 0 and head_dim <= most and drops else SdpaBackend.FLASH


def cublas_workspace_bytes(gpu: Gpu) -> int:
    """Bytes of the workspace that PyTorch gives cuBLAS and cuBLASLt together, for each thread and stream that multiply.

    As CUBLAS_WORKSPACE_CONFIG says, in pairs of KiB and number (":4096:2:16:8"). Otherwise 32 MiB on Hopper and, from
    torch 2.12 on, on what came after it; 8 MiB and 128 KiB elsewhere. A thread of autograd's runs the backward pass, so
    that a training process holds two.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize, getCUDABlasLtWorkspaceSize (unified).
    """
    numbers = [int(number) for number in gpu.workspace_config.split(":") if number.isdigit()]
    if numbers and len(numbers) % 2 == 0:
        return sum(KIB * size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
    large = gpu.capability == (9, 0) or (gpu.capability > (9, 0) and gpu.torch >= (2, 12))
    return KIB * (4096 * 8 if large else 4096 * 2 + 16 * 8)


def cuda_error(text: str) -> str:
    """The first CUDA error of a text; empty without one."""
    found = _ERROR.search(text)
    return "" if found is None else found[0][:MOST_CHARACTERS]


def cuda_errors(log: str) -> dict[int | None, str]:
    """The first CUDA error of each rank in a log of all; under None, of lines that name no rank.

    An error of a kernel or of the memory often ends in NCCL's watchdog, which logs it and aborts: the rank itself
    cannot report it any more.
    """
    errors: dict[int | None, str] = {}
    for line in log.splitlines():
        if error := cuda_error(line):
            rank = _RANK.search(line)
            errors.setdefault(None if rank is None else int(rank[1] or rank[2]), error)
    return errors
