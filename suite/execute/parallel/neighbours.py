"""Messages between a pipeline stage and the ones before and after it, which no schedule of PyTorch's orders."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
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


class ReplicatedNeighbour:
    """A link to a stage with another number of replicas, which take micro-batches in turns.

    Its micro-batches are those of this rank, in both directions one after the other. A message leaves while others wait
    for the replica that they are for; no more of them than `outstanding`, so that memory is the same in every run.

    Args:
        turns: ranks in `group` of the replicas that this rank's micro-batches come from and go to, again and again.
        outstanding: messages that may be on their way when the next one leaves.
        left_over: outputs that come for micro-batches after the last step.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        turns: list[int],
        *,
        outstanding: int,
        left_over: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._group, self._outstanding, self._left_over = group, outstanding, left_over
        self._shape, self._dtype, self._device = shape, dtype, device
        self._targets: Iterator[int] = itertools.cycle(turns)
        self._sources: Iterator[int] = itertools.cycle(turns)
        self._sending: deque[tuple[Tensor, dist.Work]] = deque()  # the tensors alive until they have left

    def exchange(self, sent: Tensor | None, *, receives: bool) -> Arrival | None:
        if sent is not None:
            self._wait_for_all_but(self._outstanding - 1)
            operation = dist.P2POp(dist.isend, sent, group=self._group, group_peer=next(self._targets))
            (work,) = dist.batch_isend_irecv([operation])
            self._sending.append((sent, work))
        if not receives:
            return None
        x = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        operation = dist.P2POp(dist.irecv, x, group=self._group, group_peer=next(self._sources))
        return Arrival(x, dist.batch_isend_irecv([operation]))

    def finish(self) -> None:
        for _ in range(self._left_over):
            arrival = self.exchange(None, receives=True)
            assert arrival is not None
            arrival.wait()
        self._wait_for_all_but(0)

    def _wait_for_all_but(self, number: int) -> None:
        while len(self._sending) > number:
            _, work = self._sending.popleft()
            work.wait()
