"""Every public function launches its kernel wherever Triton runs, and computes by its reference elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.agreement import DEVICE, normal

X, ONES = normal(4, 8, dtype=torch.float32), torch.ones(8, device=DEVICE)
TARGETS = torch.zeros(4, dtype=torch.int64, device=DEVICE)
SETTINGS = {"step": 1, "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}


def heads() -> Tensor:
    return normal(1, 2, 4, 8, dtype=torch.float32)


CALLS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda module: module.adamw(X.clone(), X, X.clone(), X.square(), **SETTINGS),
    "bias_activation": lambda module: module.bias_activation(X, ONES, "gelu"),
    "cross_entropy": lambda module: module.cross_entropy(X, TARGETS),
    "geglu": lambda module: module.geglu(X, ONES),
    "gradient_norm": lambda module: module.gradient_norm(X),
    "layer_norm": lambda module: module.layer_norm(X, ONES, ONES, 1e-5),
    "linear_cross_entropy": lambda module: module.linear_cross_entropy(X, X, TARGETS),
    "masked_softmax": lambda module: module.masked_softmax(heads(), 0.5),
    "parallel_layer_norms": lambda module: module.parallel_layer_norms(X, ONES, ONES, ONES, ONES, 1e-5),
    "residual_layer_norm": lambda module: module.residual_layer_norm(X, X, ONES, ONES, 1e-5),
    "residual_rms_norm": lambda module: module.residual_rms_norm(X, X, ONES, 1e-5),
    "rms_norm": lambda module: module.rms_norm(X, ONES, 1e-5),
    "rotary": lambda module: module.rotary(heads(), heads(), torch.ones(2, 4, 8, device=DEVICE)),
    "sign_pack": lambda module: module.sign_pack(X, torch.zeros_like(X)),
    "swiglu": lambda module: module.swiglu(X, ONES),
}


class ReferenceCalledError(Exception):
    """The plain reference computes."""


@pytest.mark.parametrize("name", CALLS)  # each patches a module
def test_the_reference_computes_only_where_triton_does_not_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"kernels.{name}")

    def reference(*_: object, **__: object) -> None:
        raise ReferenceCalledError

    monkeypatch.setattr(module, "reference", reference)
    CALLS[name](module)
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    with pytest.raises(ReferenceCalledError):
        CALLS[name](module)
