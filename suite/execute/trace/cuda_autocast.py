"""Autocast as it is on a GPU, for tensors on a CPU: casts by the lists that PyTorch's own headers have for CUDA."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LOWER, FULL, FULL_BY_DTYPE, WIDEST = "LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"
_AUTOCAST = "AutocastCPU"
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_HALF = torch.bfloat16


def lists() -> dict[str, list[str]]:
    """Operators with their overloads by what autocast does with their arguments.

    Source: aten/src/ATen/autocast_mode.h, macros AT_FORALL_*, which every release brings. `aten::norm`, which has a
    macro of its own, is not among them: PyTorch's functions call linalg_vector_norm.
    """
    text = HEADER.read_text(encoding="utf-8")
    found = {}
    for policy in (LOWER, FULL, FULL_BY_DTYPE, WIDEST):
        body = re.search(rf"#define AT_FORALL_{policy}\(_\)((?:.*\\\n)*.*)", text)
        assert body is not None, policy
        names = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body.group(1))
        found[policy] = [".".join(part for part in name if part) for name in names]
    return found


def _is_cast(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


class _Casts:
    """Casts of an autocast region; those of weights are made once."""

    def __init__(self) -> None:
        self._of_weights: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Forget casts of weights, as the end of a region does."""
        self._of_weights.clear()

    def to(self, value: Any, dtype: torch.dtype) -> Any:
        """The argument in `dtype`, if it is a tensor of floating-point numbers and no fp64 ones."""
        if not _is_cast(value) or value.dtype is dtype:
            return value
        is_weight = value.requires_grad and value.is_leaf and not value._is_view() and value.dtype is torch.float32
        if not (is_weight and dtype is _HALF and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self._of_weights:
            self._of_weights[id(value)] = value, value.to(dtype)
        return self._of_weights[id(value)][1]


_CASTS = _Casts()


def cuda_autocast() -> torch.autocast:
    """Autocast to bf16 as it is on a GPU. From then on this process has no other."""
    _replace()
    return torch.autocast("cpu", _HALF)


@cache
def _replace() -> torch.library.Library:
    """Replace what autocast does on a CPU."""
    library = torch.library.Library("aten", "IMPL")
    policies = {name: policy for policy, names in lists().items() for name in names}
    found = torch._C._dispatch_get_registrations_for_dispatch_key(_AUTOCAST)
    of_cpu = [name.removeprefix("aten::") for name in found if name.startswith("aten::")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are kernels already
        for name in dict.fromkeys([*policies, *of_cpu]):
            operator = _overload(name)
            if operator is not None:
                policy = policies.get(name)
                kernel = torch.library.fallthrough_kernel if policy is None else _kernel(operator, policy)
                library.impl(name, kernel, _AUTOCAST)
    forget, is_enabled = torch.clear_autocast_cache, torch.is_autocast_enabled

    def forget_all() -> None:
        forget()
        _CASTS.clear()

    def is_enabled_on(device: str = "cuda") -> bool:
        """Modules ask without a device, and mean a GPU: peft's do."""
        return is_enabled("cpu" if device == "cuda" else device)

    # both until the process ends: the backward pass enters regions of its own
    mock.patch.object(torch, "clear_autocast_cache", forget_all).start()
    mock.patch.object(torch, "is_autocast_enabled", is_enabled_on).start()
    return library


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _kernel(operator: Any, policy: str) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if policy == FULL_BY_DTYPE:
                is_given = kwargs.get("dtype") is not None or any(isinstance(each, torch.dtype) for each in args)
                if is_given or not _is_cast(args[0]):
                    return operator(*args, **kwargs)
                return operator(*args[: names.index("dtype")], **(kwargs | {"dtype": torch.float32}))
            if policy == WIDEST:
                is_wide = any(isinstance(leaf, Tensor) and leaf.dtype is torch.float32 for leaf in tree_leaves(args))
                dtype = torch.float32 if is_wide else _HALF
            else:
                dtype = _HALF if policy == LOWER else torch.float32
            args, kwargs = tree_map(lambda value: _CASTS.to(value, dtype), (args, kwargs))
            return operator(*args, **kwargs)

    return kernel
