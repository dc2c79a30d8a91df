"""How a step ends, and whether the host waits to read it before the update begins."""

from __future__ import annotations

from typing import NamedTuple

import torch

from reference_runs.layout import Offload
from suite.job.options import Averaging
from suite.job.training_job import Job


class StepOutcome(NamedTuple):
    """How a step ended.

    Args:
        loss: mean over ranks.
        gradient_norm: of the whole model, before clipping and without the loss scale; not finite after an overflow.
        skipped: whether an overflow skipped the update.
    """

    loss: float
    gradient_norm: float
    loss_scale: float | None
    skipped: bool


def updates_before_reading(job: Job, device: torch.device, *, scaled: bool) -> bool:
    """Whether the update begins before the host has read loss and gradient norm, which it then does once, at the end.

    Not on a CPU, where the host computes; not with a loss scale, whose overflow skips the update; not where the state,
    and so the update, is on the host; and not with 1-bit Adam. A gradient that is not finite ends the run all the same.
    """
    on_device = device.type == "cuda" and job.layout.offload is Offload.NONE
    return on_device and not scaled and job.averaging is not Averaging.ONE_BIT
