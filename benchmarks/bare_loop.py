"""The training loop that a PyTorch user writes without the suite: plain parameters, fp32 masters, fused Adam.

It shares the training task with the suite: decoder, initial weights, samples, and the recipe's learning rate, loss
scale and clip. Everything else is separate. Parameters are `nn.Parameter`s of the recipe's dtype, without
parametrization, flat buffers or wrappers. Masters, gradients and updates go through PyTorch's foreach functions, which
are its fastest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reference_runs.catalog import global_batch_at
from reference_runs.run import Optimizer, Precision
from suite.execute.data.token_stream import token_stream
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.optim.learning_rate import gradient_factor, learning_rate
from suite.execute.optim.loss_scale import loss_scale
from suite.execute.precision import DTYPES
from suite.job.training_job import Job


class BareLoop:
    """One process that trains the whole model of a job, step after step.

    As in the recipes, gradients of bf16 weights are accumulated over micro-batches in fp32, those of fp16 weights in
    fp16.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        recipe = job.recipe
        self.job, self.device = job, device
        self.model = Decoder(job.architecture, recipe, fused_attention=job.layout.fused_attention)
        self.model.recompute(job.layout.recomputation, checkpoint_layers=job.layout.checkpoint_layers)
        initialise(self.model, recipe, seed=job.seed)
        self.model.to(device=device, dtype=DTYPES[recipe.precision])
        self.parameters = list(self.model.parameters())
        self.temporary_masters = recipe.precision is Precision.FP16_NO_MASTER
        self.masters = [self._master(parameter) for parameter in self.parameters]
        if recipe.precision is Precision.FP16_GRADIENT_COPY:
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            decays = parameter.dim() > 1 or recipe.decay_of_vectors
            groups.setdefault(recipe.weight_decay if decays else 0.0, []).append(master)
        rule = torch.optim.AdamW if recipe.optimizer is Optimizer.ADAMW else torch.optim.Adam
        self.optimizer = rule(
            [{"params": members, "weight_decay": decay} for decay, members in groups.items()],
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.epsilon,
            fused=True,
        )
        self._stream = token_stream(job)
        self._scale = loss_scale(recipe)
        self._seen = self._trained = 0

    def step(self, clipping_norm: float | None = None) -> tuple[float, float]:
        """One step: its loss, and the norm of the gradient without the loss scale.

        Args:
            clipping_norm: used for clipping instead of the loop's norm: the norm of the same gradient without the loss
                scale, summed in another order.
        """
        samples = self.job.layout.micro_batch
        batch = global_batch_at(self.job.recipe, self._seen)
        micro_batches = batch // samples
        scale = self._scale.scale if self._scale else 1.0
        total = torch.zeros((), device=self.device)
        for number in range(micro_batches):
            tokens, arguments = self._stream.micro_batch(self._seen + number * samples, samples).to(self.device)
            loss = self.model(tokens, **arguments) / micro_batches
            (loss * scale).backward()
            total += loss.detach()
            if self.job.recipe.precision is Precision.BF16:
                self._accumulate_in_fp32()
        self._seen += batch
        gradients = self._fp32_gradients()
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if self._scale is not None:
            self._scale.adapt(finite=math.isfinite(norm))
        if math.isfinite(norm):
            self._trained += batch
            clipping = norm if clipping_norm is None else clipping_norm * scale
            self._update(gradients, gradient_factor(self.job.recipe, clipping, loss_scale=scale))
        if self.job.recipe.precision is not Precision.FP16_GRADIENT_COPY:
            self.optimizer.zero_grad()
        self.model.zero_grad()
        return total.item(), norm / scale

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if self.job.recipe.precision is Precision.FP32:
            return parameter
        if self.temporary_masters:
            return nn.Parameter(torch.empty(0, device=self.device))
        return nn.Parameter(parameter.detach().float())

    def _accumulate_in_fp32(self) -> None:
        if self.masters[0].grad is None:
            for master, gradient in zip(self.masters, _gradients(self.parameters), strict=True):
                master.grad = gradient.float()
        else:
            torch._foreach_add_(_gradients(self.masters), _gradients(self.parameters))
        self.model.zero_grad()

    def _fp32_gradients(self) -> list[Tensor]:
        """The gradients of the masters; for temporary masters and fp16 gradients, copies for the update."""
        if self.job.recipe.precision is Precision.FP16_GRADIENT_COPY:
            kept = _gradients(self.masters)
            torch._foreach_copy_(kept, _gradients(self.parameters))
            return kept
        if self.job.recipe.precision in (Precision.FP16, Precision.FP16_NO_MASTER):
            return [gradient.float() for gradient in _gradients(self.parameters)]
        return _gradients(self.masters)

    def _update(self, gradients: list[Tensor], factor: float) -> None:
        torch._foreach_mul_(gradients, factor)
        for parameter, master, gradient in zip(self.parameters, self.masters, gradients, strict=True):
            if self.temporary_masters:
                master.data = parameter.detach().float()
            master.grad = gradient
        for settings in self.optimizer.param_groups:
            settings["lr"] = learning_rate(self.job.recipe, self._trained)
        self.optimizer.step()
        if self.masters[0] is not self.parameters[0]:
            with torch.no_grad():
                torch._foreach_copy_(tuple(self.parameters), tuple(self.masters))
        if self.temporary_masters:
            for master in self.masters:
                master.data = torch.empty(0, device=self.device)


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """After a backward pass every parameter has one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
