"""Tensor parallelism of the mixtures of experts of one chunk: each rank has a part of every expert and all rows.

Expansions are split by columns and contractions by rows, expert by expert, and those of shared experts too. Every rank
has all hidden states, its router chooses as the others do, and one sum over ranks ends the layer: of what the experts
give, weighed. So each rank has a part of the gradient of the router.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import Experts

SEQUENCE_DIM = 1
_SPLIT_DIMS = {"expansion": 0, "contraction": 1}


def split_experts(decoder: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> dict[str, int]:
    """Keep this rank's part of every expert of `decoder`, in place; returns the dims of the split matrices, by name.

    Dim 0 is that of each expert, whose matrices lie one below the other.
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    between: Placement = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    dims: dict[str, int] = {}
    for name, module in decoder.named_modules():
        if not isinstance(module, Experts):
            continue
        module.entered = partial(_entered, mesh=mesh, between=between)
        module.left = partial(_left, mesh=mesh, between=between)
        module.router.loss_weight /= ranks  # each adds its gradient, and the ranks' are summed
        if module.router.sequence_weight is not None:
            module.router.sequence_weight /= ranks
        for owner in ("experts", "shared_experts") if module.shared_experts is not None else ("experts",):
            experts = len(module.get_parameter(f"{owner}.contraction.weight")) // decoder.architecture.hidden
            for kind, dim in _SPLIT_DIMS.items():
                matrix = module.get_submodule(f"{owner}.{kind}")
                stacked_EMK = matrix.get_parameter("weight").detach().unflatten(0, (experts, -1))
                part_EMK = stacked_EMK.chunk(ranks, dim + 1)[rank]
                matrix.register_parameter("weight", nn.Parameter(part_EMK.flatten(0, 1).clone()))
                dims[f"{name}.{owner}.{kind}.weight"] = dim
    return dims


def _entered(x_BTD: Tensor, *, mesh: DeviceMesh, between: Placement) -> Tensor:
    """Hidden states of all positions; their gradients are summed over the ranks, and dealt out as they were."""
    placed = DTensor.from_local(x_BTD, mesh, [between], run_check=False).redistribute(placements=[Replicate()])
    whole: Tensor = placed.to_local(grad_placements=[Partial()])
    return whole


def _left(x_BTD: Tensor, *, mesh: DeviceMesh, between: Placement) -> Tensor:
    """The sum of what the ranks' parts of the experts give; with sequence parallelism this rank's positions of it."""
    summed: Tensor = (
        DTensor.from_local(x_BTD, mesh, [Partial()], run_check=False).redistribute(placements=[between]).to_local()
    )
    return summed
