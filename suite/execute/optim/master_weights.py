"""The fp32 master weights of one rank and Adam on them: whole, sharded, or only during the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference_runs.run import Optimizer, Precision, Recipe
from suite.execute.optim.one_pass_update import UpdatesTaken, update_in_one_pass
from suite.job.options import Update

_ADAM: dict[Optimizer, type[torch.optim.Adam]] = {Optimizer.ADAM: torch.optim.Adam, Optimizer.ADAMW: torch.optim.AdamW}


@dataclass(frozen=True)
class MasterWeights:
    """torch.optim.AdamW, or Adam with weight decay in the gradient, on fp32 masters of some stored weights.

    Args:
        weights: what this rank updates, as stored, in the order of all other lists.
        masters: fp32. fp32 weights are their own masters.
        gradient_copies: fp32, kept from step to step; only with fp16-gradient-copy.
        optimizer: PyTorch's.
        in_passing: no master weights (fp16-no-master): `masters` are empty from one update to the next.
        taken: of updates in one pass (`one_pass_update`); None where PyTorch's optimizer updates.
    """

    weights: list[Tensor]
    masters: list[nn.Parameter]
    gradient_copies: list[Tensor]
    optimizer: torch.optim.Optimizer
    in_passing: bool
    taken: UpdatesTaken | None = None

    def update(self, learning_rate: float, gradients: list[Tensor], gradient_factor: float | Tensor = 1.0) -> None:
        """One step with `gradients` times `gradient_factor`, multiplied in fp32.

        fp32 gradients are overwritten. Others are widened first (see `widened`), as are weights without masters. In
        one pass none is.
        """
        gradients = self.widened(gradients)
        if self.taken is not None:
            self._update_in_one_pass(self.taken, learning_rate, gradients, gradient_factor)
            return
        torch._foreach_mul_(gradients, gradient_factor)
        for weight, master, gradient in zip(self.weights, self.masters, gradients, strict=True):
            if self.in_passing:
                master.data = weight.float()
            master.grad = gradient
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        self.optimizer.step()
        if self.weights[0].dtype != torch.float32:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, tuple(self.masters))
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None
            if self.in_passing:
                master.data = _empty(weight)

    def _update_in_one_pass(
        self, taken: UpdatesTaken, learning_rate: float, gradients: list[Tensor], gradient_factor: float | Tensor
    ) -> None:
        assert isinstance(self.optimizer, torch.optim.Adam)
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate
        has_masters = self.weights[0].dtype != torch.float32 and not self.in_passing
        device = self.weights[0].device
        update_in_one_pass(
            self.optimizer,
            taken,
            masters=self.masters,
            updated=[master.detach() for master in self.masters] if has_masters else self.weights,
            gradients=gradients,
            copies=self.weights if has_masters else [],
            gradient_factor=torch.as_tensor(gradient_factor, dtype=torch.float32, device=device),
        )

    def write_to(self, weights: list[Tensor]) -> None:
        """From now on update `weights`, which have the values of those so far, and leave those as they are."""
        for master, before, after in zip(self.masters, self.weights, weights, strict=True):
            if master.untyped_storage()._cdata == before.untyped_storage()._cdata:
                master.data = after
        self.weights[:] = weights

    def widened(self, gradients: list[Tensor]) -> list[Tensor]:
        """`gradients` in fp32: themselves, the kept copies, or new memory that `gradient_bytes` does not count.

        An update in one pass widens them itself: without kept copies they stay as they are.
        """
        if gradients[0].dtype == torch.float32:
            return gradients
        if self.gradient_copies:
            torch._foreach_copy_(self.gradient_copies, gradients)
            return self.gradient_copies
        if self.taken is not None:
            return gradients
        return [gradient.float() for gradient in gradients]

    @property
    def state_tensors(self) -> list[Tensor]:
        """Tensors kept from step to step: masters other than the weights, gradient copies, moments, step counters."""
        stored = {weight.untyped_storage()._cdata for weight in self.weights}
        masters = [m.detach() for m in self.masters if m.untyped_storage()._cdata not in stored]
        states = self.optimizer.state.values()
        state = [value for values in states for value in values.values() if isinstance(value, Tensor)]
        return [*masters, *self.gradient_copies, *state]


def master_weights(
    groups: list[tuple[float, list[Tensor]]],
    recipe: Recipe,
    *,
    make: Callable[[list[dict[str, object]]], torch.optim.Optimizer] | None = None,
    update: Update = Update.FUSED,
    one_pass: bool = False,
) -> MasterWeights:
    """Masters and optimizer for `groups`: weight decay, and the stored weights (fp32 or 16 bit) that have it.

    Args:
        one_pass: whether Adam updates in one pass over memory, by `one_pass_update`.
        make: makes the optimizer of its parameter groups; None: as the recipe and `update` say.
    """
    in_passing = recipe.precision is Precision.FP16_NO_MASTER
    weights: list[Tensor] = []
    masters: list[nn.Parameter] = []
    settings: list[dict[str, object]] = []
    for weight_decay, members in groups:
        group = [nn.Parameter(weight.float()) for weight in members]
        settings.append({"params": group, "weight_decay": weight_decay})
        weights += members
        masters += group
    copies = []
    if recipe.precision is Precision.FP16_GRADIENT_COPY:
        copies = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    optimizer = make(settings) if make else _optimizer(settings, recipe, update)
    if in_passing:
        for weight, master in zip(weights, masters, strict=True):
            master.data = _empty(weight)
    return MasterWeights(weights, masters, copies, optimizer, in_passing, UpdatesTaken() if one_pass else None)


def _optimizer(settings: list[dict[str, object]], recipe: Recipe, update: Update) -> torch.optim.Optimizer:
    if update is Update.ADAFACTOR:
        return torch.optim.Adafactor(settings, lr=recipe.learning_rate, foreach=False)
    return _ADAM[recipe.optimizer](
        settings,
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        fused=update is Update.FUSED,
        foreach=update is Update.FOREACH,
    )


def _empty(weight: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=weight.device)
