"""A process group without other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def join_fake_group(rank: int, ranks: int) -> None:
    """Be `rank` of so many from now on: a collective returns at once.

    What it would receive it takes from what this rank sends: gathered parts are copies of its own, sums its own part
    (torch 2.13).
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)


@contextmanager
def fake_group(rank: int, ranks: int) -> Iterator[None]:
    """Within this the process is `rank` of so many."""
    join_fake_group(rank, ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
