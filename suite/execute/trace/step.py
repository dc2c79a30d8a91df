"""Executes a step of a model on tensors without memory, as one rank of so many, and tells what it did."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from suite.execute.dry_run.allocations import INPUTS, Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.dry_run.rank import StepCollectives, complete_reductions
from suite.execute.parallel.fake_group import fake_group
from suite.execute.parallel.one_bit.buckets import local
from suite.execute.trace.operators import ModulePaths, OperatorRecorder
from suite.execute.trace.sources import Built, build
from suite.job.operators import TracePhase
from suite.job.trace_job import NumberFormat, OptimizerKernel, Sharding, StepTrace, TracedParameters, TraceJob

DATA = "dp"
KEPT = "kept by "  # how the categories begin of what a forward pass keeps, by module
CATEGORIES = {
    TracePhase.FORWARD: "forward pass",
    TracePhase.BACKWARD: "backward pass",
    TracePhase.RECOMPUTATION: "computed again",
    TracePhase.UPDATE: "update",
}


class _Clock:
    """The part of a step that runs now."""

    def __init__(self) -> None:
        self.part: TracePhase | None = None

    def phase(self) -> TracePhase:
        if self.part is TracePhase.BACKWARD and torch._C._current_graph_task_id() >= 0 and torch.is_grad_enabled():
            return TracePhase.RECOMPUTATION
        return self.part or TracePhase.FORWARD

    def category(self) -> str:
        return "weights" if self.part is None else CATEGORIES[self.phase()]


def trace(job: TraceJob) -> StepTrace:
    """The step of the job, executed without memory.

    Raises:
        SourceError: its model cannot be built.
    """
    start = time.perf_counter()
    clock = _Clock()
    allocations = Allocations(clock.category)
    with fake_group(0, job.ranks):
        mesh = init_device_mesh("cpu", (job.ranks,), mesh_dim_names=(DATA,))
        axes: dict[str, str] = {mesh.get_group(DATA).group_name: DATA}
        with fake_tensors(allocations):
            dtype = torch.bfloat16 if job.number_format is NumberFormat.BF16_PURE else torch.float32
            built = build(job.source, dtype=dtype, micro_batch=job.micro_batch, sequence=job.sequence)
            allocations.name(INPUTS, (leaf for leaf in tree_leaves(built.inputs) if isinstance(leaf, Tensor)))
            parameters = _parameters(built.module)
            units = decoder_layers(built.module)
            name = type(built.module).__name__
            if job.recompute:
                apply_activation_checkpointing(built.module, check_fn=lambda module: any(module is u for u in units))
            model = _parallel(built.module, units, job, mesh)
            built = built._replace(module=model)
            paths = ModulePaths(model)
            rank = _TracedRank(job, built, paths, clock, allocations)
            rank.prepare()
            collectives, recorder = StepCollectives(axes), OperatorRecorder(paths, clock.phase)
            gc.collect()
            allocations.record()
            with collectives, recorder:
                rank.step()
            fullest, _ = allocations.history()
    return StepTrace(
        model=name,
        software=built.software,
        sequence=built.sequence,
        layers=len(units),
        layer_class=type(units[0]).__name__ if units else "",
        parameters=parameters,
        operators=recorder.calls(rank.kept),
        collectives=collectives.collectives(),
        kept_bytes=dict(rank.kept),
        peak_bytes=allocations.peak,
        fullest=fullest,
        seconds=time.perf_counter() - start,
    )


class _TracedRank:
    """Model and optimizer of a rank."""

    def __init__(
        self, job: TraceJob, built: Built, paths: ModulePaths, clock: _Clock, allocations: Allocations
    ) -> None:
        self._job = job
        self._built = built
        self._paths = paths
        self._clock = clock
        self._allocations = allocations
        self._optimizer = _optimizer(job.optimizer, (p for p in built.module.parameters() if p.requires_grad))
        self.kept = Counter[str]()

    def prepare(self) -> None:
        """Make what a first step makes: the optimizer's state, and what sharding arranges in a first pass."""
        model = self._built.module
        if isinstance(model, (FSDPModule, DistributedDataParallel)):
            self.step()
            if isinstance(model, DistributedDataParallel):
                self.step()  # which begins with new buckets
        else:
            self._clock.part = TracePhase.UPDATE
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            self._optimizer.step()
            self._optimizer.zero_grad()
        state = (value for values in self._optimizer.state.values() for value in values.values())
        self._allocations.name("optimizer state", (local(value) for value in state if isinstance(value, Tensor)))

    def step(self) -> None:
        """Execute all micro-batches and the update."""
        model = self._built.module
        weights = {local(parameter.detach()).untyped_storage()._cdata for parameter in model.parameters()}
        with self._paths.followed():
            for number in range(self._job.micro_batches):
                with _synchronised(model, self._job, is_last=number == self._job.micro_batches - 1):
                    self._micro_batch(weights)
        self._clock.part = TracePhase.UPDATE
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _micro_batch(self, weights: set[int]) -> None:
        def pack(tensor: Tensor) -> Tensor:
            stored = tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor
            if stored.untyped_storage()._cdata not in weights:
                self._allocations.keep(KEPT + (self._paths.now or "the loss"), stored)
            return tensor

        self._clock.part = TracePhase.FORWARD
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), self._autocast():
            loss = self._built.loss()
        held = self._allocations.bytes()
        self.kept = Counter({n.removeprefix(KEPT): size for n, size in held.items() if n.startswith(KEPT)})
        self._clock.part = TracePhase.BACKWARD
        loss.backward()
        gradients = (local(p.grad) for p in self._built.module.parameters() if p.grad is not None)
        self._allocations.name("gradients", gradients)

    def _autocast(self) -> AbstractContextManager[object]:
        sharded = self._job.sharding is not Sharding.REPLICATED  # FSDP casts itself
        if self._job.number_format is NumberFormat.BF16 and not sharded:
            return torch.autocast("cpu", torch.bfloat16)
        return nullcontext()


def _parameters(model: nn.Module) -> TracedParameters:
    by_dtype = Counter[str]()
    parameters = list(model.parameters())  # each once
    for parameter in parameters:
        by_dtype[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return TracedParameters(
        total=by_dtype.total(),
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        by_dtype=dict(by_dtype),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules in the model, by its parameters: the units that are sharded and recomputed."""
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in lists if len(each) > 1]
    long = [each for each in lists if len(each) > 1]
    return list(long[max(range(len(long)), key=sizes.__getitem__)]) if long else []


def _parallel(model: nn.Module, units: list[nn.Module], job: TraceJob, mesh: Any) -> nn.Module:
    if job.sharding is Sharding.REPLICATED:
        if job.ranks == 1:
            return model
        # without messages for what has no memory: the weights at the start, and buffers at each step
        group = mesh.get_group(DATA)
        replicated = DistributedDataParallel(model, process_group=group, init_sync=False, broadcast_buffers=False)
        complete_reductions([replicated], replicated.process_group)
        return replicated
    half = job.number_format is NumberFormat.BF16
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    reshard = job.sharding is Sharding.RESHARDED
    for unit in units:
        fully_shard(unit, mesh=mesh[DATA], mp_policy=policy, reshard_after_forward=reshard)
    # PyTorch's default keeps what is outside the units: the backward pass begins with it
    fully_shard(model, mesh=mesh[DATA], mp_policy=policy, reshard_after_forward=None if reshard else False)
    return model


@contextmanager
def _synchronised(model: nn.Module, job: TraceJob, *, is_last: bool) -> Iterator[None]:
    """Within this a micro-batch's gradients are reduced, unless they wait for the last one's."""
    waits = not is_last and (job.synchronises_once or isinstance(model, DistributedDataParallel))
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not waits)
        yield
    elif waits and isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    else:
        yield


def _optimizer(kind: OptimizerKernel, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if kind is OptimizerKernel.SGD:
        return torch.optim.SGD(parameters, lr=1e-3, foreach=True)
    fused = kind is OptimizerKernel.ADAMW_FUSED
    return torch.optim.AdamW(parameters, fused=fused, foreach=not fused)
