"""Bytes that autograd keeps for a backward pass, counted by hooks on what it saves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def saved_storage_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Bytes of the distinct storages that `forward` saves for the backward pass, without the model's own parameters."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no storage takes the place of another

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())
