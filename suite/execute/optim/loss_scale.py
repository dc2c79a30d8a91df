"""The factor on the loss that keeps fp16 gradients within range, adapted to overflows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reference_runs.run import Recipe

_DEFAULTS = torch.amp.GradScaler("cpu")


class LossScaleError(ArithmeticError):
    """Gradients are not finite at the least loss scale: no scale would help."""


@dataclass
class LossScale:
    """Dynamic loss scale: the loss is multiplied by `scale`, the gradient divided by it before the update.

    After a step whose gradient (on any rank) is
        not finite    the step is skipped; the scale halves, not below `least`; good steps count from 0
        finite        after `growth_interval` such steps in a row the scale doubles, while fp32 can hold it

    Source: torch.amp.GradScaler; apex, amp/scaler.py, LossScaler. Differs from GradScaler by the least scale, at which
    it gives up, as DeepSpeed does (min_loss_scale 1; Megatron-LM skips steps for ever). There is no hysteresis
    (GPT-NeoX: the first overflow of two leaves the scale as it is).

    Args:
        good_steps: finite ones since the scale last changed or overflowed.
    """

    scale: float
    growth_interval: int
    least: float
    good_steps: int = 0

    def adapt(self, *, finite: bool) -> None:
        """Set the scale of the next step; `finite`: whether this one's gradient was finite on every rank.

        Raises:
            LossScaleError: it was not, at the least scale.
        """
        if finite:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.good_steps = 0
                grown = self.scale * _DEFAULTS.get_growth_factor()
                self.scale = grown if grown <= torch.finfo(torch.float32).max else self.scale
            return
        if self.scale <= self.least:
            raise LossScaleError(f"gradients overflow at the least loss scale, {self.least:g}")
        self.good_steps = 0
        self.scale = max(self.scale * _DEFAULTS.get_backoff_factor(), self.least)


def loss_scale(recipe: Recipe) -> LossScale | None:
    """The loss scale that a run of `recipe` starts with; None where the precision needs none (fp32, bf16).

    The least scale is 1, or the initial scale if that is smaller.
    """
    if not recipe.precision.scaled:
        return None
    assert recipe.initial_loss_scale is not None
    assert recipe.loss_scale_window is not None
    return LossScale(recipe.initial_loss_scale, recipe.loss_scale_window, least=min(1.0, recipe.initial_loss_scale))
