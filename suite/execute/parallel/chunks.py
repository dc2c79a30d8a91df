"""This rank's chunks of the model, with its experts and its part of the matrices."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from reference_runs.layout import Layout
from reference_runs.placement import chunk_layers, stage_chunks
from reference_runs.run import Architecture, Recipe
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.fused_gemms import fuse_gemms
from suite.execute.model.packed_attention import use_flash_attention_3, why_not
from suite.execute.model.torch_operations import Operations, TorchOperations
from suite.execute.parallel import tensor_parallel
from suite.execute.parallel.expert_parallel import RowCounter, share_experts
from suite.execute.parallel.mesh import EXPERT, TENSOR, pipeline_stage
from suite.execute.precision import DTYPES
from suite.job.options import DEFAULT_OPTIONS, KernelChoice, Optimization, TrainingOptions
from suite.job.training_job import Job


def chunk_numbers(layout: Layout, mesh: DeviceMesh) -> tuple[int, ...]:
    """Numbers of this rank's chunks in the whole model."""
    return stage_chunks(layout, stage=pipeline_stage(mesh, layout))


def split_chunks(
    job: Job, mesh: DeviceMesh, rows: RowCounter, device: torch.device
) -> tuple[list[Decoder], list[tensor_parallel.Split], frozenset[str]]:
    """This rank's chunks, initialised on the CPU as the whole model would be, with its part of the matrices.

    And the names of its experts' matrices, where other ranks have other ones. Of a slice only what the rank keeps is
    ever allocated, on `device`: its weights are drawn anew, with the recipe's first deviation alone.
    """
    layout = job.layout
    experts: frozenset[str] = frozenset()
    layers = list(chunk_layers(job.architecture.layers, layout))
    chunks, splits = [], []
    if Optimization.FLASH_ATTENTION_3 in job.training_options.optimizations:
        use_flash_attention_3()
    packs = Optimization.PACKED_GRADIENTS in job.training_options.optimizations and not why_not(
        device, DTYPES[job.recipe.precision], job.architecture.fused_head_dim
    )
    for number in chunk_numbers(layout, mesh):
        with torch.device("cpu" if job.slice is None else "meta"):
            chunk = Decoder(
                job.architecture,
                job.recipe,
                operations(job.architecture, job.kernels, job.training_options),
                fused_attention=layout.fused_attention,
                layers=layers[number],
                first=number == 0,
                last=number == len(layers) - 1,
                across_blocks=Optimization.ACROSS_BLOCKS in job.training_options.optimizations,
                packed_gradients=packs,
            )
        chunk.recompute(layout.recomputation, checkpoint_layers=layout.checkpoint_layers)
        if job.slice is None:
            initialise(chunk, job.recipe, seed=job.seed)
        if layout.expert_parallel > 1:
            experts |= share_experts(chunk, mesh.get_group(EXPERT), rows)
        splits.append(tensor_parallel.split(chunk, mesh[TENSOR], sequence_parallel=layout.sequence_parallel))
        if job.slice is not None:
            allocate(chunk, job.recipe, device, seed=job.seed)
        chunks.append(chunk)
    if len(chunks) > 1:
        _tie(chunks, splits)
    fuse_gemms(chunks, job.training_options.optimizations, device)
    return chunks, splits, experts


def _tie(chunks: list[Decoder], splits: list[tensor_parallel.Split]) -> None:
    """Share the embedding of the first chunk with the head of the last, if they are tied and both are here."""
    embedding, head = chunks[0].embedding, chunks[-1].head
    if chunks[0].architecture.tied_embeddings and embedding is not None and head is not None:
        splits[-1].as_dtensor.pop(id(head.weight), None)
        head.weight = embedding.weight


def allocate(chunk: Decoder, recipe: Recipe, device: torch.device, *, seed: int) -> None:
    """Give the parameters and buffers of `chunk`, which is on the meta device, memory on `device`, and draw them.

    A parameter stays the object that it is, in the recipe's precision.
    """
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in chunk.named_parameters():
        drawn = torch.empty(parameter.shape, dtype=DTYPES[recipe.precision], device=device)
        if parameter.dim() == 1:
            drawn.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        else:
            drawn.normal_(0.0, recipe.init_std, generator=generator)
        torch.utils.swap_tensors(parameter, nn.Parameter(drawn))
    for module in chunk.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, torch.zeros(buffer.shape, dtype=buffer.dtype, device=device))


def operations(
    architecture: Architecture, kernels: KernelChoice, script: TrainingOptions = DEFAULT_OPTIONS
) -> Operations:
    """Operations that compute all of a decoder but its matrix multiplications."""
    if kernels is KernelChoice.TORCH:
        return TorchOperations(architecture, script)
    from suite.execute.model.triton_operations import TritonOperations  # needs Triton, which not every machine has

    return TritonOperations(architecture)
