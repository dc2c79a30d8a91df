"""Messages between a pipeline stage and the ones before and after it, which no schedule of PyTorch's orders."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Arrival(NamedTuple):
    """A tensor that is on its way; it is there once `works` are done."""

    x: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.x


class StageLink(Protocol):
    """Exchanges hidden states, and their gradients, with one neighbouring stage."""

    def exchange(self, sent: Tensor | None, *, receives: bool) -> Arrival | None:
        """Begin to send `sent`, if it is something, and to receive a tensor, if one is asked for.

        Returns what arrives; None where nothing does.
        """
        ...

    def finish(self) -> None:
        """Wait until all has been sent."""
        ...


class Neighbour:
    """A link over point-to-point operations of torch.distributed.

    What two stages send each other at a time is one batch on both sides: NCCL runs it as one, so that neither waits for
    the other to receive first.

    Args:
        stage: of the other one, its rank in `group`.
        shape, dtype: of hidden states.
    """

    def __init__(
        self, group: dist.ProcessGroup, stage: int, *, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._group, self._stage = group, stage
        self._shape, self._dtype, self._device = shape, dtype, device
        self._sending: list[dist.Work] = []
        self._sent: Tensor | None = None  # alive until it has left

    def exchange(self, sent: Tensor | None, *, receives: bool) -> Arrival | None:
        self.finish()
        operations = []
        if sent is not None:
            operations.append(dist.P2POp(dist.isend, sent, group=self._group, group_peer=self._stage))
        x = torch.empty(self._shape, dtype=self._dtype, device=self._device) if receives else None
        if x is not None:
            operations.append(dist.P2POp(dist.irecv, x, group=self._group, group_peer=self._stage))
        works = dist.batch_isend_irecv(operations)
        if sent is not None:  # NCCL has one work for all
            self._sent, self._sending = sent, works[:1]
        return None if x is None else Arrival(x, works[-1:])

    def finish(self) -> None:
        for work in self._sending:
            work.wait()
        self._sending, self._sent = [], None
