"""Fully sharded weights of one chunk (ZeRO-2 and 3), by FSDP2."""

from __future__ import annotations

from collections.abc import Mapping

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.nn.utils import parametrize

from reference_runs.layout import Layout, Offload
from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import Experts
from suite.execute.precision import DTYPES, AsDTensor, LeafReader, sharded_policy, share_classes


def shard_fully(
    decoder: Decoder,
    layout: Layout,
    precision: Precision,
    *,
    mesh: DeviceMesh,
    of_experts: DeviceMesh | None,
    as_dtensor: Mapping[int, AsDTensor],
) -> None:
    """ZeRO-2 and 3: shard the parameters of `decoder`, in place: a unit for each block, and one for the rest.

    Experts that ranks share out are units of their own. The shards are fp32 and thus the master weights; units gather
    them in the recipe's 16 bit. Gradients are reduced in fp32, in fp16 recipes in fp16. Without master weights the
    shards are fp16 themselves.

    Args:
        mesh: the ranks that shard; with hybrid sharding its axis of copies, then theirs.
        of_experts: those with the same experts, where ranks share them out.
        as_dtensor: id of a parameter -> makes a DTensor of it.
    """
    # round once, so that all layouts begin with the same weights
    for parameter in decoder.parameters():
        rounded = parameter.data.to(DTYPES[precision])
        parameter.data = rounded if precision is Precision.FP16_NO_MASTER else rounded.float()
    for module in list(decoder.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in as_dtensor:
                reader = LeafReader(as_dtensor=as_dtensor[id(parameter)])
                parametrize.register_parametrization(module, name, reader, unsafe=True)
    share_classes(decoder)
    policy = sharded_policy(precision)
    on_cpu = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    offload = on_cpu if layout.offload is Offload.STATE else OffloadPolicy()
    keeps = layout.zero_stage == 2 or not layout.reshard_after_forward
    for block in decoder.blocks.values():
        if of_experts is not None and isinstance(block.feed_forward, Experts):
            experts = block.feed_forward.experts
            fully_shard(
                experts, mesh=of_experts, reshard_after_forward=not keeps, mp_policy=policy, offload_policy=offload
            )
        fully_shard(block, mesh=mesh, reshard_after_forward=not keeps, mp_policy=policy, offload_policy=offload)
    fully_shard(decoder, mesh=mesh, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)
