"""Kernels of this machine's 16-bit matrix multiplications, determined without importing torch."""

from __future__ import annotations

from typing import NamedTuple

from reference_runs.run import Precision
from suite.machine.devices import cuda_gpu
from suite.machine.fingerprint import kernel_fact
from suite.machine.gpu import H100, Gpu

WORK_DTYPES = {
    Precision.FP32: "fp32",
    Precision.BF16: "bf16",
    Precision.FP16: "fp16",
    Precision.FP16_GRADIENT_COPY: "fp16",
    Precision.FP16_NO_MASTER: "fp16",
    Precision.BF16_PURE: "bf16",
}

_BF16 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
_FP16 = _BF16 | {"avx512_fp16"}
_BOTH = frozenset({"avx_ne_convert", "avx_vnni_int8"})  # AVX2 with them converts both


def kernels_for(precision: Precision, device: str) -> Kernels:
    """Kernels that the ranks use on this machine, for "cpu" or "cuda"."""
    if device == "cuda":
        return Kernels(cuda=True, gpu=cuda_gpu())
    flags = frozenset(kernel_fact("/proc/cpuinfo", "flags", missing="").split())
    return Kernels(products_through_fp32=not has_half_instructions(precision, flags))


def has_half_instructions(precision: Precision, flags: frozenset[str]) -> bool:
    """Whether PyTorch's products in `precision` use instructions for it on an x86 CPU with these flags.

    The result equals torch's answer in suite.execute.precision. Other CPUs have no known flags; they count as having
    the instructions.
    Source: ideep/utils.hpp, has_bf16_type_support and has_fp16_type_support (oneDNN's instruction sets avx512_core,
    avx512_core_fp16 and avx2_vnni_2).
    """
    needed = _BF16 if WORK_DTYPES[precision] == "bf16" else _FP16
    return precision is Precision.FP32 or not flags or needed <= flags or flags >= _BOTH


class Kernels(NamedTuple):
    """The kernels of a machine, as far as the memory of operators depends on them.

    Args:
        cuda: kernels of a GPU; otherwise those of a CPU.
        products_through_fp32: 16-bit products on a CPU that has no instructions for them (see kernels/half_matmul.py).
        gpu: of kernels of a GPU.
    """

    cuda: bool = False
    products_through_fp32: bool = False
    gpu: Gpu = H100
