"""Traces without shortcuts: python -m tests.execute.trace.unhurried; lines as for suite.execute.trace.

Each operator computes its shapes anew, modes see it one after the other, and optimizers update DTensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from suite.execute.dry_run.fake_tensors import FakeTensors
from suite.execute.dry_run.model_step import ModelStep
from suite.execute.trace import step, updates
from suite.job.trace_job import OptimizerKernel

torch._dynamo.config.fake_tensor_cache_enabled = False
measure = ModelStep.measure


def of_whole(kind: OptimizerKernel, model: nn.Module, layers: Sequence[nn.Module], *, by_shard: bool) -> Any:
    """The optimizers that a launch has."""
    return updates.optimizers(kind, model, layers)


def under_modes(of_step: ModelStep, *modes: Any) -> None:
    """The measured step, under the modes that observe it."""
    (fake,) = (mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, FakeTensors))
    observers = [observer.__self__ for observer in fake.observers]
    fake.observers.clear()
    measure(of_step, *observers, *modes)


step.optimizers = of_whole
ModelStep.measure = under_modes  # type: ignore[method-assign]

import suite.execute.trace.__main__  # noqa: E402, F401  # it answers
