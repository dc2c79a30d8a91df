"""Dropout as a GPU computes it, on tensors that PyTorch takes for those of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def dropout_of_gpus() -> Iterator[None]:
    """Within this dropout is one operator that keeps a byte an element, and attention with dropout is fused.

    On a CPU dropout keeps its factors in the input's dtype, and no fused attention has dropout, so that scores are
    stored. Source: aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable; transformers/sdp_utils_cpp.cpp,
    check_for_dropout.
    """
    fused, of_cpu = functional.scaled_dot_product_attention, functional.dropout

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG001  # of it a kernel keeps two numbers
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        return fused(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or inplace or not 0 < p < 1:
            return of_cpu(input, p, training, inplace)
        return torch.native_dropout(input, p, train=True)[0]

    with (
        mock.patch.object(functional, "scaled_dot_product_attention", attention),
        mock.patch.object(functional, "dropout", dropout),
    ):
        yield
