"""Whole launches without flush: losses of one process that keeps every version of the weights and is as late."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reference_runs.layout import Schedule
from reference_runs.placement import chunk_layers
from suite.execute.data.loader import batches
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.optim.learning_rate import learning_rate
from suite.job.training_job import Job
from tests.end_to_end.layouts.agreement import differences_from_prediction, loss_bound
from tests.end_to_end.layouts.execution import Executed, Executions
from tests.end_to_end.layouts.table import STEPS, Case

pytestmark = pytest.mark.ranks

CASES = [
    Case("gpt2-mini", "fp32", "pipedream,replicas2-1"),
    pytest.param(Case("gpt2-mini", "fp32", "pipedream-vertical-sync,replicas1-2,micro4"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "pipedream-2bw,replicas2-1,micro4"), marks=pytest.mark.rare),
    pytest.param(Case("llama2-mini", "fp32", "pipedream,replicas1-2,micro4"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "dp2,pp2,pipedream"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "pp2,pipedream"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "pp2,pipedream-2bw"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "pp2,pipedream-vertical-sync,recompute-full"), marks=pytest.mark.rare),
    pytest.param(Case("llama2-mini", "fp32", "pp2,pipedream,micro8"), marks=pytest.mark.rare),
    pytest.param(Case("gpt2-mini", "fp32", "pp4,pipedream,micro8"), marks=pytest.mark.rare),
]
Version = Callable[[int, int], int]  # (stage, micro-batch of the run) -> updates before


def late(job: Job) -> Version:
    """The version of the weights that the schedule of the job gives each micro-batch."""
    layout = job.layout
    counts = layout.stage_replicas or (layout.data_parallel,) * layout.pipeline_stages
    m = job.recipe.global_batch // layout.micro_batch

    def version(stage: int, micro_batch: int) -> int:
        if layout.schedule is Schedule.PIPEDREAM_2BW:
            return max(micro_batch // m - 1, 0)
        decides = stage if layout.schedule is Schedule.PIPEDREAM else 0
        replicas = counts[decides]
        passed = math.ceil(sum(counts[decides:]) / replicas) - 1
        return replicas * max(micro_batch // replicas - passed, 0) // m  # the replica's own micro-batches

    return version


def stage_of(name: str, job: Job) -> int:
    """The stage of a parameter of the whole model; a tied table is the first stage's."""
    if name.startswith("blocks."):
        dealt = chunk_layers(job.architecture.layers, job.layout)
        return next(stage for stage, layers in enumerate(dealt) if int(name.split(".")[1]) in layers)
    return 0 if name.startswith(("embedding", "position")) else job.layout.pipeline_stages - 1


def group_of(name: str, job: Job) -> str | int:
    """The group of gradients that are clipped together: a stage's own, or the tied table."""
    tied = job.architecture.tied_embeddings and name == "embedding.weight"
    return "table" if tied else stage_of(name, job)


def losses(job: Job, version: Version) -> list[float]:
    """The loss of every step of one process."""
    recipe = job.recipe
    decoder = Decoder(job.architecture, recipe)
    initialise(decoder, recipe, seed=job.seed)
    weights = dict(decoder.named_parameters())
    masters = {name: weight.detach().clone() for name, weight in weights.items()}
    groups = [
        {"params": [w for w in masters.values() if w.dim() > 1 or recipe.decay_of_vectors]},
        {"params": [w for w in masters.values() if w.dim() == 1 and not recipe.decay_of_vectors], "weight_decay": 0.0},
    ]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer.value]
    optimizer = kind(
        groups,
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
    )
    history = [{name: master.clone() for name, master in masters.items()}]
    stream, samples = batches(job, replica=0), job.layout.micro_batch
    m, found = recipe.global_batch // samples, []
    for step in range(job.steps):
        for weight in weights.values():
            weight.grad = None
        total = 0.0
        for micro_batch in range(step * m, (step + 1) * m):
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(history[version(stage_of(name, job), micro_batch)][name])
            batch = stream.micro_batch(micro_batch * samples, samples)
            loss: Tensor = decoder(batch.tokens_BT, **batch.arguments) / m
            loss.backward()
            total += loss.item()
        found.append(total)
        for group in {group_of(name, job) for name in weights}:
            torch.nn.utils.clip_grad_norm_(
                [weight for name, weight in weights.items() if group_of(name, job) == group], recipe.gradient_clip
            )
        for name, master in masters.items():
            master.grad = weights[name].grad
        for settings in optimizer.param_groups:
            settings["lr"] = learning_rate(recipe, (step + 1) * recipe.global_batch)
        optimizer.step()
        history.append({name: master.clone() for name, master in masters.items()})
    return found


def furthest(executed: Executed, wanted: list[float]) -> float:
    """The largest difference of a loss, relative to it."""
    own = [[step.loss for step in steps] for steps in executed.steps]
    assert all(len(of_rank) == len(wanted) == STEPS for of_rank in own)
    return max(abs(loss - right) / right for of_rank in own for loss, right in zip(of_rank, wanted, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_loss_is_that_of_one_process_whose_gradients_are_as_late(case: Case, executed: Executions) -> None:
    done = executed(case)
    job = done.job
    assert furthest(done, losses(job, late(job))) <= loss_bound(done)
    assert not list(differences_from_prediction(done))
    m = job.recipe.global_batch // job.layout.micro_batch
    assert furthest(done, losses(job, lambda _, micro_batch: micro_batch // m)) > 3 * loss_bound(done)  # never late
