"""Ranks that take turns: one computes while the others wait, and the fastest call of a turn counts."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from suite.execute.calibrate import moments
from suite.execute.calibrate.moments import LEAST_TURNS, turn, turns
from suite.machine.devices import usable_threads


@pytest.fixture
def alone(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_of_a_turn_the_fastest_call_counts_but_for_the_first(monkeypatch):
    monkeypatch.setattr(moments, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(moments, "seconds_of", lambda call: call())
    first, other = iter([0.1, 5.0, 4.0]), iter([9.0, 8.0, 8.5])
    assert turn([lambda: next(first), lambda: next(other)]) == (4.0, 8.0)


def test_one_rank_takes_its_turns_without_messages(alone, monkeypatch):
    monkeypatch.setattr(moments, "TURN_SECONDS", 0.0)
    assert len(turns([time.perf_counter], alone, 0.0)) == LEAST_TURNS
    assert len(turns([time.perf_counter], alone, 0.1)) > LEAST_TURNS


def test_a_rank_with_one_thread_stays_on_one_processor_meanwhile():
    before, seen = usable_threads(), set()
    for rank in range(len(before) + 1):
        with moments.on_own_processor(rank, 1):
            seen.add(usable_threads())
            assert len(usable_threads()) == 1
        assert usable_threads() == before
    assert len(seen) == len(before)
    with moments.on_own_processor(0, 2):
        assert usable_threads() == before
