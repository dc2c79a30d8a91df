"""Change points searched by another process: what this one would find, also where that one is not to be had."""

from __future__ import annotations

import os
import time

import pytest

from suite.metrics.change_points import change_points
from suite.regression.segments import by_setup, searched_times, segments, segments_of
from suite.report.html import change_point_worker
from suite.report.html.change_point_worker import Search, searched
from tests.support.histories import launch_of, normal_launches

pytest.importorskip("ruptures", reason="ruptures is not installed")

SHORT = normal_launches(1, 9)
SLOWER = [*normal_launches(2, 20), *normal_launches(3, 20, median=1.5)]


def test_another_process_finds_what_this_one_finds_and_the_segments_are_the_same(monkeypatch):
    launches = [launch_of(place, seconds) for place, seconds in enumerate(SLOWER)]
    histories, wanted = by_setup(launches), segments(launches)
    (times,) = searched_times(histories)
    with Search() as started:
        monkeypatch.setattr(change_point_worker, "searched", None)  # not here
        started.ask([SHORT, times, []])
        none, found, empty = started.answer()
    assert (none, found, empty) == ([], change_points(SLOWER), []) != ([], [], [])
    assert segments_of(histories, [found]) == wanted


def test_histories_too_short_for_a_change_need_no_answer(monkeypatch):
    monkeypatch.setattr(change_point_worker, "searched", None)
    with Search() as started:
        os.kill(started._process.pid, 9)
        started.ask([SHORT, []])
        assert started.answer() == [[], []]


def test_a_process_killed_or_not_started_is_replaced_by_a_search_here(monkeypatch):
    with Search() as started:
        os.kill(started._process.pid, 9)
        started.ask([SLOWER])
        assert started.answer() == searched([SLOWER])

    def refused(process):
        raise OSError("no more processes")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refused)
    with Search() as started:
        started.ask([SLOWER])
        assert started.answer() == searched([SLOWER])


def test_leaving_ends_the_process_whether_it_was_asked_or_not():
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Search() as started:
        raise KeyboardInterrupt
    assert started._process.exitcode is not None
    assert time.monotonic() - before < 10
