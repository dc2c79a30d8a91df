"""A rank's part of a pipeline without flush: its weights in versions, its optimizers, and its neighbours."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from reference_runs.catalog import global_batch_at
from reference_runs.run import Recipe
from suite.execute.model.decoder import Decoder
from suite.execute.parallel.asynchronous_pipeline import Versioned
from suite.execute.parallel.local_parameter import LocalParameter
from suite.execute.parallel.mesh import DATA, PIPELINE, pipeline_stage
from suite.execute.parallel.neighbours import Neighbour, ReplicatedNeighbour, StageLink
from suite.execute.parallel.scattered_gradients import ReplicaGradients, replica_gradients
from suite.execute.parallel.sharded_adamw import TensorAdamW, whole_adamw
from suite.execute.parallel.tied_table import TiedTable
from suite.execute.parallel.weight_versions import VersionRule, WeightVersions
from suite.execute.precision import DTYPES, WeightGroup
from suite.job.training_job import Job


@dataclass(frozen=True)
class WithoutFlush:
    """A stage's parts.

    Args:
        own: weights that no other stage has.
        optimizer: theirs.
        table: the one that first and last stage share, on these.
        replicas: its gradients, where other ranks have the same stage.
        before, after: the neighbours; None at the ends.
    """

    own: Versioned
    optimizer: TensorAdamW
    leaves: list[LocalParameter]
    table: TiedTable | None
    replicas: ReplicaGradients | None
    before: StageLink | None
    after: StageLink | None

    @property
    def versioned(self) -> list[Versioned]:
        return [self.own] if self.table is None else [self.own, self.table.versioned]

    @property
    def state_tensors(self) -> list[Tensor]:
        table = [] if self.table is None else self.table.optimizer.state_tensors
        return [*self.optimizer.state_tensors, *table]

    def have(self, update: int) -> None:
        """Have what is kept after so many updates, optimizer states too; its values are still to be loaded."""
        self.optimizer.step(0.0)
        rule = self.own.rule
        ended = rule.first(update)
        self.own.weights.have(oldest=rule.oldest(ended), newest=update, storages=rule.storages(ended))
        if self.table is not None:
            self.table.optimizer.step(0.0)
            self.table.have(update)

    def kept(self, update: int) -> Iterator[tuple[str, Tensor]]:
        """Tensors that passes after `update` updates need, by name: versions, optimizer states, the table's sums."""
        parts = [("own", self.own, self.optimizer)]
        if self.table is not None:
            parts.append(("table", self.table.versioned, self.table.optimizer))
            yield from ((f"table sum {number}", each) for number, each in enumerate(self.table.sums()))
        for name, (weights, rule), optimizer in parts:
            for version, flats in weights.kept(rule.oldest(rule.first(update))).items():
                yield from ((f"{name} version {version}: {number}", flat) for number, flat in enumerate(flats))
            yield from ((f"{name} state {number}", each) for number, each in enumerate(optimizer.state_tensors))

    def step(self, learning_rate: float, gradient_factor: float | Tensor = 1.0) -> None:
        """Update what the stage alone has."""
        self.optimizer.step(learning_rate, gradient_factor)

    def sum_over_replicas(self, loss: Tensor) -> None:
        """Make all gradients of the stage, and the loss, those of all replicas together.

        Not those of a shared table whose ends differ in replicas: all of these sum it at once.
        """
        if self.replicas is not None:
            apart = self.table is None or bool(self.own.rule.of_stages)
            self.replicas.finish(*([] if apart or self.table is None else [self.table.leaf.gradient]), loss)

    def clear(self) -> None:
        """Forget the gradients of what the stage alone has."""
        if self.replicas is not None:
            self.replicas.clear()
            return
        for leaf in self.leaves:
            leaf.parameter.grad = None


def ramped_batches(recipe: Recipe) -> list[int]:
    """Samples of each step before the first one of the whole batch."""
    batches: list[int] = []
    while (batch := global_batch_at(recipe, sum(batches))) < recipe.global_batch:
        batches.append(batch)
    return batches


def turns(rule: VersionRule, other: int) -> list[int]:
    """Ranks of the replicas of stage `other` that take the micro-batches of this one, until the turns repeat."""
    first, replicas = sum(rule.of_stages[:other]), rule.of_stages[other]
    period = math.lcm(rule.replicas, replicas) // rule.replicas
    return [first + (number * rule.replicas + rule.replica) % replicas for number in range(period)]


def left_over(rule: VersionRule) -> int:
    """Outputs of the stage before for this replica that no step takes: it is further ahead than this stage is."""
    upper = rule.at(rule.stage - 1)
    taken, sent = ((each.in_flight - 1) * each.replicas for each in (rule, upper))
    return sum(number % rule.replicas == rule.replica for number in range(taken, sent))


def without_flush(
    job: Job,
    chunk: Decoder,
    groups: list[WeightGroup],
    leaves: list[LocalParameter],
    weights: list[Tensor],
    *,
    mesh: DeviceMesh,
    tables: dist.ProcessGroup | None,
    device: torch.device,
) -> WithoutFlush:
    """The parts of this rank's stage.

    Args:
        groups: of its weights; a table that another stage has too is apart.
        weights: their storages, to which those of further versions are added.
        tables: joins the stages that have the table.
    """
    layout, recipe = job.layout, job.recipe
    stage, replicas = pipeline_stage(mesh, layout), layout.data_parallel
    samples = layout.micro_batch * replicas
    rule = VersionRule(
        layout.schedule,
        layout.pipeline_stages,
        stage,
        recipe.global_batch // samples,
        tuple(batch // samples for batch in ramped_batches(recipe)),
        replicas,
        layout.stage_replicas or (),
        mesh.get_local_rank(DATA),
    )

    def versioned(of: list[WeightGroup], rule: VersionRule) -> tuple[Versioned, TensorAdamW]:
        optimizer = whole_adamw(of, recipe, job.training_options.update)
        return Versioned(WeightVersions(of, [chunk], optimizer, weights), rule), optimizer

    alone, apart = ([group for group in groups if group.apart is kind] for kind in (False, True))
    own, optimizer = versioned(alone, rule)
    sum_up = functools.partial(dist.all_reduce, group=mesh.get_group(DATA))
    gradients = replica_gradients(alone, sum_up) if replicas > 1 else None
    table = None
    if tables is not None:
        (leaf,) = [leaf for leaf in leaves if leaf.tied]
        shared, of_table = versioned(apart, dataclasses.replace(rule, of_first=True))
        table = TiedTable(leaf, shared, of_table, recipe, samples=layout.micro_batch, group=tables)

    def neighbour(other: int) -> StageLink | None:
        if not 0 <= other < layout.pipeline_stages:
            return None
        shape = (layout.micro_batch, job.architecture.sequence, job.architecture.hidden)
        dtype, group = DTYPES[recipe.precision], mesh.get_group(PIPELINE)
        if not rule.of_stages:
            return Neighbour(group, other, shape=shape, dtype=dtype, device=device)
        return ReplicatedNeighbour(
            group,
            turns(rule, other),
            outstanding=rule.in_flight if other > stage else 1,
            left_over=left_over(rule) if other < stage else 0,
            shape=shape,
            dtype=dtype,
            device=device,
        )

    rest = [leaf for leaf in leaves if table is None or leaf is not table.leaf]
    return WithoutFlush(own, optimizer, rest, table, gradients, neighbour(stage - 1), neighbour(stage + 1))
