"""What a rank trains in a pipeline without flush: its weights in versions, its optimizers, and its neighbours."""

from __future__ import annotations

import dataclasses
import functools
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
from suite.execute.parallel.mesh import DATA, PIPELINE
from suite.execute.parallel.neighbours import Neighbour
from suite.execute.parallel.replica_gradients import ReplicaGradients, replica_gradients
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
    before: Neighbour | None
    after: Neighbour | None

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
        oldest = rule.version(rule.first(update))
        self.own.weights.have(oldest=oldest, newest=update, storages=rule.storages(update))
        if self.table is not None:
            self.table.optimizer.step(0.0)
            self.table.have(update)

    def kept(self, update: int) -> Iterator[tuple[str, Tensor]]:
        """What the passes after `update` updates need, by name: versions, optimizer states, and the table's sums."""
        parts = [("own", self.own, self.optimizer)]
        if self.table is not None:
            parts.append(("table", self.table.versioned, self.table.optimizer))
            yield from ((f"table sum {number}", each) for number, each in enumerate(self.table.sums()))
        for name, (weights, rule), optimizer in parts:
            for version, flats in weights.kept(rule.version(rule.first(update))).items():
                yield from ((f"{name} version {version}: {number}", flat) for number, flat in enumerate(flats))
            yield from ((f"{name} state {number}", each) for number, each in enumerate(optimizer.state_tensors))

    def step(self, learning_rate: float, gradient_factor: float | Tensor = 1.0) -> None:
        """Update what the stage alone has."""
        self.optimizer.step(learning_rate, gradient_factor)

    def sum_over_replicas(self, loss: Tensor) -> None:
        """Make all gradients of the stage, and the loss, those of all replicas together."""
        if self.replicas is not None:
            self.replicas.finish(*([] if self.table is None else [self.table.leaf.gradient]), loss)

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
    stage, stages = mesh.get_local_rank(PIPELINE), layout.pipeline_stages
    replicas = layout.data_parallel
    samples, ramp = layout.micro_batch * replicas, ramped_batches(recipe)
    micro_batches = recipe.global_batch // samples
    ramped = tuple(batch // samples for batch in ramp)
    rule = VersionRule(layout.schedule, stages, stage, micro_batches, ramped, replicas)
    update = job.training_options.update

    def versioned(of: list[WeightGroup], rule: VersionRule) -> tuple[Versioned, TensorAdamW]:
        optimizer = whole_adamw(of, recipe, update)
        return Versioned(WeightVersions(of, [chunk], optimizer, weights), rule), optimizer

    alone = [group for group in groups if not group.apart]
    own, optimizer = versioned(alone, rule)
    sum_up = functools.partial(dist.all_reduce, group=mesh.get_group(DATA))
    gradients = replica_gradients(alone, sum_up) if replicas > 1 else None
    table = None
    if tables is not None:
        (leaf,) = [leaf for leaf in leaves if leaf.tied]
        shared, of_table = versioned([group for group in groups if group.apart], dataclasses.replace(rule, stage=0))
        later = shared.rule.in_flight - 1 if stage else 0
        table = TiedTable(leaf, shared, of_table, recipe, samples=samples, later=later, group=tables)

    def neighbour(other: int) -> Neighbour | None:
        if not 0 <= other < stages:
            return None
        shape = (layout.micro_batch, job.architecture.sequence, job.architecture.hidden)
        dtype = DTYPES[recipe.precision]
        return Neighbour(mesh.get_group(PIPELINE), other, shape=shape, dtype=dtype, device=device)

    rest = [leaf for leaf in leaves if table is None or leaf is not table.leaf]
    return WithoutFlush(own, optimizer, rest, table, gradients, neighbour(stage - 1), neighbour(stage + 1))
