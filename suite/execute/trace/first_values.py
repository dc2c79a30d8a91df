"""Modules that are built without first values of their weights, which tensors without memory do not have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor


@contextmanager
def without_first_values() -> Iterator[None]:
    """Within this the functions of torch.nn.init leave tensors as they are.

    Some draw numbers until all lie within bounds, which those of tensors without memory never do.
    """
    names = [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(torch.nn.init, name, _same))
        if "transformers" in sys.modules:
            from transformers.initialization import TORCH_INIT_FUNCTIONS as OF_TRANSFORMERS

            stack.enter_context(mock.patch.dict(OF_TRANSFORMERS, dict.fromkeys(OF_TRANSFORMERS, _same)))
        yield


def _same(tensor: Tensor, *_: object, **__: object) -> Tensor:
    return tensor
