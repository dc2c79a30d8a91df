"""Counts what one rank of a job executes in a step, without its memory and without the other ranks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import Schedule1F1B
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from suite.execute.data.loader import batches
from suite.execute.dry_run.allocations import Allocations
from suite.execute.dry_run.even_routing import even_routing
from suite.execute.dry_run.fake_tensors import BUFFERS, FakedBatches, fake_tensors
from suite.execute.measure.counters import CollectiveCounter, LocalFlopCounter, storage_bytes
from suite.execute.measure.phases import Part
from suite.execute.parallel.fake_group import fake_group
from suite.execute.parallel.mesh import CONTEXT, DATA, PIPELINE, coordinates, device_mesh
from suite.execute.parallel.one_bit.buckets import local
from suite.execute.parallel.parallelize import Training, parallelize
from suite.execute.training.loop import activation_bytes, model_flop_of_sample
from suite.execute.training.step import Steps
from suite.job.dry_run_job import AskedStep, StepCounts
from suite.job.events import Finished
from suite.job.training_job import Job

CPU = torch.device("cpu")
AGAIN, GATHERED, OTHER = "computed again", "gathered weights", "other"
# what blocks are for that a phase of a step allocates
CATEGORIES = {
    Part.DATA_LOADING: "samples",
    Part.FORWARD: "forward pass",
    Part.BACKWARD: "backward pass",
    Part.PIPELINE: BUFFERS,
    Part.UPDATE: "update",
}


class StepCollectives(CollectiveCounter):
    """Counts a step's own collectives: without the integers by which a pipeline's new schedule begins (torch 2.13)."""

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        numbers = any(isinstance(leaf, Tensor) and leaf.dtype is torch.int32 for leaf in tree_leaves(args))
        if not numbers or self._axis(func, args, kwargs) != PIPELINE:
            super()._count(func, args, kwargs)


class DryRank:
    """One rank of a job, as its launch would build it.

    Within `fake_group`, and for as long as `fake_tensors` of its allocations lasts.
    """

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job = job
        self.mesh = mesh
        self.allocations = Allocations(self._phase)
        self._steps: Steps | None = None

    def _phase(self) -> str:
        now = None if self._steps is None else self._steps.phases.now
        within_pass = torch._C._current_graph_task_id() >= 0  # else PyTorch's schedule is between two passes
        if now is Part.BACKWARD and within_pass and torch.is_grad_enabled():
            return AGAIN
        if now is None:  # the first pass, after which fully sharded weights keep their places
            return GATHERED if self.job.layout.fully_sharded else OTHER
        return CATEGORIES.get(now, now.value)

    def counted(self, asked: tuple[AskedStep, ...], *, activations: bool) -> list[StepCounts]:
        """Counts of each step, with or without `activations`."""
        job, mesh = self.job, self.mesh
        index = coordinates(mesh, job.layout)
        replica = mesh.get_local_rank(DATA) // job.layout.context_parallel
        stream = batches(job, replica=replica, context_rank=index.get(CONTEXT, 0))
        gc.disable()  # what is in cycles is freed before a step, not somewhere within it
        with even_routing(), fake_tensors(self.allocations) as mode:
            training = parallelize(job, mesh=mesh, device=CPU)
            complete_reductions(training.modules, mesh.get_group(DATA))
            self._name_state(training)
            self._name_what_chunks_hand_over(training)
            self._steps = steps = Steps(job, training, mesh, CPU, FakedBatches(stream, mode, self.allocations))
            of_sample = self._first_pass()
            self._name_state(training)
            counted = []
            for step in asked:
                with short_steps(step.in_flight):
                    counted.append(self._counted(step.micro_batches, index))
            kept = activation_bytes(steps) if activations else 0
        return [
            msgspec.structs.replace(
                step,
                counts=msgspec.structs.replace(
                    step.counts,
                    model_flop=step.micro_batches * job.layout.micro_batch * of_sample,
                    activation_bytes=kept,
                ),
            )
            for step in counted
        ]

    def _name_what_chunks_hand_over(self, training: Training) -> None:
        """Where two chunks that are here follow each other, a gradient of one's input is the other's buffer."""

        def named(hand: Callable[..., None], gradients: tuple[Tensor, ...], micro_batch: int) -> None:
            self.allocations.name(BUFFERS, gradients)
            hand(gradients, micro_batch)

        for stage in training.pipeline.stages if training.pipeline else ():
            stage.set_local_bwd_input = partial(named, stage.set_local_bwd_input)  # type: ignore[method-assign]

    def _first_pass(self) -> int:
        """The model flop of a pass of one sample; an update after it, by which the optimizer makes its state."""
        assert self._steps is not None
        steps, training = self._steps, self._steps.training
        flop = model_flop_of_sample(steps, through_modules=True)
        steps.update(torch.ones(()))
        for module in training.modules:
            if isinstance(module, DistributedDataParallel):
                module.reducer._rebuild_buckets()  # now, not at the beginning of the next step
        return flop

    def _name_state(self, training: Training) -> None:
        parameters = (local(parameter) for chunk in training.chunks for parameter in chunk.parameters())
        self.allocations.name("weights", parameters)
        self.allocations.name("weights", training.weights)
        self.allocations.name("optimizer state", training.optimizer.state_tensors)

    def _counted(self, micro_batches: int, index: dict[str, int]) -> StepCounts:
        """A step of so many micro-batches, without model flop and activations."""
        assert self._steps is not None
        steps, training, job = self._steps, self._steps.training, self.job
        batch = micro_batches * job.layout.replicas * job.layout.micro_batch
        steps.job = msgspec.structs.replace(job, recipe=msgspec.structs.replace(job.recipe, global_batch=batch))
        collectives = StepCollectives(training.axis_of_group(self.mesh))
        flop = LocalFlopCounter()
        gc.collect()
        self.allocations.record()
        with collectives, flop:
            loss = steps.forward_and_backward()
            gradients = [leaf.gradient for leaf in training.leaves]
            self.allocations.name("gradients", gradients)
            gradient_bytes = storage_bytes(gradients)
            del gradients
            steps.update(loss)
        fullest, history = self.allocations.history()
        # before its passes a new pipeline has made its buffers in part, and that of the last step has left its own
        computing = (CATEGORIES[Part.FORWARD], CATEGORIES[Part.BACKWARD], CATEGORIES[Part.UPDATE], AGAIN)
        fullest = [moment for moment in fullest if moment.phase in computing]
        leaves = training.leaves
        biases = sum(router.bias.numel() for router in training.routers if router.bias is not None)
        counts = Finished(
            coordinates=index,
            parameters=sum(leaf.local.numel() for leaf in leaves) + biases,
            own_parameters=sum(leaf.counted_of(leaf.local).numel() for leaf in leaves if leaf.counted),
            model_flop=0,
            hardware_flop=int(flop.get_total_flops()),
            weight_bytes=storage_bytes(training.weights),
            gradient_bytes=gradient_bytes,
            optimizer_bytes=storage_bytes(training.optimizer.state_tensors),
            collectives=collectives.collectives(),
            activation_bytes=0,
            peak_bytes=max(moment.total for moment in fullest),
            worked_seconds=[],
            pipeline_seconds=[],
            interface_sent_bytes=None,
            arithmetic="",
            environment={},
            time=time.time(),
        )
        return StepCounts(
            micro_batches=micro_batches,
            counts=counts,
            stage_parameters=stage_parameters(job, training),
            fullest=fullest,
            history=history,
        )


def count(job: Job, rank: int, asked: tuple[AskedStep, ...], *, activations: bool = True) -> list[StepCounts]:
    """Counts of `rank` of a job in each step.

    Args:
        activations: whether it counts them too, in a pass of their own.
    """
    with fake_group(rank, job.layout.ranks):
        return DryRank(job, device_mesh(job.layout, job.device)).counted(asked, activations=activations)


@contextmanager
def short_steps(in_flight: int | None) -> Iterator[None]:
    """Within this a new 1F1B runs as few micro-batches as are asked for.

    PyTorch wants as many as there are stages. A later stage repeats itself sooner: it sends as many ahead as there are
    stages after it.

    Args:
        in_flight: micro-batches at most, as in a stage that has fewer after it; None for as many as there are.
    """
    initialise = Schedule1F1B.__init__

    def initialised(schedule: Schedule1F1B, stage: Any, micro_batches: int, **options: Any) -> None:
        initialise(schedule, stage, max(micro_batches, stage.num_stages), **options)
        schedule._n_microbatches = micro_batches
        if in_flight is not None:
            schedule._num_stages = stage.stage_index + in_flight

    with mock.patch.object(Schedule1F1B, "__init__", initialised):
        yield


def stage_parameters(job: Job, training: Training) -> int:
    """Parameters that the ranks of a pipeline stage have together, if each has as many as this one.

    What several of them store, and both tables of a tied embedding, count once.
    """
    layout = job.layout
    ranks, tensor_parallel = layout.ranks // layout.pipeline_stages, layout.tensor_parallel
    data = layout.shard_copies if layout.fully_sharded else layout.state_ranks
    heads = max(tensor_parallel // job.architecture.kv_heads, 1)
    total = sum(router.bias.numel() for router in training.routers if router.bias is not None)
    total *= ranks // (layout.state_ranks * tensor_parallel)
    for leaf in training.leaves:
        if leaf.tied and leaf.name == "head.weight":
            continue
        copies = data // (layout.expert_parallel if leaf.expert else 1)
        copies *= tensor_parallel if leaf.split_dim is None else 1
        own = leaf.local[: leaf.own_rows].numel()
        total += own * ranks // copies + (leaf.local.numel() - own) * ranks // (copies * heads)
    return total


def complete_reductions(modules: list[nn.Module], group: dist.ProcessGroup) -> None:
    """Have DistributedDataParallel see its all-reduces end: those of a fake group have no result (torch 2.13)."""

    def hook(_state: Any, bucket: Any) -> Any:
        dist.all_reduce(bucket.buffer(), group=group)
        reduced: Future[Tensor] = Future()
        reduced.set_result(bucket.buffer())
        return reduced

    hook.__annotations__.clear()  # which PyTorch refuses as texts
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            module.register_comm_hook(None, hook)
