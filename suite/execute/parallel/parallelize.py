"""Wraps a model for its layout, in one fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.placement import head_stage
from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import Router
from suite.execute.model.loss import ChunkedCrossEntropy
from suite.execute.optim.one_pass_update import updates_in_one_pass
from suite.execute.parallel import context_parallel, tensor_parallel
from suite.execute.parallel.chunks import chunk_numbers, split_chunks
from suite.execute.parallel.expert_parallel import RowCounter
from suite.execute.parallel.fully_sharded import shard_fully
from suite.execute.parallel.gradient_sums import GradientSums
from suite.execute.parallel.local_parameter import LocalParameter, Place, local_parameters, plain_name
from suite.execute.parallel.mesh import (
    DATA,
    EXPERT,
    EXPERT_DATA,
    PIPELINE,
    TENSOR,
    axis_of_group,
    context_mesh,
    embedding_group,
    key_value_group,
    sharding_mesh,
)
from suite.execute.parallel.one_bit_optimizer import OneBitMasters, one_bit_masters
from suite.execute.parallel.parameter_store import ParameterStore
from suite.execute.parallel.pipeline import Pipeline
from suite.execute.parallel.scattered_gradients import ScatteredGradients, Share, scattered_gradients
from suite.execute.parallel.sharded_adamw import (
    ShardedAdamW,
    TensorAdamW,
    fully_sharded_adamw,
    sharded_adamw,
    whole_adamw,
)
from suite.execute.parallel.without_flush import WithoutFlush, without_flush
from suite.execute.precision import DTYPES, WeightGroup, on_device, store_weights
from suite.job.options import POWER_SGD_RANK, Averaging, Optimization
from suite.job.training_job import Job, layout_in_store

Optimizer = ShardedAdamW | TensorAdamW | OneBitMasters | WithoutFlush | ParameterStore


@dataclass(frozen=True)
class Training:
    """The part of the model that one rank trains, with its optimizer.

    Args:
        chunks: this rank's parts of the decoder.
        modules: what is called instead of them.
        weights: the stored weights.
        pipeline: runs the modules where there are several stages, and all passes of a step end before its update.
        without_flush: the parts of a stage where they do not.
        gradient_sums: of compiled blocks whose graphs add to them.
        scattered: the gradients, where they are reduce-scattered.
        embedding_group: joins the ranks that store a tied table twice.
        context: the ranks that sequences are dealt to.
        key_value_group: joins the tensor-parallel ranks with copies of one key-value head.
        sharding: hybrid sharding's axes.
        computed_rows: of this rank's experts, where ranks share them out.
        kind_of_steps: of a model that is not the suite's; None: as the job says.
    """

    chunks: list[Decoder]
    modules: list[nn.Module]
    leaves: list[LocalParameter]
    weights: list[Tensor]
    optimizer: Optimizer
    pipeline: Pipeline | None
    without_flush: WithoutFlush | None
    gradient_sums: GradientSums | None
    scattered: ScatteredGradients | None
    embedding_group: dist.ProcessGroup | None
    context: DeviceMesh | None
    key_value_group: dist.ProcessGroup | None
    sharding: DeviceMesh | None
    computed_rows: RowCounter
    kind_of_steps: type[Any] | None = None

    @property
    def routers(self) -> list[Router]:
        """Routers of all layers with experts that are here."""
        return [router for chunk in self.chunks for router in chunk.routers.values()]

    def axis_of_group(self, mesh: DeviceMesh) -> dict[str, str]:
        """Process group name -> axis, see `suite.execute.parallel.mesh`."""
        axes = axis_of_group(mesh, self.embedding_group, self.context, self.key_value_group, self.sharding)
        return axes | (self.optimizer.axis_of_group if isinstance(self.optimizer, ParameterStore) else {})


def parallelize(job: Job, *, mesh: DeviceMesh, device: torch.device) -> Training:
    """Build and wrap the model of this rank.

    The order is fixed, because each step needs the result of the previous one:
        1. build this rank's chunks and initialise them on the CPU, as the whole model would be
        2. expert and tensor parallelism: keep this rank's experts, and its part of the matrices; context parallelism:
           its positions; linear layers by cuBLASLt, where it is asked for
        3. store the weights on the device: in flat buffers of the recipe's precision, or fully sharded (ZeRO-2 and 3)
        4. compile each block
        5. DistributedDataParallel over data-, expert- and context-parallel ranks (ZeRO-0 and 1), without experts that
           are shared out; or buffers of gradients that are reduce-scattered; not where passes go on over updates
        6. the pipeline
        7. the optimizer, on the shard of this rank; and how the gradients are averaged

    A slice has neither gradients that are averaged nor a pipeline; of its weights its own shard alone is updated. With
    a parameter store gradients lie in the buffers of reduce-scattered ones, and its shards take the optimizer's place.
    """
    if job.synchronisation is not None:
        job = msgspec.structs.replace(job, layout=layout_in_store(job.layout))
    layout, dtype = job.layout, DTYPES[job.recipe.precision]
    rows = RowCounter()
    chunks, splits, experts = split_chunks(job, mesh, rows, device)
    context = context_mesh(mesh, layout)
    if context is not None:
        for chunk in chunks:
            context_parallel.deal(chunk, context)
    sharding = sharding_mesh(mesh, layout)
    groups = _stored(job, chunks, splits, experts, mesh, sharding, device)
    sums = GradientSums(chunks[0].blocks.values()) if sums_in_blocks(job, device) else None
    if job.compiled:
        compile_blocks(chunks, dtype, device, job.training_options.optimizations)
        if layout.tensor_parallel > 1:
            for chunk in chunks:
                tensor_parallel.wait_for_embedding(chunk)
    modules: list[nn.Module] = list(chunks)
    scattered = None
    if layout.scatters_gradients:
        assert groups is not None
        data, shard = mesh.get_group(DATA), mesh.get_local_rank(DATA)
        apart = _share_of_experts(layout, mesh)
        scattered = scattered_gradients(groups, shards=_shards(layout), shard=shard, process_group=data, apart=apart)
    elif layout.state_ranks > 1 and not layout.fully_sharded and layout.flushes and job.slice is None:
        modules = [_data_parallel(chunk, layout, mesh.get_group(DATA), device, apart=experts) for chunk in chunks]
    pipeline = None
    if layout.pipeline_stages > 1 and layout.flushes and job.slice is None:
        numbered = dict(zip(chunk_numbers(layout, mesh), modules, strict=True))
        group = mesh.get_group(PIPELINE)
        pipeline = Pipeline(numbered, job.architecture, layout, group=group, device=device, dtype=dtype)
    copies = max(layout.tensor_parallel // job.architecture.kv_heads, 1)
    leaves = _leaves(layout, mesh, chunks, splits, experts, copies=copies)
    weights = [leaf.local for leaf in leaves] if groups is None else [group.flat for group in groups]
    stored_twice = job.architecture.tied_embeddings and head_stage(layout) > 0
    tables = embedding_group(mesh, layout) if stored_twice else None
    unflushed = None
    if not layout.flushes:
        assert groups is not None
        (chunk,) = chunks
        unflushed = without_flush(job, chunk, groups, leaves, weights, mesh=mesh, tables=tables, device=device)
    optimizer = unflushed or _optimizer(job, mesh, groups, leaves, modules, scattered, device)
    heads = key_value_group(mesh, copies=copies)
    return Training(
        chunks,
        modules,
        leaves,
        weights,
        optimizer,
        pipeline,
        unflushed,
        sums,
        scattered,
        tables,
        context,
        heads,
        sharding,
        rows,
    )


def _leaves(
    layout: Layout,
    mesh: DeviceMesh,
    chunks: list[Decoder],
    splits: list[tensor_parallel.Split],
    experts: frozenset[str],
    *,
    copies: int,
) -> list[LocalParameter]:
    """The parameters of `chunks`; `copies`: tensor-parallel ranks that have one key-value head."""
    place = Place(
        first=_is_first(mesh, TENSOR),
        first_of_head=mesh.get_local_rank(TENSOR) % copies == 0,
        counts_dense=layout.fully_sharded or _is_first(mesh, EXPERT),
        has_shards=layout.scatters_gradients,
    )
    of_chunks = [local_parameters(chunk, split, experts, place) for chunk, split in zip(chunks, splits, strict=True)]
    by_parameter: dict[int, LocalParameter] = {}  # chunks may share the tied table
    for leaf in chain.from_iterable(of_chunks):
        by_parameter.setdefault(id(leaf.parameter), leaf)
    return list(by_parameter.values())


def _is_first(mesh: DeviceMesh, axis: str) -> bool:
    """Whether this rank is the first on `axis`, or the mesh has none."""
    return axis not in (mesh.mesh_dim_names or ()) or mesh.get_local_rank(axis) == 0


def sums_in_blocks(job: Job, device: torch.device) -> bool:
    """Whether compiled blocks add gradients over micro-batches themselves (see `gradient_sums`).

    On a GPU, of one rank that accumulates bf16 gradients in fp32: DistributedDataParallel and FSDP wait for the leaves'
    gradients, and pipelines pass other micro-batches between both passes of one.
    """
    alone = job.layout.ranks == 1
    accumulates = alone and accumulation(job.recipe, job.layout) > 1
    widens = job.recipe.precision is Precision.BF16
    return job.compiled and device.type == "cuda" and accumulates and widens and not job.layout.fully_sharded


def _stored(
    job: Job,
    chunks: list[Decoder],
    splits: list[tensor_parallel.Split],
    experts: frozenset[str],
    mesh: DeviceMesh,
    sharding: DeviceMesh | None,
    device: torch.device,
) -> list[WeightGroup] | None:
    """Store the weights of `chunks` on the device: their flat groups, or None where they are fully sharded.

    Args:
        experts: names of those that ranks share out.
    """
    layout = job.layout
    as_dtensor = {key: make for split in splits for key, make in split.as_dtensor.items()}
    if layout.fully_sharded:
        (chunk,) = chunks
        over = mesh[DATA] if sharding is None else sharding
        of_experts = mesh[EXPERT_DATA] if experts else None
        on_device(chunk, device)
        shard_fully(chunk, layout, job.recipe.precision, mesh=over, of_experts=of_experts, as_dtensor=as_dtensor)
        return None
    averaged = layout.state_ranks > 1 and layout.flushes
    shards, reduced = _shards(layout), averaged and not layout.scatters_gradients
    shared = _share_of_experts(layout, mesh)
    groups = store_weights(
        list(chunks),
        job.recipe,
        shards=shards,
        device=device,
        as_dtensor=as_dtensor,
        reduced=reduced,
        apart=_apart(job, chunks, experts),
        apart_shards=1 if shared is None else shared.shards,
    )
    for chunk in chunks:
        on_device(chunk, device)
    return groups


def _apart(job: Job, chunks: list[Decoder], experts: frozenset[str]) -> set[int]:
    """Ids of the weights in groups of their own: experts, and a table that another stage updates too, without flush."""
    table = not job.layout.flushes and job.architecture.tied_embeddings
    tied = {"embedding.weight", "head.weight"} if table else set()
    names = experts | tied
    return {id(p) for chunk in chunks for name, p in chunk.named_parameters() if name in names}


def _shards(layout: Layout) -> int:
    """Number of shards of the optimizer's state over data-parallel ranks that store whole weights."""
    return layout.state_ranks if layout.zero_stage == 1 else 1


def _share_of_experts(layout: Layout, mesh: DeviceMesh) -> Share | None:
    """Which shard of its experts' state is this rank's with ZeRO-1; None where ranks do not share experts out."""
    if layout.expert_parallel == 1:
        return None
    ranks = mesh[EXPERT_DATA].size() if layout.zero_stage == 1 else 1
    if ranks == 1:
        return Share(0, 1, None)
    return Share(mesh.get_local_rank(EXPERT_DATA), ranks, mesh.get_group(EXPERT_DATA))


def _optimizer(
    job: Job,
    mesh: DeviceMesh,
    groups: list[WeightGroup] | None,
    leaves: list[LocalParameter],
    modules: list[nn.Module],
    scattered: ScatteredGradients | None,
    device: torch.device,
) -> Optimizer:
    """The optimizer of this rank; has `modules` average gradients as the job says."""
    if job.synchronisation is not None:
        assert scattered is not None
        return ParameterStore(job, scattered, device)
    recipe, layout, data = job.recipe, job.layout, mesh.get_group(DATA)
    one_pass = updates_in_one_pass(job.training_options, device)
    if groups is None:
        parameters = [leaf.parameter for leaf in leaves]
        decaying = [p for p in parameters if p.dim() > 1 or recipe.decay_of_vectors]
        others = [p for p in parameters if p.dim() == 1 and not recipe.decay_of_vectors]
        return fully_sharded_adamw(
            [(recipe.weight_decay, decaying), (0.0, others)], recipe, job.training_options.update, one_pass=one_pass
        )
    if job.averaging is Averaging.ONE_BIT and layout.state_ranks > 1:
        names = {id(leaf.parameter): leaf.name for leaf in leaves}
        return one_bit_masters(
            groups, names, modules, recipe, exact_steps=job.exact_steps, renewal=job.renewal, process_group=data
        )
    _compress_gradients(modules, job, data)
    if _shards(layout) > 1:
        shard, gathers = mesh.get_local_rank(DATA), data if job.slice is None else None
        apart = _share_of_experts(layout, mesh)
        if apart is not None and job.slice is not None:
            apart = apart._replace(process_group=None)
        return sharded_adamw(
            groups,
            recipe,
            shards=_shards(layout),
            shard=shard,
            process_group=gathers,
            apart=apart,
            scattered=scattered,
            one_pass=one_pass,
        )
    return whole_adamw(groups, recipe, job.training_options.update, one_pass=one_pass)


def _compress_gradients(modules: list[nn.Module], job: Job, group: dist.ProcessGroup) -> None:
    """Register PyTorch's compressing hook, if the job asks for one, with every DistributedDataParallel of `modules`.

    PowerSGD has error feedback and a warm start, PyTorch's default, and averages exactly in the job's exact steps.
    """
    for module in modules:
        if not isinstance(module, DistributedDataParallel):
            continue
        if job.averaging is Averaging.FP16:
            module.register_comm_hook(group, fp16_compress_hook)
        elif job.averaging is Averaging.BF16:
            module.register_comm_hook(group, bf16_compress_hook)
        elif job.averaging is Averaging.POWER_SGD:
            state = PowerSGDState(group, POWER_SGD_RANK, start_powerSGD_iter=max(2, job.exact_steps))
            module.register_comm_hook(state, powerSGD_hook)


def compile_blocks(
    chunks: Iterable[Decoder], dtype: torch.dtype, device: torch.device, optimizations: tuple[Optimization, ...] = ()
) -> None:
    """Compile each block of `chunks`, and on CUDA a loss in parts, in place.

    From then on recompiling too often is an error. With dependent launch a compiled kernel begins while the one before
    it ends, and waits where it first reads or writes what that one has written (from Hopper on).
    """
    torch._inductor.config.triton.enable_pdl = Optimization.DEPENDENT_LAUNCH in optimizations
    # DistributedDataParallel's graph splitting is for a model compiled whole; blocks are compiled one by one
    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # rather than go on eagerly
    if device.type == "cpu" and dtype is torch.float16:
        # Inductor's C++ (torch 2.13) declares a sum twice that is stored twice in fp16, unless loops stay apart
        torch._inductor.config.cpp.max_horizontal_fusion_size = 1
    for chunk in chunks:
        for block in chunk.blocks.values():
            block.compile()
        if device.type == "cuda" and isinstance(chunk.loss, ChunkedCrossEntropy):
            chunk.loss.compile_parts()


def _data_parallel(
    chunk: Decoder, layout: Layout, group: dist.ProcessGroup, device: torch.device, *, apart: frozenset[str]
) -> nn.Module:
    """Args: apart: names of parameters whose gradients it leaves alone."""
    ignored = [name for name, _ in chunk.named_parameters() if plain_name(name) in apart]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(chunk, ignored)
    return DistributedDataParallel(
        chunk,
        process_group=group,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=layout.bucket_bytes / 2**20,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,  # biases of routers, which all ranks move alike
        init_sync=False,  # every rank draws the same weights, and the leaves have no storage to write to
    )
