"""The mesh of ranks and the names of its axes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reference_runs import placement
from reference_runs.layout import Layout

DATA, TENSOR, PIPELINE = "dp", "tp", "pp"
CONTEXT = "cp"  # within "dp": its ranks hold the same weights
EXPERT, EXPERT_DATA = "ep", "edp"  # with experts shared out: the ranks that do, and those with the same experts
REPLICA = "replica"  # within "edp" where it spans context-parallel ranks too
KEY_VALUE = "kv"  # tensor-parallel ranks with the same key-value head, where there are fewer heads than ranks
SHARD, REPLICATE = "shard", "replicate"  # of hybrid sharding, within "dp": ranks with other shards, and with the same
EMBEDDING = "embedding"  # first and last pipeline stage, which both store a tied embedding
CPU = torch.device("cpu")


_INSIDE = (TENSOR, CONTEXT, EXPERT)  # axes of the ranks that share a stage's layers


def device_mesh(layout: Layout, device_type: str, *, inside: str | None = None) -> DeviceMesh:
    """The mesh of `layout` over the first ranks of the job, with a named dimension for each axis.

    Neighbours on the first axis of `rank_order` have consecutive ranks. "dp" spans the context-parallel ranks too,
    which hold the same weights: those of one sample are neighbours on it. All ranks of the job must call it together.

    Args:
        inside: backend of the groups of ranks that share a stage's layers; None: that of all ranks.
    """
    contexts = layout.context_parallel
    if layout.stage_replicas is not None:
        return _of_unequal_stages(layout, device_type)
    if layout.expert_parallel > 1:
        return _sharing_experts(layout, device_type, inside)
    sizes = {
        DATA: layout.data_parallel,
        CONTEXT: contexts,
        TENSOR: layout.tensor_parallel,
        PIPELINE: layout.pipeline_stages,
    }
    order = [axis for axis in reversed(layout.rank_order.split("-")) if axis in sizes]
    axes = [axis for axis in order if axis != CONTEXT]
    shape = tuple(sizes[axis] * (contexts if axis == DATA else 1) for axis in axes)
    if contexts == 1 and layout.ranks == dist.get_world_size() and inside is None:
        return init_device_mesh(device_type, shape, mesh_dim_names=tuple(axes))
    ranks = torch.arange(layout.ranks).view([sizes[axis] for axis in order])
    ranks = ranks.movedim(order.index(CONTEXT), -1).movedim(-1, axes.index(DATA) + 1)
    return DeviceMesh(
        device_type, ranks.reshape(shape), mesh_dim_names=tuple(axes), backend_override=_backends(axes, inside)
    )


def _of_unequal_stages(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh where stages differ in replicas: "pp" joins all ranks, "dp" those of a stage; see `pipeline_stage`."""
    assert layout.stage_replicas is not None
    ends = list(accumulate(layout.stage_replicas))
    stages = [list(range(end - count, end)) for end, count in zip(ends, layout.stage_replicas, strict=True)]
    rank = dist.get_rank()
    everyone = dist.new_group(list(range(layout.ranks)))
    replicas = [dist.new_group(ranks) for ranks in stages]
    alone = [dist.new_group([each]) for each in range(layout.ranks)]
    own = next(group for group, ranks in zip(replicas, stages, strict=True) if rank in ranks)
    return DeviceMesh.from_group(
        [everyone, own, alone[rank]],
        device_type,
        mesh=torch.tensor([[[rank]]]),
        mesh_dim_names=(PIPELINE, DATA, TENSOR),
    )


def pipeline_stage(mesh: DeviceMesh, layout: Layout) -> int:
    """This rank's."""
    if layout.stage_replicas is not None:
        return placement.coordinates(layout, dist.get_rank())[PIPELINE]
    return mesh.get_local_rank(PIPELINE)


def _backends(axes: Iterable[str], inside: str | None) -> tuple[tuple[str | None, None], ...]:
    return tuple((inside if axis in _INSIDE else None, None) for axis in axes)


def _sharing_experts(layout: Layout, device_type: str, inside: str | None) -> DeviceMesh:
    """The mesh where experts are shared out: the group of `DATA` joins `EXPERT_DATA` and `EXPERT`.

    Those of context-parallel ranks are joined too, neighbours on `DATA` and on `EXPERT_DATA`.
    """
    sizes = {
        DATA: layout.data_parallel,
        EXPERT: layout.expert_parallel,
        TENSOR: layout.tensor_parallel,
        PIPELINE: layout.pipeline_stages,
    }
    splits = layout.context_parallel > 1
    if splits:
        sizes[CONTEXT] = layout.context_parallel
    order = [axis for axis in reversed(layout.axis_order) if axis in sizes]
    axes = [axis for axis in order if axis != CONTEXT]
    if splits:
        axes.insert(max(axes.index(DATA), axes.index(EXPERT)) + 1, CONTEXT)
    ranks = torch.arange(layout.ranks).view([sizes[axis] for axis in order])
    ranks = ranks.permute([order.index(axis) for axis in axes])
    of_data = REPLICA if splits else EXPERT_DATA
    names = tuple(of_data if axis == DATA else axis for axis in axes)
    mesh = DeviceMesh(device_type, ranks, mesh_dim_names=names, backend_override=_backends(names, inside))
    # with a backend they are groups of their own also where others have the same ranks: counters tell them apart
    if splits:
        mesh[REPLICA, CONTEXT]._flatten(EXPERT_DATA, backend_override=dist.get_backend())
    apart = mesh[tuple(name for name in names if name in (of_data, EXPERT, CONTEXT))]
    apart._flatten(DATA, backend_override=dist.get_backend())
    return mesh


@unset_fake_temporarily()  # ranks are numbers that Python reads
def context_mesh(mesh: DeviceMesh, layout: Layout) -> DeviceMesh | None:
    """This rank's context-parallel ranks; None where there are no others.

    All ranks of the job must call it together.
    """
    if layout.context_parallel == 1:
        return None
    names = mesh.mesh_dim_names or ()
    if CONTEXT in names:
        return mesh[CONTEXT]
    samples = mesh.mesh.movedim(names.index(DATA), -1).reshape(-1, layout.context_parallel).tolist()
    backend = dist.get_backend(mesh.get_group(TENSOR))
    groups = [dist.new_group(ranks, backend=backend) for ranks in samples]  # not the mesh's own: messages are counted
    group = next(group for group, ranks in zip(groups, samples, strict=True) if dist.get_rank() in ranks)
    return DeviceMesh.from_group(group, mesh.device_type, mesh_dim_names=(CONTEXT,))


@unset_fake_temporarily()  # ranks are numbers that Python reads
def sharding_mesh(mesh: DeviceMesh, layout: Layout) -> DeviceMesh | None:
    """Hybrid sharding's two axes over this rank's "dp", whose neighbours shard; None where all of its ranks do.

    All ranks of the job must call it together.
    """
    if layout.shard_copies == 1:
        return None
    names = mesh.mesh_dim_names or ()
    blocks = mesh.mesh.movedim(names.index(DATA), -1).reshape(-1, layout.shard_copies, layout.sharding_ranks)
    own: list[dist.ProcessGroup] = []
    for groups in (blocks.transpose(1, 2).reshape(-1, layout.shard_copies), blocks.reshape(-1, layout.sharding_ranks)):
        for ranks in groups.tolist():
            group = dist.new_group(ranks)  # not the mesh's own: messages are counted by their group
            if dist.get_rank() in ranks:
                own.append(group)
    block = next(ranks for ranks in blocks if dist.get_rank() in ranks)
    return DeviceMesh.from_group(own, mesh.device_type, mesh=block, mesh_dim_names=(REPLICATE, SHARD))


def coordinates(mesh: DeviceMesh, layout: Layout) -> dict[str, int]:
    """Axis -> this rank's coordinate on it; of context parallelism where it has several ranks."""
    names = mesh.mesh_dim_names or ()
    if layout.stage_replicas is not None:
        return {axis: placement.coordinates(layout, dist.get_rank())[axis] for axis in names}
    by_axis = {DATA if axis in (EXPERT_DATA, REPLICA) else axis: mesh.get_local_rank(axis) for axis in names}
    if layout.context_parallel > 1 and CONTEXT not in names:
        by_axis[DATA], by_axis[CONTEXT] = divmod(by_axis[DATA], layout.context_parallel)
    return by_axis


def dropout_seed(seed: int, mesh: DeviceMesh, layout: Layout) -> int:
    """The seed of this rank's dropout masks, the same for ranks with the same hidden states.

    These are tensor-parallel ranks, unless with sequence parallelism each has a part.
    """
    index = mesh.get_local_rank(DATA) * layout.pipeline_stages + pipeline_stage(mesh, layout)
    if layout.sequence_parallel:
        index = index * layout.tensor_parallel + mesh.get_local_rank(TENSOR)
    return seed + 1 + index


@unset_fake_temporarily()  # ranks are numbers that Python reads
def embedding_group(mesh: DeviceMesh, layout: Layout) -> dist.ProcessGroup | None:
    """This rank's group of first and last pipeline stage; None on other stages and without a pipeline.

    With all replicas of both, where stages differ in them. All ranks of the job must call it together.
    """
    if layout.stage_replicas is not None:
        first, last = layout.stage_replicas[0], layout.stage_replicas[-1]
        both = [*range(first), *range(layout.ranks - last, layout.ranks)]
        group = dist.new_group(both)
        return group if dist.get_rank() in both else None
    pipeline = mesh[PIPELINE]
    if pipeline.size() == 1:
        return None
    names = mesh.mesh_dim_names or ()
    pipelines = mesh.mesh.movedim(names.index(PIPELINE), -1).reshape(-1, pipeline.size())
    ends = pipelines[:, [0, -1]].tolist()
    groups = [dist.new_group(pair) for pair in ends]
    return next((group for group, pair in zip(groups, ends, strict=True) if dist.get_rank() in pair), None)


@unset_fake_temporarily()  # ranks are numbers that Python reads
def key_value_group(mesh: DeviceMesh, *, copies: int) -> dist.ProcessGroup | None:
    """The tensor-parallel ranks that have the same key-value head as this one; None where no other has.

    All ranks of the job must call it together.

    Args:
        copies: ranks that have one head, neighbours on the axis.
    """
    if copies == 1:
        return None
    names = mesh.mesh_dim_names or ()
    sharing = mesh.mesh.movedim(names.index(TENSOR), -1).reshape(-1, copies).tolist()
    backend = dist.get_backend(mesh.get_group(TENSOR))
    groups = [dist.new_group(ranks, backend=backend) for ranks in sharing]
    return next((group for group, ranks in zip(groups, sharing, strict=True) if dist.get_rank() in ranks), None)


def axis_of_group(
    mesh: DeviceMesh,
    embedding: dist.ProcessGroup | None,
    context: DeviceMesh | None,
    key_value: dist.ProcessGroup | None,
    sharding: DeviceMesh | None,
) -> dict[str, str]:
    """Process group name -> axis. The group of all ranks belongs to the axis that spans them."""
    names = mesh.mesh_dim_names or ()
    joined = (EXPERT_DATA, DATA) if REPLICA in names else (DATA,)
    axes: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in (*names, *joined)}
    if embedding is not None:
        axes[embedding.group_name] = EMBEDDING
    if key_value is not None:
        axes[key_value.group_name] = KEY_VALUE
    if context is not None:
        axes[context.get_group().group_name] = CONTEXT
    if sharding is not None:
        axes |= {sharding.get_group(axis).group_name: axis for axis in (REPLICATE, SHARD)}
    axes.setdefault(dist.group.WORLD.group_name, DATA)  # type: ignore[union-attr]  # the group is initialised
    return axes


def slowest(group: dist.ProcessGroup, *values: float, device: torch.device = CPU) -> list[float]:
    """The largest of each value over the ranks; `device`: which the group sends from."""
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    seconds: list[float] = largest.tolist()
    return seconds
