"""Decoder layers that are computed again in the backward pass: whole, or all but what costs most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Keep = Callable[[Tensor], object]

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}
_KEPT = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_attention_math.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def recompute(model: nn.Module, layers: Sequence[nn.Module], *, every: int, saves_products: bool, keep: Keep) -> None:
    """Wrap the last of every so many layers, as torchtitan does, so that the backward pass computes it again.

    Args:
        saves_products: keep attention, and every other matrix product from the first of a layer on, as torchtitan's
            selective recomputation by operator does; to it, a product with a bias is one more. Source: torchtitan,
            distributed/activation_checkpoint.py.
        keep: is called with each tensor that is kept so.
    """
    chosen = {id(layer) for layer in layers[every - 1 :: every]}
    options: dict[str, Any] = {"context_fn": partial(_contexts, keep)} if saves_products else {}
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, **options),
        check_fn=lambda module: id(module) in chosen,
    )


def _contexts(keep: Keep) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """The contexts of a layer's forward pass and of its recomputation."""
    products = Counter[bool]()

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator in _PRODUCTS:
            products[context.is_recompute] += 1
        is_kept = operator in _KEPT or (operator in _PRODUCTS and products[context.is_recompute] % 2 == 1)
        if is_kept and not context.is_recompute:
            for leaf in tree_leaves(context.op_output):
                if isinstance(leaf, Tensor):
                    keep(leaf)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: tuple[AbstractContextManager[object], AbstractContextManager[object]] = (
        create_selective_checkpoint_contexts(policy)
    )
    return contexts
