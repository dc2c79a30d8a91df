"""Expert parallelism of one chunk: its ranks share out the experts of each layer, and exchange rows by all-to-all.

Shape letters besides those of the experts: S rows that this rank's experts compute, of all ranks' tokens, G ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from suite.execute.model.decoder import Decoder
from suite.execute.model.experts import ExpertMatrices, Experts
from suite.execute.model.row_order import Returned
from suite.job.events import ComputedRows

EXPERT_DIM = 0  # of the matrices, which lie one below the other


class _AllToAll(torch.autograd.Function):
    """Rows to other ranks and from them; their gradients go back. `rows` counts what comes to experts, None nothing."""

    @staticmethod
    def forward(
        ctx: Any, x_RD: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup, rows: LayerRows | None
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group, ctx.rows = sent, received, group, rows
        if rows is not None:
            rows.add(sum(received), backward=False)
        return _exchanged(x_RD, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        if ctx.rows is not None:
            ctx.rows.add(sum(ctx.received), backward=True)
        return _exchanged(gradients[0].contiguous(), ctx.received, ctx.sent, ctx.group), None, None, None, None


def _exchanged(x_RD: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x_RD.new_empty(sum(received), x_RD.shape[1])
    dist.all_to_all_single(out, x_RD, received, sent, group=group)
    return out


class LayerRows:
    """Rows that this rank's experts of a layer computed, pass by pass: forward, or backward."""

    def __init__(self) -> None:
        self.passes: list[tuple[int, bool]] = []

    def add(self, rows: int, *, backward: bool) -> None:
        self.passes.append((rows, backward))

    def of(self, *, backward: bool) -> int:
        return sum(rows for rows, is_backward in self.passes if is_backward == backward)

    @property
    def first_passes(self) -> list[int]:
        """Rows of each micro-batch's first pass, in a whole step. A repeated pass is just before its backward pass."""
        directions = [is_backward for _, is_backward in self.passes]
        repeats = directions.count(False) > directions.count(True)
        following = [*directions[1:], False]
        return [
            rows
            for (rows, is_backward), before_backward in zip(self.passes, following, strict=True)
            if not is_backward and not (repeats and before_backward)
        ]


class RowCounter:
    """Rows that this rank's experts computed since `clear`, in all layers."""

    def __init__(self) -> None:
        self._layers: list[LayerRows] = []

    def new_layer(self) -> LayerRows:
        """Counts those of another layer."""
        self._layers.append(LayerRows())
        return self._layers[-1]

    def clear(self) -> None:
        for layer in self._layers:
            layer.passes.clear()

    @property
    def counted(self) -> ComputedRows:
        forward, backward = (sum(layer.of(backward=way) for layer in self._layers) for way in (False, True))
        return ComputedRows(forward, backward)

    @property
    def of_layers(self) -> ComputedRows:
        """`counted`, and those of each layer in each micro-batch of a whole step."""
        of_micro_batches = zip(*(layer.first_passes for layer in self._layers), strict=True)
        return msgspec.structs.replace(self.counted, layers=[list(rows) for rows in of_micro_batches])


def exchanged_on_host(by_rank_2GE: Tensor, rows: int) -> tuple[list[int], list[int]]:
    """Rows that go to each rank, `rows` together, and that come from each, as Python reads them.

    A dry run, whose tensors have no numbers, has its own in place.
    """
    sent, received = by_rank_2GE.sum(-1).tolist()
    assert sum(sent) == rows
    return sent, received


class ExpertExchange:
    """Sends each row to the rank that has its expert, and brings back what that made of it.

    Ranks send each other first how many rows each expert gets, E numbers; the host waits for them, as it must give the
    sizes of what follows. Not where experts have a capacity, and thus as many places as each other on every rank.
    """

    def __init__(self, group: dist.ProcessGroup, rows: LayerRows, *, equal: bool = False) -> None:
        self._group, self._ranks, self._rows, self._equal = group, group.size(), rows, equal

    def __call__(self, rows_RD: Tensor, ends_E: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        loads_E = ends_E.diff(prepend=ends_E.new_zeros(1)).long()
        coming_E = loads_E if self._equal else torch.empty_like(loads_E)  # of this rank's experts, rank by rank
        if not self._equal:
            dist.all_to_all_single(coming_E, loads_E, group=self._group)
        by_rank = torch.stack([loads_E, coming_E]).view(2, self._ranks, -1)
        if self._equal:
            sent = received = [len(rows_RD) // self._ranks] * self._ranks
        else:
            sent, received = exchanged_on_host(by_rank, len(rows_RD))
        coming_GE = by_rank[1]
        own = torch.arange(coming_GE.shape[1], device=coming_GE.device)
        experts_S = own.repeat(self._ranks).repeat_interleave(coming_GE.flatten(), output_size=sum(received))
        order_S = torch.sort(experts_S, stable=True).indices
        inverse_S = torch.empty_like(order_S)
        inverse_S[order_S] = torch.arange(len(order_S), device=order_S.device)
        own_ends_E = coming_GE.sum(0).cumsum(0).int()
        x_SD: Tensor = _AllToAll.apply(rows_RD, sent, received, self._group, self._rows)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        x_SD = Returned.apply(x_SD, inverse_S, order_S)  # type: ignore[no-untyped-call]  # as above
        y_SD = compute(x_SD, own_ends_E)
        del x_SD
        y_SD = Returned.apply(y_SD, order_S, inverse_S)  # type: ignore[no-untyped-call]  # as above
        y_RD: Tensor = _AllToAll.apply(y_SD, received, sent, self._group, None)  # type: ignore[no-untyped-call]  # as above
        return y_RD


def share_experts(chunk: Decoder, group: dist.ProcessGroup, rows: RowCounter) -> frozenset[str]:
    """Keep this rank's part of the experts of `chunk`, in place; returns the names of their matrices."""
    rank, ranks = group.rank(), group.size()
    if ranks == 1:
        return frozenset()
    names: set[str] = set()
    for name, module in chunk.named_modules():
        if isinstance(module, Experts):
            has_places = chunk.architecture.capacity_factor is not None
            module.exchange = ExpertExchange(group, rows.new_layer(), equal=has_places)
        if isinstance(module, ExpertMatrices):
            part = module.weight.detach().chunk(ranks, EXPERT_DIM)[rank]
            module.weight = nn.Parameter(part.clone())
            names.add(f"{name}.weight")
    return frozenset(names)
