"""The ranks of these tests: one that fails is reported at once, whoever waits for it; ranks that all wait are late."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from tests.execute.parallel.one_bit import pool as module
from tests.execute.parallel.one_bit.pool import Pool


def answering(*answers: tuple[bool, Any] | None) -> Pool:
    """A pool whose ranks have answered already, or never do."""
    pool = Pool.__new__(Pool)
    pipes = [multiprocessing.Pipe() for _ in answers]
    for (_, theirs), answer in zip(pipes, answers, strict=True):
        if answer is not None:
            theirs.send(answer)
    pool._ends, pool._processes = [ours for ours, _ in pipes], []
    pool._theirs = [theirs for _, theirs in pipes]  # type: ignore[attr-defined]  # they are open as long as it is
    return pool


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.05)


def test_values_are_in_the_order_of_the_ranks_of_the_group() -> None:
    assert answering((True, 5), (True, 6), (True, 7))(2, len) == [5, 6]


def test_a_rank_that_fails_is_reported_though_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 60.0)
    with pytest.raises(RuntimeError, match="rank 1: no\nrank 0, 2 did not answer in time"):
        answering(None, (False, "rank 1: no"), None)(3, len)
    with pytest.raises(RuntimeError, match="rank 0: no\nrank 1: neither"):
        answering((False, "rank 0: no"), (False, "rank 1: neither"))(2, len)


def test_ranks_that_all_wait_are_late() -> None:
    with pytest.raises(TimeoutError, match="rank 0, 1 did not answer in time"):
        answering(None, None)(2, len)
