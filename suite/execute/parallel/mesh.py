"""The mesh of ranks and the names of its axes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reference_runs.layout import Layout

DATA, TENSOR, PIPELINE = "dp", "tp", "pp"
EMBEDDING = "embedding"  # first and last pipeline stage, which both store a tied embedding


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of `layout` over the first ranks of the job, with a named dimension for each axis.

    Neighbours on the first axis of `rank_order` have consecutive ranks. All ranks of the job must call it together.
    """
    sizes = {DATA: layout.data_parallel, TENSOR: layout.tensor_parallel, PIPELINE: layout.pipeline_stages}
    axes = [axis for axis in reversed(layout.rank_order.split("-")) if axis in sizes]
    shape = tuple(sizes[axis] for axis in axes)
    if layout.ranks < dist.get_world_size():
        return DeviceMesh(device_type, torch.arange(layout.ranks).view(shape), mesh_dim_names=tuple(axes))
    return init_device_mesh(device_type, shape, mesh_dim_names=tuple(axes))


def coordinates(mesh: DeviceMesh) -> dict[str, int]:
    """Axis -> this rank's coordinate on it."""
    return {axis: mesh.get_local_rank(axis) for axis in mesh.mesh_dim_names or ()}


def dropout_seed(seed: int, mesh: DeviceMesh, layout: Layout) -> int:
    """The seed of this rank's dropout masks, the same for ranks with the same hidden states.

    These are tensor-parallel ranks, unless with sequence parallelism each has a part.
    """
    index = mesh.get_local_rank(DATA) * layout.pipeline_stages + mesh.get_local_rank(PIPELINE)
    if layout.sequence_parallel:
        index = index * layout.tensor_parallel + mesh.get_local_rank(TENSOR)
    return seed + 1 + index


def embedding_group(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """This rank's group of first and last pipeline stage; None on other stages and without a pipeline.

    All ranks of the job must call it together.
    """
    pipeline = mesh[PIPELINE]
    if pipeline.size() == 1:
        return None
    names = mesh.mesh_dim_names or ()
    pipelines = mesh.mesh.movedim(names.index(PIPELINE), -1).reshape(-1, pipeline.size())
    ends = pipelines[:, [0, -1]].tolist()
    groups = [dist.new_group(pair) for pair in ends]
    return next((group for group, pair in zip(groups, ends, strict=True) if dist.get_rank() in pair), None)


def axis_of_group(mesh: DeviceMesh, embedding: dist.ProcessGroup | None) -> dict[str, str]:
    """Process group name -> axis. The group of all ranks belongs to the axis that spans them."""
    axes: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names or ()}
    if embedding is not None:
        axes[embedding.group_name] = EMBEDDING
    axes.setdefault(dist.group.WORLD.group_name, DATA)  # type: ignore[union-attr]  # the group is initialised
    return axes


def slowest(group: dist.ProcessGroup, *values: float) -> list[float]:
    """The largest of each value over the ranks."""
    largest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    seconds: list[float] = largest.tolist()
    return seconds
