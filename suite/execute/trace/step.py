"""Executes a step of a model on tensors without memory, as one rank of so many, and tells what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from suite.execute.dry_run.allocations import INPUTS, Allocations
from suite.execute.dry_run.fake_tensors import fake_tensors
from suite.execute.dry_run.model_step import WEIGHTS, ModelStep, StepClock
from suite.execute.dry_run.rank import StepCollectives
from suite.execute.measure.counters import storage_bytes, stored
from suite.execute.parallel.fake_group import fake_group
from suite.execute.trace.adapters import adapt, elements, scales
from suite.execute.trace.cuda_autocast import cuda_autocast
from suite.execute.trace.first_values import without_first_values
from suite.execute.trace.gpu_kernels import kernels_of_gpus
from suite.execute.trace.operators import ModulePaths, OperatorRecorder, short_path
from suite.execute.trace.recomputation import recompute
from suite.execute.trace.sources import Built, build
from suite.execute.trace.updates import optimizers
from suite.job.trace_job import NumberFormat, Sharding, StepTrace, TracedParameters, TraceJob

if TYPE_CHECKING:
    from suite.execute.trace.compiled import CompiledRegions

DATA = "dp"
KEPT = "kept by "  # how the categories begin of what a forward pass keeps, by module


def trace(job: TraceJob) -> StepTrace:
    """The step of the job, executed without memory.

    Raises:
        SourceError: its model cannot be built.
    """
    start, clock = time.perf_counter(), StepClock()
    allocations = Allocations(clock.category)
    with fake_group(job.rank, job.ranks), nullcontext() if job.on_cpu else kernels_of_gpus():
        mesh = init_device_mesh("cpu", (job.ranks,), mesh_dim_names=(DATA,))
        axes: dict[str, str] = {mesh.get_group(DATA).group_name: DATA}
        regions = _regions(job)
        with fake_tensors(allocations, gloo=job.on_cpu) as mode, regions.compiling() if regions else nullcontext():
            dtype = weight_dtype(job.number_format)
            with without_first_values():
                built = build(job.source, dtype=dtype, micro_batch=job.micro_batch, sequence=job.sequence)
            allocations.name(INPUTS, (leaf for leaf in tree_leaves(built.inputs) if isinstance(leaf, Tensor)))
            units = decoder_layers(built.module)
            _adapt(job, built.module, units, allocations)
            parameters = _parameters(built.module)
            name, layer_class = type(built.module).__name__, type(units[0]).__name__ if units else ""
            passes = _Forward(job, allocations)
            if job.recompute:
                every, saves = job.recompute_every, job.saves_products
                recompute(built.module, units, every=every, saves_products=saves, keep=passes.keep)
            compiled: list[nn.Module] = []
            if regions:
                units = decoder_layers(built.module)  # with what computes them again, which is compiled too
                compiled = units or [built.module]
                regions.compile(compiled)
            model = parallel(built.module, units, job, mesh)
            passes.model, passes.built, passes.paths = model, built._replace(module=model), ModulePaths(model, compiled)
            allocations.owner = passes.paths.of_operator
            updates = optimizers(job.optimizer, model, units, by_shard=True)
            step = ModelStep(
                model, passes.loss, updates, allocations=allocations, clock=clock, micro_batches=job.micro_batches
            )
            collectives, recorder = StepCollectives(axes), OperatorRecorder(passes.paths, clock.phase)
            followed = regions.followed(recorder.add, passes.keep) if regions else nullcontext()
            with passes.paths.followed():
                step.prepare()
                mode.observers += [collectives.observe, recorder.observe]
                step.measure(followed)
            (fullest, _), owners = allocations.history(), allocations.owners()
    return StepTrace(
        model=name,
        software=built.software,
        sequence=built.sequence,
        layers=len(units),
        layer_class=layer_class,
        parameters=parameters,
        operators=recorder.calls(passes.kept),
        collectives=collectives.collectives(),
        kept_bytes=dict(passes.kept),
        peak_bytes=allocations.peak,
        peak_modules=_by_module(owners),
        fullest=fullest,
        graph_breaks=regions.breaks() if regions else [],
        seconds=time.perf_counter() - start,
        gradient_bytes=step.gradient_bytes,
        stored_parameters=sum(stored(parameter).numel() for parameter in model.parameters()),
        weight_bytes=storage_bytes(stored_tensors(model)),
        optimizer_bytes=storage_bytes(state_tensors(updates)),
        **built.facts(),
    )


def _adapt(job: TraceJob, model: nn.Module, units: list[nn.Module], allocations: Allocations) -> None:
    """Add the job's adapters, if it has any."""
    if job.adapters is not None:
        adapt(model, units, job.adapters, sharded=job.sharding is not Sharding.REPLICATED)
        for owner, tensor in scales(model):
            allocations.name(WEIGHTS, [tensor], owner=owner)


def _regions(job: TraceJob) -> CompiledRegions | None:
    if not job.compiler:
        return None
    from suite.execute.trace.compiled import CompiledRegions  # Inductor takes seconds

    return CompiledRegions(job.compiler)


class _Forward:
    """Forward passes of a rank, and what they keep.

    Attributes:
        kept: bytes by module of the last one.
    """

    model: nn.Module
    built: Built
    paths: ModulePaths

    def __init__(self, job: TraceJob, allocations: Allocations) -> None:
        self._job = job
        self._allocations = allocations
        self._weights: set[int] = set()
        self.kept = Counter[str]()

    def loss(self, number: int) -> Tensor:
        """The loss of the micro-batch with this number."""
        synchronise(self.model, not self._job.synchronises_once or number == self._job.micro_batches - 1)
        self._weights = {stored(each).untyped_storage()._cdata for each in self.model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            self.keep(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), self._autocast():
            loss = self.built.loss()
        held = self._allocations.bytes()
        self.kept = Counter({n.removeprefix(KEPT): size for n, size in held.items() if n.startswith(KEPT)})
        return loss

    def keep(self, tensor: Tensor, module: str = "") -> None:
        """Say that the module that runs keeps the tensor for the backward pass, unless it is a weight.

        Args:
            module: the part of it that keeps it.
        """
        kept = stored(tensor)
        if kept.untyped_storage()._cdata not in self._weights:
            self._allocations.keep(KEPT + (self.paths.within(module) or "the loss"), kept)

    def _autocast(self) -> AbstractContextManager[object]:
        sharded = self._job.sharding is not Sharding.REPLICATED  # FSDP casts itself
        if self._job.number_format is NumberFormat.BF16 and not sharded:
            # Dynamo knows PyTorch's own alone
            return torch.autocast("cpu", torch.bfloat16) if self._job.compiler else cuda_autocast()
        return nullcontext()


def autocast(job: TraceJob, device: str = "cpu") -> AbstractContextManager[object]:
    """Within this a forward pass computes in bf16, where the job says so and FSDP does not cast itself."""
    if job.number_format is NumberFormat.BF16 and job.sharding is Sharding.REPLICATED:
        return torch.autocast(device, torch.bfloat16)
    return nullcontext()


def weight_dtype(number_format: NumberFormat) -> torch.dtype:
    """The dtype that weights are stored in."""
    return torch.bfloat16 if number_format is NumberFormat.BF16_PURE else torch.float32


def stored_tensors(model: nn.Module) -> list[Tensor]:
    """This rank's weights and buffers."""
    return [stored(each) for each in (*model.parameters(), *model.buffers())]


def state_tensors(updates: Sequence[Optimizer]) -> list[Tensor]:
    """This rank's tensors of the state of all optimizers."""
    leaves = (leaf for each in updates for leaf in tree_leaves(list(each.state.values())))
    return [stored(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def _by_module(owners: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Bytes by module and category, those of modules together that differ in a number alone."""
    found: dict[str, Counter[str]] = {}
    for owner, categories in owners.items():
        found.setdefault(short_path(owner), Counter()).update(categories)
    return {module: dict(categories) for module, categories in found.items()}


def _parameters(model: nn.Module) -> TracedParameters:
    found = elements(model)
    by_dtype = Counter[str]()
    for (dtype, _), number in found.items():
        by_dtype[dtype] += number
    return TracedParameters(
        total=by_dtype.total(),
        trainable=sum(number for (_, is_trained), number in found.items() if is_trained),
        by_dtype=dict(by_dtype),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules in the model, by its parameters: the units that are sharded and recomputed."""
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in lists if len(each) > 1]
    long = [each for each in lists if len(each) > 1]
    return list(long[max(range(len(long)), key=sizes.__getitem__)]) if long else []


def parallel(model: nn.Module, units: list[nn.Module], job: TraceJob, mesh: Any) -> nn.Module:
    """The model as the ranks of a mesh share it: its units, then the rest."""
    if job.sharding is Sharding.REPLICATED:
        if job.ranks == 1:
            return model
        # without messages for what has no memory: the weights at the start, and buffers at each step
        group = mesh.get_group(DATA)
        return DistributedDataParallel(model, process_group=group, init_sync=False, broadcast_buffers=False)
    half = job.number_format is NumberFormat.BF16
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    reshard = job.sharding is Sharding.RESHARDED
    for unit in units:
        fully_shard(unit, mesh=mesh[DATA], mp_policy=policy, reshard_after_forward=reshard)
    # PyTorch's default keeps what is outside the units: the backward pass begins with it
    fully_shard(model, mesh=mesh[DATA], mp_policy=policy, reshard_after_forward=None if reshard else False)
    return model


def synchronise(model: nn.Module, now: bool) -> None:
    """Say whether the gradients of the next backward pass are reduced: what `no_sync` of PyTorch's wrappers says."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = now
