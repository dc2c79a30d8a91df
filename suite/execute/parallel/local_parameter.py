"""Parameters as one rank holds them: its part, who counts it, and whose gradients complete its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from suite.execute.model.decoder import Decoder
from suite.execute.parallel.expert_parallel import EXPERT_DIM
from suite.execute.parallel.one_bit.buckets import local
from suite.execute.parallel.tensor_parallel import Split


@dataclass(frozen=True)
class LocalParameter:
    """A parameter that receives gradients, as this rank holds it.

    Args:
        name: in the whole model.
        split_dim: the dim along which the tensor- or expert-parallel ranks hold its parts; None: each stores all of it.
            Where both share out experts, the dim of each expert along which the first do.
        counted: whether this rank counts it. Of the ranks that store the same, one does.
        counts_gradient: whether this rank counts what it has of its gradient.
        partial: whether each tensor-parallel rank has a part of its gradient.
        tied: whether it is the table that first and last pipeline stage share.
        expert: whether expert-parallel ranks share it out.
        own_rows: first rows of what this rank stores, after which come copies of a key-value head that other
            tensor-parallel ranks store too; None: it has none.
        counts_copies: whether this rank counts them.
    """

    parameter: nn.Parameter
    name: str
    split_dim: int | None
    counted: bool
    counts_gradient: bool
    partial: bool
    tied: bool
    expert: bool = False
    own_rows: int | None = None
    counts_copies: bool = True

    @property
    def gradient(self) -> Tensor:
        assert self.parameter.grad is not None
        return local(self.parameter.grad)

    @property
    def local(self) -> Tensor:
        """This rank's part of the parameter, a plain tensor."""
        return local(self.parameter.detach())

    def counted_of(self, x: Tensor) -> Tensor:
        """The rows of its part of the parameter or gradient that this rank counts, if any."""
        return x if self.counts_copies else x[: self.own_rows]

    def counted_of_part(self, start: int, x: Tensor) -> Tensor:
        """The same of some elements of it in a row, the first of which is number `start`."""
        if self.counts_copies or self.own_rows is None:
            return x
        return x[: max(self.own_rows * self.parameter[0].numel() - start, 0)]


def plain_name(name: str) -> str:
    """The name of a parameter without that of its parametrization."""
    return name.replace("parametrizations.", "").removesuffix(".original")


class Place(NamedTuple):
    """A rank's place among those that store the same: it decides what the rank counts.

    Args:
        first: whether it is the first tensor-parallel rank.
        first_of_head: whether it is the first of those with its key-value head.
        counts_dense: whether it counts what is not of its experts.
        has_shards: whether it has a shard of its own of each gradient.
    """

    first: bool
    first_of_head: bool
    counts_dense: bool
    has_shards: bool


def local_parameters(chunk: Decoder, split: Split, experts: frozenset[str], place: Place) -> Iterator[LocalParameter]:
    """Parameters of `chunk`; `experts`: names of matrices that expert-parallel ranks share out."""
    tied = chunk.architecture.tied_embeddings and (chunk.embedding is None or chunk.head is None)
    for name, parameter in chunk.named_parameters():
        plain = plain_name(name)
        expert = plain in experts
        copied = tied and plain == "head.weight"
        once = not copied and (place.first or plain not in split.repeated)
        yield LocalParameter(
            parameter,
            plain,
            split.dims.get(plain, EXPERT_DIM if expert else None),
            counted=once and (place.counts_dense or expert),
            counts_gradient=once and (place.counts_dense or expert or place.has_shards),
            partial=plain in split.partial,
            tied=copied or (tied and plain == "embedding.weight"),
            expert=expert,
            own_rows=_own_rows(parameter, split.own_rows.get(plain)),
            counts_copies=place.first_of_head,
        )


def _own_rows(parameter: nn.Parameter, rows: int | None) -> int | None:
    """Number of the first `rows` rows of a parameter that are in this rank's shard of it."""
    if rows is None or not isinstance(parameter, DTensor):
        return rows
    mesh, shard = parameter.device_mesh, len(local(parameter))
    axis = mesh.ndim - 1  # of hybrid sharding, the ranks that shard
    each = -(-len(parameter) // mesh.size(axis))  # fully_shard's, as torch.chunk has them
    return min(max(rows - mesh.get_local_rank(axis) * each, 0), shard)
