"""A small layer with experts."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from reference_runs.run import Activation, Architecture, Balancing, Gate, Norm
from suite.execute.model.block import feed_forward
from suite.execute.model.experts import Experts
from suite.execute.model.torch_operations import TorchOperations
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

PLAN = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)


def mixture(**changes: Any) -> Architecture:
    """Layers of 6 experts, of which a token takes 2."""
    shape: dict[str, Any] = {
        "norm": Norm.PRE_RMS_NORM,
        "activation": Activation.SWIGLU,
        "biases": False,
        "hidden": 12,
        "ffn_hidden": 20,
        "experts": 6,
        "experts_per_token": 2,
        "expert_ffn_hidden": 5,
        "gate": Gate.SOFTMAX_OF_CHOSEN,
        "balancing": Balancing.NONE,
    }
    architecture = msgspec.structs.replace(PLAN.architecture, **(shape | changes))
    architecture.check("test")
    return architecture


def layer_of(architecture: Architecture) -> Experts:
    """A layer whose weights, and biases of experts, are drawn anew."""
    torch.manual_seed(7)
    layer = feed_forward(architecture, TorchOperations(architecture))
    assert isinstance(layer, Experts)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
        if layer.router.bias is not None:
            layer.router.bias.normal_(std=0.5)
    return layer
