"""Weights that workers at a parameter store compute, replayed in one process in the order of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from reference_runs.catalog import accumulation, global_batch_at
from reference_runs.run import Optimizer, Recipe
from suite.execute.data.loader import batches
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.optim.learning_rate import learning_rate
from suite.execute.parallel.chunks import operations
from suite.job.synchronisation import updates_of
from suite.job.training_job import Job
from suite.reproduce.plan import Plan, corpus_for, job_for
from tests.support.launches import TEXT


class Replay:
    """Parameters of one model in flat groups, those that decay first, updated shard by shard.

    Shards because sums of squares and Adam's own rounding are those of what a rank holds; nothing else here is of the
    store: plain leaves, plain lists, one thread.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.workers = job, job.layout.ranks
        self.model = Decoder(job.architecture, job.recipe, operations(job.architecture, job.kernels))
        initialise(self.model, job.recipe, seed=job.seed)
        parameters = list(self.model.parameters())
        groups = [[p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() == 1]]
        decays = [job.recipe.weight_decay, 0.0]
        if job.recipe.decay_of_vectors:
            groups, decays = [parameters], decays[:1]
        self.groups = groups
        self.flats = [self._flat([p.detach() for p in group]) for group in groups]
        shards = [[nn.Parameter(flat.chunk(self.workers)[rank].clone()) for flat in self.flats] for rank in self._ranks]
        self.shards = shards
        self.optimizers = [_adam(own, decays, job.recipe) for own in shards]
        self.samples = 0

    @property
    def _ranks(self) -> range:
        return range(self.workers)

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """In one buffer, with zeros up to a multiple of the workers."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        padded = flat.new_zeros(-(-flat.numel() // self.workers) * self.workers)
        padded[: flat.numel()] = flat
        return padded

    def gradient(self, weights: list[Tensor], step: int, worker: int) -> tuple[float, list[Tensor]]:
        """Loss and flat gradients of a worker's step with these weights."""
        for group, flat in zip(self.groups, weights, strict=True):
            offset = 0
            for parameter in group:
                parameter.data.copy_(flat[offset : offset + parameter.numel()].view_as(parameter))
                parameter.grad = None
                offset += parameter.numel()
        recipe, layout = self.job.recipe, self.job.layout
        seen = 0
        for _ in range(step):
            seen += global_batch_at(recipe, seen)
        own = accumulation(recipe, layout)
        first = seen + worker * own * layout.micro_batch
        stream = batches(self.job, replica=worker)
        losses = []
        for number in range(own):
            batch = stream.micro_batch(first + number * layout.micro_batch, layout.micro_batch)
            loss = self.model(batch.tokens_BT, **batch.arguments) / own
            loss.backward()
            losses.append(loss.detach())
        gradients = []
        for group in self.groups:
            assert all(p.grad is not None for p in group)
            gradients.append(self._flat([p.grad for p in group if p.grad is not None]))
        return torch.stack(losses).sum().item(), gradients

    def update(self, gradients: list[list[Tensor]]) -> list[Tensor]:
        """One step by the mean of some gradients; the new weights."""
        recipe, taken = self.job.recipe, len(gradients)
        self.samples += recipe.global_batch // self.workers * taken  # all batches are whole ones
        means = [sum(parts[1:], start=parts[0].clone()) / taken for parts in zip(*gradients, strict=True)]
        squared = sum(
            torch.stack([mean.chunk(self.workers)[rank].norm() for mean in means]).square().sum().double()
            for rank in self._ranks
        )
        assert isinstance(squared, Tensor)
        factor = min(1.0, recipe.gradient_clip / (math.sqrt(squared.item()) + 1e-6))
        for rank in self._ranks:
            for parameter, mean in zip(self.shards[rank], means, strict=True):
                parameter.grad = mean.chunk(self.workers)[rank] * factor
            for settings in self.optimizers[rank].param_groups:
                settings["lr"] = learning_rate(recipe, self.samples) * taken / self.workers
            self.optimizers[rank].step()
        return [torch.cat([own[n].detach() for own in self.shards]) for n in range(len(self.groups))]


def _adam(shards: list[nn.Parameter], decays: list[float], recipe: Recipe) -> torch.optim.Optimizer:
    kind = {Optimizer.ADAM: torch.optim.Adam, Optimizer.ADAMW: torch.optim.AdamW}[recipe.optimizer]
    settings = [{"params": [p], "weight_decay": decay} for p, decay in zip(shards, decays, strict=True)]
    return kind(settings, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, fused=True)


def replayed_losses(plan: Plan, arrivals: list[int], directory: Path) -> list[list[float]]:
    """The loss of every worker in every step, when gradients come in the order of `arrivals`."""
    job = job_for(plan, corpus_for(plan, TEXT), str(directory))
    assert job.synchronisation is not None
    made = updates_of(arrivals, workers=job.layout.ranks, bound=job.synchronisation.bound)
    replay = Replay(job)
    weights = [replay.flats]  # by version
    losses: list[list[float]] = [[] for _ in range(job.layout.ranks)]
    for update in made.updates:
        gradients = []
        for step, worker in update.members:
            loss, gradient = replay.gradient(weights[made.versions[worker][step]], step, worker)
            assert len(losses[worker]) == step
            losses[worker].append(loss)
            gradients.append(gradient)
        weights.append(replay.update(gradients))
    return losses
