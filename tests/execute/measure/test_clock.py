"""Clocks of ranks: the same on one host, and between hosts as far apart as they are set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from suite.execute.measure import clock

CPU = torch.device("cpu")
AHEAD = 1234.5  # seconds of this rank's clock
DELAYS = [0.0, 0.002, -0.003, 0.001, 0.0]  # of a message to this rank, less that to rank 0


class _Hosts:
    """Rank 1 of two, whose barriers all leave at once but for their message's time."""

    def __init__(self, patch: pytest.MonkeyPatch, boots: list[str]) -> None:
        self.boots = boots
        self.barriers = 0
        patch.setattr(dist, "get_world_size", lambda: 2)
        patch.setattr(dist, "barrier", self.barrier)
        patch.setattr(dist, "all_gather_object", self.gather)
        patch.setattr(clock, "now", lambda _: self.barriers + AHEAD + DELAYS[self.barriers % len(DELAYS)])

    def barrier(self) -> None:
        self.barriers += 1

    def gather(self, everyone: list[Any], own: Any) -> None:
        everyone[:] = self.boots if isinstance(own, str) else [[1.0 + number for number in range(len(own))], own]


def test_ranks_of_one_host_have_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = _Hosts(monkeypatch, ["one", "one"])
    assert clock.seconds_ahead(CPU) == 0.0
    assert hosts.barriers == 0


def test_ranks_of_two_hosts_are_apart_by_the_median_of_their_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    _Hosts(monkeypatch, ["one", "other"])
    assert clock.seconds_ahead(CPU) == pytest.approx(AHEAD, abs=1e-9)
