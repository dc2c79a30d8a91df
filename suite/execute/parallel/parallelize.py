"""Wraps a model for its layout, in one fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers
from reference_runs.run import Architecture, Recipe
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.torch_operations import Operations, TorchOperations
from suite.execute.parallel import fsdp, tensor_parallel
from suite.execute.parallel.gradient_compression import compress_gradients
from suite.execute.parallel.mesh import DATA, PIPELINE, TENSOR, embedding_group
from suite.execute.parallel.one_bit_optimizer import OneBitMasters, one_bit_masters
from suite.execute.parallel.pipeline import Pipeline
from suite.execute.parallel.sharded_adamw import (
    ShardedAdamW,
    TensorAdamW,
    fully_sharded_adamw,
    sharded_adamw,
    whole_adamw,
)
from suite.execute.precision import DTYPES, WeightGroup, store_weights
from suite.job.options import DEFAULT_OPTIONS, Averaging, KernelChoice, TrainingOptions
from suite.job.training_job import Job


@dataclass(frozen=True)
class LocalParameter:
    """A parameter that receives gradients, as this rank holds it.

    Args:
        name: in the whole model.
        tensor_dim: the dim along which the tensor-parallel ranks hold its parts; None where each stores all of it.
        own: whether this rank counts it; another rank counts what both store.
        partial: whether each tensor-parallel rank has a part of its gradient.
        tied: whether it is the table that first and last pipeline stage share.
    """

    parameter: nn.Parameter
    name: str
    tensor_dim: int | None
    own: bool
    partial: bool
    tied: bool

    @property
    def gradient(self) -> Tensor:
        """This rank's gradient, a plain tensor."""
        gradient = self.parameter.grad
        assert gradient is not None
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    @property
    def local(self) -> Tensor:
        """What this rank stores of the parameter, a plain tensor."""
        data = self.parameter.detach()
        return data.to_local() if isinstance(data, DTensor) else data


@dataclass(frozen=True)
class Training:
    """What one rank trains.

    Args:
        chunks: this rank's parts of the decoder.
        modules: what is called in their place.
        weights: the stored weights.
        pipeline: runs the modules where there are several stages.
        embedding_group: joins the ranks that store a tied table twice.
    """

    chunks: list[Decoder]
    modules: list[nn.Module]
    leaves: list[LocalParameter]
    weights: list[Tensor]
    optimizer: ShardedAdamW | TensorAdamW | OneBitMasters
    pipeline: Pipeline | None
    embedding_group: dist.ProcessGroup | None


def parallelize(job: Job, *, mesh: DeviceMesh, device: torch.device) -> Training:
    """Build and wrap the model of this rank.

    The order is fixed, because each step sees what the one before it made:
        1. build this rank's chunks and initialise them on the CPU, as the whole model would be
        2. tensor parallelism: keep this rank's part of the matrices
        3. store the weights on the device: in flat buffers of the recipe's precision, or fully sharded (ZeRO-2 and 3
           over several ranks)
        4. compile each block
        5. DistributedDataParallel over the data-parallel axis (ZeRO-0 and 1)
        6. the pipeline
        7. the optimizer, on the shard of this rank; and how the gradients are averaged
    """
    layout, dtype = job.layout, DTYPES[job.recipe.precision]
    chunks, splits = _split_chunks(job, mesh)
    groups = _stored(job, chunks, splits, mesh, device)
    if job.compiled:
        compile_blocks(chunks, dtype, device)
        if layout.tensor_parallel > 1:
            for chunk in chunks:
                tensor_parallel.wait_for_embedding(chunk)
    modules: list[nn.Module] = list(chunks)
    if layout.data_parallel > 1 and not layout.fully_sharded:
        modules = [_data_parallel(chunk, layout, mesh.get_group(DATA), device) for chunk in chunks]
    pipeline = None
    if layout.pipeline_stages > 1:
        numbered = dict(zip(_chunk_numbers(layout, mesh), modules, strict=True))
        group = mesh.get_group(PIPELINE)
        pipeline = Pipeline(numbered, job.architecture, layout, group=group, device=device, dtype=dtype)
    leaves = [
        leaf
        for chunk, split in zip(chunks, splits, strict=True)
        for leaf in _leaves(chunk, split, counts_repeated=mesh.get_local_rank(TENSOR) == 0)
    ]
    optimizer = _optimizer(job, mesh, groups, leaves, modules)
    weights = [leaf.local for leaf in leaves] if groups is None else [group.flat for group in groups]
    tied = job.architecture.tied_embeddings
    return Training(chunks, modules, leaves, weights, optimizer, pipeline, embedding_group(mesh) if tied else None)


def _chunk_numbers(layout: Layout, mesh: DeviceMesh) -> range:
    """Numbers of this rank's chunks in the whole model."""
    chunks = layout.pipeline_stages * layout.virtual_stages
    return range(mesh.get_local_rank(PIPELINE), chunks, layout.pipeline_stages)


def _split_chunks(job: Job, mesh: DeviceMesh) -> tuple[list[Decoder], list[tensor_parallel.Split]]:
    """This rank's chunks, initialised as the whole model would be, with its part of the matrices."""
    layout = job.layout
    layers = list(chunk_layers(job.architecture.layers, layout))
    chunks, splits = [], []
    for number in _chunk_numbers(layout, mesh):
        chunk = Decoder(
            job.architecture,
            job.recipe,
            operations(job.architecture, job.kernels, job.script),
            fused_attention=layout.fused_attention,
            layers=layers[number],
            first=number == 0,
            last=number == len(layers) - 1,
        )
        chunk.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
        initialise(chunk, job.recipe, seed=job.seed)
        splits.append(tensor_parallel.split(chunk, mesh[TENSOR], sequence_parallel=layout.sequence_parallel))
        chunks.append(chunk)
    return chunks, splits


def _stored(
    job: Job, chunks: list[Decoder], splits: list[tensor_parallel.Split], mesh: DeviceMesh, device: torch.device
) -> list[WeightGroup] | None:
    """Store the weights of `chunks` on the device: their flat groups, or None where they are fully sharded."""
    layout = job.layout
    placed = {key: place for split in splits for key, place in split.placed.items()}
    if layout.fully_sharded:
        (chunk,) = chunks
        chunk.to(device)
        fsdp.shard(chunk, layout, job.recipe.precision, mesh=mesh[DATA], placed=placed)
        return None
    reduced = layout.data_parallel > 1
    groups = store_weights(
        list(chunks), job.recipe, shards=_shards(layout), device=device, placed=placed, reduced=reduced
    )
    for chunk in chunks:
        chunk.to(device)
    return groups


def _shards(layout: Layout) -> int:
    """Of the optimizer's state over data-parallel ranks that store whole weights."""
    return layout.data_parallel if layout.zero_stage == 1 else 1


def _optimizer(
    job: Job, mesh: DeviceMesh, groups: list[WeightGroup] | None, leaves: list[LocalParameter], modules: list[nn.Module]
) -> ShardedAdamW | TensorAdamW | OneBitMasters:
    """The optimizer of this rank; has `modules` average gradients as the job says."""
    recipe, layout, data = job.recipe, job.layout, mesh.get_group(DATA)
    if groups is None:
        decay_groups = _decay_groups([leaf.parameter for leaf in leaves], recipe)
        return fully_sharded_adamw(decay_groups, recipe, job.script.update)
    if job.averaging is Averaging.ONE_BIT and layout.data_parallel > 1:
        names = {id(leaf.parameter): leaf.name for leaf in leaves}
        one_bit = one_bit_masters(
            groups, names, recipe, exact_steps=job.exact_steps, renewal=job.renewal, process_group=data
        )
        one_bit.average_gradients_of(modules)
        return one_bit
    compress_gradients(modules, job.averaging, group=data, exact_steps=job.exact_steps)
    if _shards(layout) > 1:
        shard = mesh.get_local_rank(DATA)
        return sharded_adamw(groups, recipe, shards=_shards(layout), shard=shard, process_group=data)
    return whole_adamw(groups, recipe, job.script.update)


def operations(
    architecture: Architecture, kernels: KernelChoice, script: TrainingOptions = DEFAULT_OPTIONS
) -> Operations:
    """By what a decoder of this process computes all but its matrix products."""
    if kernels is KernelChoice.TORCH:
        return TorchOperations(architecture, script)
    from suite.execute.model.triton_operations import TritonOperations  # needs Triton, which not every machine has

    return TritonOperations(architecture)


def compile_blocks(chunks: Iterable[Decoder], dtype: torch.dtype, device: torch.device) -> None:
    """Compile each block of `chunks` for itself, in place; from now on recompiling too often is an error."""
    # DistributedDataParallel's graph splitting is for a model compiled whole; blocks are compiled one by one
    torch._dynamo.config.optimize_ddp = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # rather than go on eagerly
    if device.type == "cpu" and dtype is torch.float16:
        # Inductor's C++ (torch 2.13) declares a sum twice that is stored twice in fp16, as the gradients of both biases
        # of a parallel residual are; it does not where loops that share their inputs stay apart
        torch._inductor.config.cpp.max_horizontal_fusion_size = 1
    for chunk in chunks:
        for block in chunk.blocks.values():
            block.compile()


def _decay_groups(parameters: list[nn.Parameter], recipe: Recipe) -> list[tuple[float, list[nn.Parameter]]]:
    decaying = [p for p in parameters if p.dim() > 1 or recipe.decay_of_vectors]
    others = [p for p in parameters if p.dim() == 1 and not recipe.decay_of_vectors]
    return [(recipe.weight_decay, decaying), (0.0, others)]


def _data_parallel(chunk: Decoder, layout: Layout, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    return DistributedDataParallel(
        chunk,
        process_group=group,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=layout.bucket_bytes / 2**20,
        gradient_as_bucket_view=True,
        init_sync=False,  # every rank draws the same weights, and the leaves have no storage to write to
    )


def _leaves(chunk: Decoder, split: tensor_parallel.Split, *, counts_repeated: bool) -> Iterator[LocalParameter]:
    tied = chunk.architecture.tied_embeddings and (chunk.embedding is None or chunk.head is None)
    for name, parameter in chunk.named_parameters():
        plain = name.replace("parametrizations.", "").removesuffix(".original")
        copied = tied and plain == "head.weight"
        yield LocalParameter(
            parameter,
            plain,
            split.dims.get(plain),
            own=not copied and (counts_repeated or plain not in split.repeated),
            partial=plain in split.partial,
            tied=copied or (tied and plain == "embedding.weight"),
        )
