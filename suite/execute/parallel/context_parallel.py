"""Context parallelism of one chunk: a rank has parts of every sequence, and gathers the keys and values of all.

Each rank computes whole rows of the scores, so that softmax, its mask and dropout are those of one rank. Sums over
ranks are in the backward pass alone. PyTorch's own ring attention (torch.distributed.tensor.experimental) leaves
attention on a CPU as it is, of a rank's own keys alone, without a word (torch 2.13), and has no biases of the scores
and no dropout.

Source: Llama team 2024, arXiv 2407.21783, section 3.3.2 (all-gather of keys and values).
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from suite.execute.model.attention import Attention
from suite.execute.model.decoder import Decoder
from suite.execute.model.latent_attention import LatentAttention


def deal(decoder: Decoder, mesh: DeviceMesh) -> None:
    """Have `decoder` compute this rank's positions, see `dealt`; their queries see the keys and values of all ranks."""
    decoder.context_part = mesh.get_local_rank(), mesh.size()
    for block in decoder.blocks.values():
        cast(Attention | LatentAttention, block.attention).gathered = partial(gathered, mesh=mesh)
    for router in decoder.routers.values():
        router.statistics.averaged = partial(averaged, mesh=mesh)


def averaged(of_rank: Tensor, *, mesh: DeviceMesh) -> Tensor:
    """The mean over the ranks, in place."""
    dist.all_reduce(of_rank, group=mesh.get_group())
    return of_rank.div_(mesh.size())


def gathered(own_BHTK: Tensor, *, mesh: DeviceMesh) -> Tensor:
    """Keys or values of all ranks, [B, H, S, K], rank after rank.

    Backward: every rank has a gradient of all of them, and gets the sum of its own.
    """
    all_CBHTK = (
        DTensor.from_local(own_BHTK.contiguous()[None], mesh, [Shard(0)], run_check=False)
        .redistribute(placements=[Replicate()])
        .to_local(grad_placements=[Partial()])
    )
    joined: Tensor = all_CBHTK.movedim(0, 2).flatten(2, 3)
    return joined
