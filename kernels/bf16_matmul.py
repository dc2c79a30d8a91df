"""bf16 matrix products on CPUs without bf16 matrix instructions: through fp32, rounded once.

PyTorch's own fallback there is a scalar loop: 1.0 Gflop/s a core against 91 in fp32 (1024 x 1024 x 1024, AMD EPYC
Milan, one thread, torch 2.13, 2026-11-21). The result is what bf16 matrix instructions give: products of bf16
inputs, accumulated in fp32, rounded to bf16 once. Bytes moved: 2 (M K + K N + M N) as for the instructions, and
4 (M K + K N + M N) written and read again for the fp32 copies.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, get_kernel

OPERATIONS = ("mm", "addmm", "bmm", "baddbmm")
_libraries: list[Library] = []


def reference(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    """The bf16 product of bf16 matrices, computed in float64 and rounded once."""
    return (a_MK.double() @ b_KN.double()).to(torch.bfloat16)


def has_instructions() -> bool:
    """Whether PyTorch's bf16 matrix products use vector or matrix instructions on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype is torch.bfloat16 else value


def _install(library: Library, name: str) -> None:
    operation = getattr(torch.ops.aten, name)
    original = get_kernel(operation.default, "CPU")
    original_out = get_kernel(operation.out, "CPU")

    def product(keys: Any, *inputs: Any, **scales: Any) -> Tensor:
        if inputs[-1].dtype is not torch.bfloat16:
            result: Tensor = original.call_boxed(keys, *inputs, **scales)
            return result
        wide: Tensor = original.call_boxed(keys, *(_wide(value) for value in inputs), **scales)
        return wide.to(torch.bfloat16)

    def product_out(keys: Any, *inputs: Any, out: Tensor, **scales: Any) -> Tensor:
        if inputs[-1].dtype is not torch.bfloat16:
            original_out.call_boxed(keys, *inputs, out=out, **scales)
            return out
        return out.copy_(original.call_boxed(keys, *(_wide(value) for value in inputs), **scales))

    library.impl(name, product, "CPU", with_keyset=True, allow_override=True)
    library.impl(f"{name}.out", product_out, "CPU", with_keyset=True, allow_override=True)


def compute_bf16_products_through_fp32() -> None:
    """Replace this process's CPU kernels of bf16 mm, addmm, bmm and baddbmm; other dtypes keep theirs.

    Autograd, flop counting and saved tensors see the same operators and dtypes as with the instructions.
    """
    if _libraries:
        return
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns once that a kernel is overridden, which is what this does
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid.*")
        for name in OPERATIONS:
            _install(library, name)
    _libraries.append(library)
