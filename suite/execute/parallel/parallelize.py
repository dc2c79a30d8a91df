"""Wraps a model for its layout, in one fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from reference_runs.layout import Layout, Recomputation
from reference_runs.run import Architecture, Recipe
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.parallel.mesh import DATA
from suite.execute.parallel.zero import ShardedAdamW, sharded_adamw
from suite.execute.precision import WeightGroup, store_weights


@dataclass(frozen=True)
class Training:
    """What one rank trains: the decoder, the module that is called, the stored weights and the optimizer."""

    decoder: Decoder
    module: nn.Module
    groups: list[WeightGroup]
    optimizer: ShardedAdamW

    @property
    def leaves(self) -> list[nn.Parameter]:
        """The parameters that receive gradients, each once."""
        return [leaf for group in self.groups for leaf in group.leaves]


def parallelize(
    architecture: Architecture,
    recipe: Recipe,
    layout: Layout,
    *,
    mesh: DeviceMesh,
    device: torch.device,
    compiled: bool,
) -> Training:
    """Build and wrap the model of this rank.

    The order is fixed, because each step sees what the one before it made:
        1. build and initialise on the CPU, alike on every rank
        2. store the weights in flat buffers of the recipe's precision, on the device
        3. compile each block
        4. DistributedDataParallel over the data-parallel axis
        5. the optimizer, on the shard of this rank
    """
    decoder = Decoder(architecture, recipe, recompute=layout.recomputation is Recomputation.FULL)
    initialise(decoder, recipe)
    shards = layout.data_parallel if layout.zero_stage >= 1 else 1
    groups = store_weights(decoder, recipe, shards=shards, device=device)
    decoder.to(device)
    if compiled:
        # DistributedDataParallel's graph splitting is for a model compiled whole; blocks are compiled one by one
        torch._dynamo.config.optimize_ddp = False
        for block in decoder.blocks:
            block.compile()
    process_group: dist.ProcessGroup = mesh.get_group(DATA)
    module: nn.Module = decoder
    if layout.data_parallel > 1:
        module = DistributedDataParallel(
            decoder,
            process_group=process_group,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=layout.bucket_bytes / 2**20,
            gradient_as_bucket_view=True,
            init_sync=False,  # every rank draws the same weights, and the leaves have no storage to write to
        )
    shard = mesh.get_local_rank(DATA) if shards > 1 else 0
    optimizer = sharded_adamw(groups, recipe, shards=shards, shard=shard, process_group=process_group)
    return Training(decoder, module, groups, optimizer)
