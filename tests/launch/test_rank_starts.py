"""Ranks that could not all start before they are taken for a hang are refused; a long start is said."""

from __future__ import annotations

import pytest

from reference_runs.errors import InputError
from suite.launch import rank_starts
from suite.launch.rank_events import START_SECONDS
from suite.launch.rank_starts import RANK_BYTES, check_rank_starts, start_seconds


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Two processors and memory for 1000 ranks."""
    monkeypatch.setattr(rank_starts, "usable_cores", lambda: 2)
    monkeypatch.setattr(rank_starts, "free_bytes", lambda: 1000 * RANK_BYTES)


def test_what_can_start_in_time_is_allowed_and_one_rank_more_is_not():
    most = next(ranks for ranks in range(1000) if start_seconds(ranks + 1, 2) > START_SECONDS)
    assert str(most) in check_rank_starts(most, "cpu")
    with pytest.raises(InputError, match=f"at most {most} on 2 processors"):
        check_rank_starts(most + 1, "cpu")


def test_memory_limits_them_too_but_never_below_one_rank_a_processor(monkeypatch):
    monkeypatch.setattr(rank_starts, "free_bytes", lambda: 10 * RANK_BYTES)
    check_rank_starts(10, "cpu")
    with pytest.raises(InputError, match="at most 10"):
        check_rank_starts(11, "cpu")
    monkeypatch.setattr(rank_starts, "free_bytes", lambda: 0)
    assert check_rank_starts(2, "cpu") == ""


def test_a_short_start_is_not_worth_a_line_and_gpus_have_a_limit_of_their_own():
    assert check_rank_starts(2, "cpu") == check_rank_starts(100_000, "cuda") == ""
    assert "about" in check_rank_starts(60, "cpu")
