"""The fp32 master weights of one rank and Adam on them: whole, sharded, or only in passing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference_runs.run import Optimizer, Precision, Recipe
from suite.job.options import Update

_RULES: dict[Optimizer, type[torch.optim.Adam]] = {Optimizer.ADAM: torch.optim.Adam, Optimizer.ADAMW: torch.optim.AdamW}


@dataclass(frozen=True)
class MasterWeights:
    """torch.optim.AdamW, or Adam with weight decay in the gradient, on fp32 masters of some stored weights.

    Args:
        weights: what this rank updates, as stored, in the order of all other lists.
        masters: fp32. fp32 weights are their own masters. Without master weights (fp16-no-master) they are empty from
            one update to the next.
        gradient_copies: fp32, kept from step to step; none except with fp16-gradient-copy.
    """

    weights: list[Tensor]
    masters: list[nn.Parameter]
    gradient_copies: list[Tensor]
    rule: torch.optim.Optimizer
    in_passing: bool

    def update(self, learning_rate: float, gradients: list[Tensor], gradient_factor: float | Tensor = 1.0) -> None:
        """One step with `gradients` times `gradient_factor`, multiplied in fp32.

        fp32 gradients are overwritten. Others are widened first (see `widened`). So are the weights, where there are no
        master weights.
        """
        gradients = self.widened(gradients)
        torch._foreach_mul_(gradients, gradient_factor)
        for weight, master, gradient in zip(self.weights, self.masters, gradients, strict=True):
            if self.in_passing:
                master.data = weight.float()
            master.grad = gradient
        for settings in self.rule.param_groups:
            settings["lr"] = learning_rate
        self.rule.step()
        if self.weights[0].dtype != torch.float32:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, tuple(self.masters))
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None
            if self.in_passing:
                master.data = _nothing(weight)

    def widened(self, gradients: list[Tensor]) -> list[Tensor]:
        """`gradients` in fp32: themselves, in the kept copies, or in new memory, 4 bytes an element that
        `gradient_bytes` does not count."""
        if gradients[0].dtype == torch.float32:
            return gradients
        if self.gradient_copies:
            torch._foreach_copy_(self.gradient_copies, gradients)
            return self.gradient_copies
        return [gradient.float() for gradient in gradients]

    @property
    def state_tensors(self) -> list[Tensor]:
        """What the optimizer keeps from step to step: masters that are not the weights themselves, gradient copies,
        moments and step counters. The last two exist from the first update on."""
        apart = [
            master.detach()
            for weight, master in zip(self.weights, self.masters, strict=True)
            if not _same_storage(weight, master)
        ]
        state = [value for values in self.rule.state.values() for value in values.values() if isinstance(value, Tensor)]
        return [*apart, *self.gradient_copies, *state]


def master_weights(
    groups: list[tuple[float, list[Tensor]]],
    recipe: Recipe,
    *,
    rule: Callable[[list[dict[str, object]]], torch.optim.Optimizer] | None = None,
    update: Update = Update.FUSED,
) -> MasterWeights:
    """Masters and optimizer for `groups`: weight decay, and the stored weights (fp32 or 16 bit) that have it.

    Args:
        rule: makes the optimizer of its parameter groups; None: as the recipe and `update` say.
    """
    in_passing = recipe.precision is Precision.FP16_NO_MASTER
    weights: list[Tensor] = []
    masters: list[nn.Parameter] = []
    settings: list[dict[str, object]] = []
    for weight_decay, members in groups:
        own = [nn.Parameter(weight.float()) for weight in members]
        settings.append({"params": own, "weight_decay": weight_decay})
        weights += members
        masters += own
    copies = []
    if recipe.precision is Precision.FP16_GRADIENT_COPY:
        copies = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    optimizer = rule(settings) if rule else _recorded_rule(settings, recipe, update)
    if in_passing:
        for weight, master in zip(weights, masters, strict=True):
            master.data = _nothing(weight)
    return MasterWeights(weights, masters, copies, optimizer, in_passing)


def _recorded_rule(settings: list[dict[str, object]], recipe: Recipe, update: Update) -> torch.optim.Optimizer:
    if update is Update.ADAFACTOR:
        return torch.optim.Adafactor(settings, lr=recipe.learning_rate, foreach=False)
    betas = (recipe.beta1, recipe.beta2)
    return _RULES[recipe.optimizer](
        settings,
        lr=recipe.learning_rate,
        betas=betas,
        eps=recipe.epsilon,
        fused=update is Update.FUSED,
        foreach=update is Update.FOREACH,
    )


def _nothing(weight: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=weight.device)


def _same_storage(weight: Tensor, master: Tensor) -> bool:
    return weight.untyped_storage().data_ptr() == master.untyped_storage().data_ptr()
