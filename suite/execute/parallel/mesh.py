"""The mesh of ranks and the names of its axes."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from reference_runs.layout import Layout

DATA = "dp"


def device_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """The mesh of `layout` over all ranks of the job, one named dimension an axis."""
    return init_device_mesh(device_type, (layout.data_parallel,), mesh_dim_names=(DATA,))


def axis_of_group(mesh: DeviceMesh) -> dict[str, str]:
    """Process group name -> axis; the group of all ranks belongs to the axis that spans them."""
    axes: dict[str, str] = {mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names or ()}
    axes.setdefault(dist.group.WORLD.group_name, DATA)  # type: ignore[union-attr]  # the group is initialised
    return axes
