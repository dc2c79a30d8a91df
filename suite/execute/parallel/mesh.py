"""The mesh of ranks and the names of its axes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reference_runs.layout import Layout

DATA, TENSOR, PIPELINE = "dp", "tp", "pp"
EMBEDDING = "embedding"  # first and last pipeline stage, which both store a tied embedding


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of `layout` over the first ranks of the job, one named dimension an axis, neighbours of the first axis
    of `rank_order` with consecutive ranks. Every rank of the job must call it: groups are made by all ranks together.
    """
    sizes = {DATA: layout.data_parallel, TENSOR: layout.tensor_parallel, PIPELINE: layout.pipeline_stages}
    axes = [axis for axis in reversed(layout.rank_order.split("-")) if axis in sizes]
    shape = tuple(sizes[axis] for axis in axes)
    if layout.ranks < dist.get_world_size():
        return DeviceMesh(device_type, torch.arange(layout.ranks).view(shape), mesh_dim_names=tuple(axes))
    return init_device_mesh(device_type, shape, mesh_dim_names=tuple(axes))


def coordinates(mesh: DeviceMesh) -> dict[str, int]:
    """Axis -> this rank's place on it."""
    return {axis: mesh.get_local_rank(axis) for axis in mesh.mesh_dim_names or ()}


def dropout_seed(seed: int, mesh: DeviceMesh, layout: Layout) -> int:
    """The seed of this rank's dropout masks, which differ between ranks that drop different hidden states.

    Tensor-parallel ranks have the same hidden states and must drop the same; with sequence parallelism each has a part.
    """
    place = mesh.get_local_rank(DATA) * layout.pipeline_stages + mesh.get_local_rank(PIPELINE)
    if layout.sequence_parallel:
        place = place * layout.tensor_parallel + mesh.get_local_rank(TENSOR)
    return seed + 1 + place


def embedding_group(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The group of first and last pipeline stage to which this rank belongs; None between them or without a pipeline.

    Every rank of the job must call it: groups are made by all ranks together.
    """
    pipeline = mesh[PIPELINE]
    if pipeline.size() == 1:
        return None
    own: dist.ProcessGroup | None = None
    names = mesh.mesh_dim_names or ()
    chains = mesh.mesh.movedim(names.index(PIPELINE), -1).reshape(-1, pipeline.size())
    for chain in chains.tolist():
        ends = [chain[0], chain[-1]]
        group = dist.new_group(ends)
        if dist.get_rank() in ends:
            own = group
    return own


def axis_of_group(mesh: DeviceMesh, embedding: dist.ProcessGroup | None) -> dict[str, str]:
    """Process group name -> axis; the group of all ranks belongs to the axis that spans them."""
    axes: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names or ()}
    if embedding is not None:
        axes[embedding.group_name] = EMBEDDING
    axes.setdefault(dist.group.WORLD.group_name, DATA)  # type: ignore[union-attr]  # the group is initialised
    return axes


def slowest(agree: dist.ProcessGroup, *values: float) -> list[float]:
    """The largest of each value over the ranks."""
    both = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=agree)
    largest: list[float] = both.tolist()
    return largest
