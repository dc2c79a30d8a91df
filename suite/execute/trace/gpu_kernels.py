"""Dropout and attention as a GPU computes them, on tensors that PyTorch takes for those of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """Within this dropout is one operator that keeps a byte an element, and attention is fused with dropout, and where
    values are narrower than keys (DeepSeek's).

    On a CPU dropout keeps its factors in the input's dtype, and no fused attention has either, so that scores are
    stored. Source: aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable; transformers/sdp_utils_cpp.cpp,
    check_for_dropout and check_head_dim_size_cpp; transformers/cuda/sdp_utils.cpp, check_head_dim_size_mem_efficient.
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
        if attn_mask is None and query.shape[-1] != value.shape[-1] and not options.get("enable_gqa"):
            is_trained = any(each.requires_grad for each in (query, key, value))
            efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention
            options.pop("enable_gqa", None)
            found: Tensor = efficient(query, key, value, None, is_trained, 0.0, is_causal, **options)[0]
            return found
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
