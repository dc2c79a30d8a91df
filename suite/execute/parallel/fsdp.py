"""ZeRO-2 and 3 by torch.distributed.fsdp.fully_shard (FSDP2): a unit for each block, and one for the rest."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.nn.utils import parametrize

from reference_runs.layout import Layout, Offload
from reference_runs.run import Precision
from suite.execute.model.decoder import Decoder
from suite.execute.precision import DTYPES, Placed, sharded_policy, share_classes


def shard(
    decoder: Decoder,
    layout: Layout,
    precision: Precision,
    *,
    mesh: DeviceMesh,
    placed: dict[int, Callable[[Tensor], Tensor]],
) -> None:
    """Shard the parameters of `decoder` over the data-parallel `mesh`, in place.

    The shards are fp32 and thus the master weights; units gather them in the recipe's 16 bit. Gradients are reduced
    in fp32, in fp16 recipes in fp16. Without master weights the shards are fp16 themselves.
    """
    # round once, as where weights are stored in 16 bit from the start: all layouts begin with the same ones
    decoder.to(DTYPES[precision])
    if precision is not Precision.FP16_NO_MASTER:
        decoder.float()
    for module in list(decoder.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in placed:
                parametrize.register_parametrization(module, name, Placed(placed[id(parameter)]), unsafe=True)
    share_classes(decoder)
    policy = sharded_policy(precision)
    offload = OffloadPolicy()
    if layout.offload is Offload.STATE:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    keeps = layout.zero_stage == 2 or not layout.reshard_after_forward
    for block in decoder.blocks.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=not keeps, mp_policy=policy, offload_policy=offload)
    fully_shard(decoder, mesh=mesh, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)


def keep_gathered(decoder: nn.Module, *, until_last: bool) -> None:
    """Choose whether the backward pass that follows keeps the gathered weights: ZeRO-2 gathers once a step."""
    assert isinstance(decoder, FSDPModule)
    decoder.set_reshard_after_backward(not until_last)
