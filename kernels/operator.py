"""How kernels become operators of PyTorch, where they run, and which inputs they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import Library, custom_op, triton_op, wrap_triton

from kernels.interpreter import round_to_nearest

NAMESPACE = "llm_reference_runs"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTERPRETED: bool = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1


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
    it is one opaque call of custom_op. Either way the function itself says what it returns of fake tensors: there
    `launchable` launches nothing.

    Args:
        opaque: custom_op on a GPU too, for a function that asks for what only real tensors have, such as addresses: its
            kernels are launched without `launchable`, and it registers its fake on its own.
    """

    def registered(function: Callable[..., Any]) -> Any:
        make: Any = custom_op if INTERPRETED or opaque else triton_op
        made = make(f"{NAMESPACE}::{name}", function, mutates_args=tuple(mutates))
        if INTERPRETED and not opaque:
            made.register_fake(function)
        return made

    return registered


class _Interpreted(NamedTuple):
    """An interpreted kernel, which computes nothing of fake tensors; PyTorch does the same with compiled ones."""

    kernel: Any

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]
        return lambda x, *others, **named: None if isinstance(x, FakeTensor) else launch(x, *others, **named)


_libraries: list[Library] = []  # an operator lives as long as its library


def host_operator(name: str, *, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function that asks for what only real tensors have as the operator `llm_reference_runs::name`.

    As `operator(name, opaque=True)`, with less work of the host for a call, and without autograd: the operator is for
    the passes of an autograd.Function. It may change nothing that it is given.

    Args:
        fake: what it returns of fake tensors.
    """

    def registered(function: Callable[..., Any]) -> Any:
        library = Library(NAMESPACE, "FRAGMENT")
        _libraries.append(library)
        schema = torch.library.infer_schema(function, mutates_args=())
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(name, function, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    return registered


def launchable(kernel: Any) -> Any:
    """The kernel in the form in which an operator launches it, as always by `[grid](arguments)`."""
    return _Interpreted(kernel) if INTERPRETED else wrap_triton(kernel)


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


def require_vectors(kernel: str, x: Tensor, **vectors: Tensor | None) -> int:
    """The columns N of x [..., N], where the vectors that are given are [N], floats as x, and on its device.

    Raises:
        UnsupportedInputError: one is not, or x has no dim.
    """
    given = {name: vector for name, vector in vectors.items() if vector is not None}
    require_float(kernel, x=x, **given)
    require(x.dim() >= 1, kernel, "dims of x", "1 or more", x.dim())
    columns = x.shape[-1]
    for name, vector in given.items():
        require(vector.shape == (columns,), kernel, f"shape of {name}", f"({columns},)", tuple(vector.shape))
    return columns


def contiguous(tensor: Tensor | None) -> Tensor | None:
    """The tensor, copied only where it is not contiguous; None stays None."""
    return None if tensor is None else tensor.contiguous()
