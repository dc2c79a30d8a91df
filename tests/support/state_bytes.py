"""Bytes that each precision keeps of a parameter, and the state of a model in one stage."""

from __future__ import annotations

from typing import NamedTuple

import torch

from reference_runs.layout import Layout
from reference_runs.run import Architecture, Precision, Recipe, Workload
from suite.predict.analytic.stage_memory import StageMemory, stage_memory


def state_of(architecture: Architecture, recipe: Recipe, layout: Layout) -> StageMemory:
    return stage_memory(Workload(architecture, recipe, layout), stage=0, micro_batches=1)


class Precise(NamedTuple):
    """Storage of a parameter in each precision: dtypes of weights, gradients and moments, fp32 copies."""

    weights: torch.dtype
    gradients: torch.dtype
    master: bool
    gradient_copy: bool
    moments: torch.dtype = torch.float32


PRECISE = {
    Precision.FP32: Precise(torch.float32, torch.float32, False, False),
    Precision.BF16: Precise(torch.bfloat16, torch.float32, True, False),
    Precision.FP16: Precise(torch.float16, torch.float16, True, False),
    Precision.FP16_GRADIENT_COPY: Precise(torch.float16, torch.float16, True, True),
    Precision.FP16_NO_MASTER: Precise(torch.float16, torch.float16, False, False),
    Precision.BF16_PURE: Precise(torch.bfloat16, torch.bfloat16, False, False, torch.bfloat16),
}
