"""A process group without other processes, or with few of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.testing._internal.distributed.fake_pg import FakeStore


def join_fake_group(rank: int, ranks: int) -> None:
    """Be `rank` of so many from now on: a collective returns at once.

    What it would receive it takes from what this rank sends: gathered parts are copies of its own, sums its own part
    (torch 2.13).
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)


def join_fake_group_with_others(rank: int, ranks: int) -> None:
    """Be `rank` of so many from now on, as `join_fake_group`, with the others of this launch.

    Groups with a backend of their own, whose ranks are all here, exchange messages: they find each other in torchrun's
    store.
    """
    store, _, _ = next(rendezvous("env://"))
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)


@contextmanager
def fake_group(rank: int, ranks: int) -> Iterator[None]:
    """Within this the process is `rank` of so many."""
    join_fake_group(rank, ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
