"""The axis of a layout that a process group of a trace belongs to: by its description, else by its ranks."""

from __future__ import annotations

import re

from reference_runs.layout import Layout
from reference_runs.placement import coordinates

# In this order: FSDP shards over data and context, and experts have data-parallel groups of their own. Descriptions are
# those of PyTorch's device meshes (mesh_dp_shard_cp) and of Megatron-Core (TENSOR_MODEL_PARALLEL_GROUP).
_DESCRIBED = {
    "data": r"data|dp|ddp|fsdp|hsdp|replicate|shard|distributed_optimizer\w*",
    "expert": r"expert|ep|etp",
    "pipeline": r"pipeline|pipe|pp",
    "tensor": r"tensor|tp",
    "context": r"context|cp|ulysses",
}
_BY_COORDINATE = {"tp": "tensor", "cp": "context", "ep": "expert", "pp": "pipeline"}


def group_axis(group: str, ranks: str, operation: str, layout: Layout | None) -> str | None:
    """Name of the axis: data, tensor, context, expert or pipeline; None: not known.

    Args:
        group: description of the group.
        ranks: its members, such as "[0, 8, 16]".
        layout: of the run, whose coordinates the ranks have; None: not known, and the description alone counts.
    """
    for axis, pattern in _DESCRIBED.items():
        if re.search(rf"(?<![a-z])(?:{pattern})(?![a-z])", group, re.IGNORECASE):
            return axis
    members = [int(number) for number in re.findall(r"\d+", ranks)]
    if layout is None or len(members) < 2 or max(members) >= layout.ranks:
        return None
    places = [coordinates(layout, rank) for rank in members]
    varying = {axis for axis in places[0] if len({place[axis] for place in places}) > 1}
    if varying == {"ep"} and operation != "all-to-all":  # dense gradients are reduced over these ranks, too
        return "data"
    if (varying <= {"dp", "ep", "cp"} and len(varying) > 1) or varying == {"dp"}:
        return "data"
    return _BY_COORDINATE[varying.pop()] if len(varying) == 1 else None
