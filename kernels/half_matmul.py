"""bf16 and fp16 matrix products on CPUs without instructions for them: through fp32, rounded once.

PyTorch's own fallback there is a scalar loop. Gflop/s of one core, 1024 x 1024 x 1024 (AMD EPYC Milan, AVX2, torch
2.13, 2026-11-21):
            A B     A B^T
    fp32    84      83
    bf16    1.0     10
    fp16    0.9     13
The result is what matrix instructions give: products of 16-bit inputs, accumulated in fp32, rounded once (in fp16 to
infinity beyond 65504). Bytes moved: 2 (M K + K N + M N) as for the instructions, and 4 (M K + K N + M N) written and
read again for the fp32 copies.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

OPERATIONS = ("mm", "addmm", "bmm", "baddbmm")
_libraries: list[Library] = []
_through_fp32: set[torch.dtype] = set()


def reference(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """The product of two matrices of one 16-bit dtype, computed in float64 and rounded once."""
    return (a_MK.double() @ b_KN.double()).to(a_MK.dtype)


def has_instructions(dtype: torch.dtype) -> bool:
    """Whether PyTorch's products in `dtype`, bf16 or fp16, use vector or matrix instructions on this CPU."""
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _through_fp32 else value


def _install(library: Library, name: str) -> None:
    operation = getattr(torch.ops.aten, name)
    original = get_kernel(operation.default, "CPU")
    original_out = get_kernel(operation.out, "CPU")

    def product(keys: Any, *inputs: Any, **scales: Any) -> Tensor:
        dtype = inputs[-1].dtype
        if dtype not in _through_fp32:
            result: Tensor = original.call_boxed(keys, *inputs, **scales)
            return result
        wide: Tensor = original.call_boxed(keys, *(_wide(value) for value in inputs), **scales)
        return wide.to(dtype)

    def product_out(keys: Any, *inputs: Any, out: Tensor, **scales: Any) -> Tensor:
        if inputs[-1].dtype not in _through_fp32:
            original_out.call_boxed(keys, *inputs, out=out, **scales)
            return out
        return out.copy_(original.call_boxed(keys, *(_wide(value) for value in inputs), **scales))

    library.impl(name, product, "CPU", with_keyset=True, allow_override=True)
    library.impl(f"{name}.out", product_out, "CPU", with_keyset=True, allow_override=True)


def compute_products_through_fp32(dtype: torch.dtype) -> None:
    """Replace this process's CPU kernels of mm, addmm, bmm and baddbmm in `dtype`, bf16 or fp16; others keep theirs.

    Autograd, flop counting and saved tensors see the same operators and dtypes as with the instructions.
    """
    _through_fp32.add(dtype)
    if _libraries:
        return
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns once that a kernel is overridden, which is what this does
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid.*")
        for name in OPERATIONS:
            _install(library, name)
    _libraries.append(library)
