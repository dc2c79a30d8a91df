"""Tensor and sequence parallelism of one chunk, by torch.distributed.tensor.

PyTorch's styles split the matrices and move the hidden states. The parameters themselves stay plain local tensors, and
each becomes a DTensor when it is read. DistributedDataParallel, FSDP and the optimizer refuse to mix both kinds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from suite.execute.model.attention import Attention
from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import Experts
from suite.execute.model.latent_attention import LatentAttention
from suite.execute.model.loss import CrossEntropy
from suite.execute.parallel.tensor_parallel_experts import split_experts
from suite.execute.precision import AsDTensor

SEQUENCE_DIM = 1
# Tables that every rank reads whole, and whose gradient the column-parallel product after them completes
_COMPLETE = {"query_position.weight"}
# The fused projections of keys and values, last in the rows of each of their heads
_KEY_VALUE = ("attention.query_key_value", "attention.key_value")
# The products of latent attention that make heads
_LATENT = ("query_expansion", "key_value_expansion")
# Matrices and tables that every rank has whole
_WHOLE = ("position", "query_position", "query_compression", "key_value_compression")
# What every rank has whole and applies to its own heads, or to what its own parts of the experts give
_OF_PARTS = (
    "attention.query_norm.weight",
    "attention.key_norm.weight",
    "feed_forward.router.weight",
    "feed_forward.shared_gate.weight",
)


@dataclass(frozen=True)
class Split:
    """How one chunk's parameters are divided over the tensor-parallel ranks.

    Args:
        as_dtensor: id of the local parameter -> makes a DTensor of it.
        dims: name of a split parameter -> the dim along which the ranks hold its parts, in order; of experts' matrices,
            which lie one below the other, the dim of each.
        repeated: names of the parameters that every rank stores.
        partial: names of those of whose gradient each rank has a part: norms of its heads, routers; all with sequence
            parallelism.
        own_rows: name of a parameter that has a copy of a key-value head, which other ranks store too -> the rows on
            this rank that no other has: its first ones.
    """

    as_dtensor: dict[int, AsDTensor]
    dims: dict[str, int]
    repeated: frozenset[str]
    partial: frozenset[str]
    own_rows: dict[str, int]


class LocalLoss(nn.Module):
    """The loss of vocabulary-parallel logits as a plain tensor, the same on every rank."""

    def __init__(self, loss: CrossEntropy) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, head: nn.Linear, x_BTD: Tensor, targets_BT: Tensor, upstream: float) -> Tensor:
        loss: DTensor = self.loss(head, x_BTD, targets_BT, upstream)
        return loss.to_local()


def _plan(decoder: Decoder, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    between: Placement = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    columns, rows = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    styles: dict[str, ParallelStyle] = {
        **dict.fromkeys(("query_key_value", "key_value", "expansion", *_LATENT), columns),
        "query": columns if decoder.architecture.key_value_rank else ColwiseParallel(input_layouts=Replicate()),
        **dict.fromkeys(("projection", "contraction"), rows),
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    mixtures = tuple(f"{name}." for name, module in decoder.named_modules() if isinstance(module, Experts))
    plan: dict[str, ParallelStyle] = {}
    for name, module in decoder.named_modules():
        kind = name.rpartition(".")[2]
        if name.startswith(mixtures):
            continue
        if kind in styles:
            plan[name] = styles[kind]
        else:
            assert not isinstance(module, (nn.Linear, nn.Embedding)) or kind in _WHOLE, name
    return plan


def split(decoder: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> Split:
    """Keep this rank's part of the matrices of `decoder`, in place; the weights must be the same on every rank.

    From the first call with several ranks on, the process computes the loss of vocabulary-parallel logits in parallel.
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    if ranks == 1:
        return Split({}, {}, frozenset(), frozenset(), {})
    has_copies = ranks > decoder.architecture.kv_heads
    if has_copies:
        copy_key_value_heads(decoder, heads=ranks)
    plan = _plan(decoder, sequence_parallel=sequence_parallel)
    of_experts = split_experts(decoder, mesh, sequence_parallel=sequence_parallel)
    parallelize_module(decoder, mesh, plan, src_data_rank=None)
    for block in decoder.blocks.values():
        if isinstance(block.attention, LatentAttention):
            block.attention.shared = functools.partial(_shared, mesh=mesh, sequence_parallel=sequence_parallel)
    decoder.tie()  # parallelize_module makes two parameters of the one that embedding and head share
    heads = decoder.architecture.heads // ranks
    decoder.heads = slice(rank * heads, (rank + 1) * heads)
    if sequence_parallel:
        decoder.sequence_part = (rank, ranks)
    if decoder.head is not None:
        decoder.loss = LocalLoss(CrossEntropy())  # kernels of one rank's loss know no rows of others
        loss_parallel().__enter__()  # stays: the backward pass needs it too, and nothing else here reads DTensor logits
    return _local(decoder, of_experts, sequence_parallel=sequence_parallel, has_copies=has_copies)


def _shared(own_BSR: Tensor, *, mesh: DeviceMesh, sequence_parallel: bool) -> Tensor:
    """The part of latent attention's keys that all heads share, of all positions; of its gradient each rank has that of
    its own heads."""
    if sequence_parallel:
        placed = DTensor.from_local(own_BSR.contiguous(), mesh, [Shard(SEQUENCE_DIM)], run_check=False)
        placed = placed.redistribute(placements=[Replicate()])
    else:
        placed = DTensor.from_local(own_BSR, mesh, [Replicate()], run_check=False)
    whole: Tensor = placed.to_local(grad_placements=[Partial()])
    return whole


def copy_key_value_heads(decoder: Decoder, *, heads: int) -> None:
    """Make `decoder`, in place, one of so many key-value heads that computes the same: each is there several times.

    Rows [G, R + 2, K] become [G, C, R / C + 2, K] with C copies of each head, and [G, 2, K] of a top-query layer
    [G, C, 2, K].

    Args:
        heads: a multiple of the decoder's key-value heads, a divisor of its heads.
    """
    shape = decoder.architecture
    groups, copies, group = shape.kv_heads, heads // shape.kv_heads, shape.heads // heads
    for block in decoder.blocks.values():
        attention = block.attention
        assert isinstance(attention, Attention)
        attention.group, attention.context.grouped = group, group > 1
        linear = attention.key_value if attention.top_query else attention.query_key_value
        queries = 0 if attention.top_query else group
        for name, parameter in list(linear.named_parameters(recurse=False)):
            rows = parameter.detach().unflatten(0, (groups, copies * queries + 2, shape.head_dim))
            own, copied = rows.split((copies * queries, 2), dim=1)
            own = own.unflatten(1, (copies, queries))
            copied = copied.unsqueeze(1).expand(-1, copies, *copied.shape[1:])
            expanded = torch.cat([own, copied], dim=2).flatten(0, 3)
            linear.register_parameter(name, nn.Parameter(expanded))
        linear.out_features = len(linear.weight)
    decoder.architecture = msgspec.structs.replace(shape, kv_heads=heads)


class _Waited(torch.autograd.Function):
    """The plain tensor of a message that may not have arrived. Its gradient passes unchanged."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        waited: Tensor = x.trigger_wait() if isinstance(x, AsyncCollectiveTensor) else x.view_as(x)
        return waited

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def wait_for_embedding(decoder: Decoder) -> None:
    """Hand the compiled blocks of `decoder` a plain tensor.

    torch.compile (torch 2.13) gives the gradient of an AsyncCollectiveTensor to the wrong node of autograd. Only an
    embedding without positions, norm and dropout after it hands one on: GPT-NeoX's.
    """
    if decoder.embedding is not None:
        decoder.embedding.register_forward_hook(lambda _module, _inputs, x: _Waited.apply(x))  # type: ignore[no-untyped-call]


def _local(decoder: Decoder, of_experts: dict[str, int], *, sequence_parallel: bool, has_copies: bool) -> Split:
    """Replace every DTensor parameter by its local tensor; `of_experts`: dims of those that are split already."""
    plain: dict[int, nn.Parameter] = {}
    as_dtensor: dict[int, AsDTensor] = {}
    dims = dict(of_experts)
    repeated: set[str] = set()
    untouched: set[str] = set()
    for module_name, module in decoder.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            full_name = f"{module_name}.{name}" if module_name else name
            if not isinstance(parameter, DTensor):
                if full_name not in of_experts:
                    untouched.add(full_name)
                continue
            if id(parameter) not in plain:
                local = nn.Parameter(parameter.to_local().detach().clone())
                plain[id(parameter)] = local
                mesh, placements = parameter.device_mesh, parameter.placements
                as_dtensor[id(local)] = functools.partial(
                    DTensor.from_local, device_mesh=mesh, placements=placements, run_check=False
                )
            (placement,) = parameter.placements
            if isinstance(placement, Shard):
                dims[full_name] = placement.dim
            else:
                repeated.add(full_name)
            module.register_parameter(name, plain[id(parameter)])
    partial = untouched - _COMPLETE if sequence_parallel else {name for name in untouched if name.endswith(_OF_PARTS)}
    copies = 2 * decoder.architecture.head_dim
    own_rows = {
        name: len(parameter) - copies
        for name, parameter in decoder.named_parameters()
        if has_copies and name.rpartition(".")[0].endswith(_KEY_VALUE)
    }
    return Split(as_dtensor, dims, frozenset(repeated | untouched), frozenset(partial), own_rows)
