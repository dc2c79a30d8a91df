"""Ranks that take turns: one computes while the others wait, and the fastest call of a turn counts."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from queue import Empty
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from suite.execute.calibrate import moments
from suite.execute.calibrate.moments import LEAST_TURNS, turn, turns
from suite.machine.devices import usable_threads


def test_of_a_turn_the_fastest_call_counts_but_for_the_first(monkeypatch):
    monkeypatch.setattr(moments, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(moments, "seconds_of", lambda call: call())
    first, other = iter([0.1, 5.0, 4.0]), iter([9.0, 8.0, 8.5])
    assert turn([lambda: next(first), lambda: next(other)]) == (4.0, 8.0)


def _clock_of_looks() -> SimpleNamespace:
    """In place of `moments.time`: each look at it is one second after the one before."""
    return SimpleNamespace(perf_counter=itertools.count().__next__, thread_time=time.thread_time)


def test_one_rank_takes_its_turns_without_messages(alone, monkeypatch):
    monkeypatch.setattr(moments, "TURN_SECONDS", 0.0)
    for seconds, count in ((0.0, LEAST_TURNS), (2.0, LEAST_TURNS + 1), (5.0, LEAST_TURNS + 4)):
        monkeypatch.setattr(moments, "time", _clock_of_looks())
        assert len(turns([time.perf_counter], alone, seconds)) == count


def _taking_turns(rank, ranks, store, answers, dies):
    """A rank: when its calls began and ended, or what ended them; the rank that `dies` kills itself in its second."""
    dist.init_process_group("gloo", rank=rank, world_size=ranks, store=dist.FileStore(store, ranks))
    moments.time = _clock_of_looks()  # of this process, which is a fork
    spans = []

    def call():
        if rank == dies and spans:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        while time.monotonic() < begun + 0.001:
            pass
        spans.append((begun, time.monotonic()))

    try:
        count = len(turns([call], dist.group.WORLD, 3.0))
    except RuntimeError as error:  # of gloo
        answers.put((rank, type(error).__name__, []))
    else:
        answers.put((rank, count, spans))
    answers.close()
    answers.join_thread()
    os._exit(0)


def _ranks_taking_turns(tmp_path, ranks, dies=None):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [
        context.Process(target=_taking_turns, args=(rank, ranks, str(tmp_path / "store"), answers, dies))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found = []
    try:
        for _ in range(ranks if dies is None else ranks - 1):
            found.append(answers.get(timeout=60))
    except Empty:
        pytest.fail(f"only {found} of {ranks} ranks have answered")
    finally:
        for process in processes:
            process.kill()
            process.join()
    return sorted(found)


@pytest.mark.ranks
def test_ranks_compute_one_after_another_and_equally_often(tmp_path):
    found = _ranks_taking_turns(tmp_path, 3)
    assert [count for _, count, _ in found] == [LEAST_TURNS + 2] * 3
    spans = sorted((begun, end, rank) for rank, _, spans in found for begun, end in spans)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    order = [rank for rank, _ in itertools.groupby(rank for _, _, rank in spans)]
    assert order == [0, 1, 2] * (LEAST_TURNS + 2)


@pytest.mark.ranks
def test_a_rank_that_is_killed_in_its_turn_ends_those_of_the_others(tmp_path):
    found = _ranks_taking_turns(tmp_path, 3, dies=1)
    assert [(rank, spans) for rank, _, spans in found] == [(0, []), (2, [])]
    assert {what for _, what, _ in found} <= {"RuntimeError", "DistNetworkError", "DistBackendError"}


def test_a_rank_with_one_thread_stays_on_one_processor_meanwhile():
    before, seen = usable_threads(), set()
    for rank in range(len(before) + 1):
        with moments.on_own_processor(rank, 1) as own:
            seen.add(usable_threads())
            assert usable_threads() == {own}
            assert len(usable_threads()) == 1
        assert usable_threads() == before
    assert len(seen) == len(before)
    with moments.on_own_processor(0, 2) as own:
        assert usable_threads() == before
    assert own is None
