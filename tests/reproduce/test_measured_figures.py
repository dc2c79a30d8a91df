"""The share of a pipeline's time in which its ranks did not compute, from what they report."""

from __future__ import annotations

import pytest

from suite.job.events import Finished
from suite.reproduce.measured_figures import measured_idle_fraction
from tests.support.rank_reports import finished


def worked(*, replica: int, stage: int, worked: list[float], pipeline: list[float]) -> Finished:
    """A rank's report of its timed steps."""
    place = {"dp": replica, "tp": 0, "pp": stage}
    return finished(0, coordinates=place, worked_seconds=worked, pipeline_seconds=pipeline)


def test_with_a_flush_the_first_rank_to_end_waits_for_the_others_of_its_pipeline():
    ranks = [
        worked(replica=0, stage=0, worked=[6.0], pipeline=[10.0]),
        worked(replica=0, stage=1, worked=[6.0], pipeline=[8.0]),
        worked(replica=1, stage=0, worked=[6.0], pipeline=[7.0]),
        worked(replica=1, stage=1, worked=[6.0], pipeline=[6.0]),
    ]
    assert measured_idle_fraction(ranks, flushes=True) == pytest.approx(1 - 24 / (10 + 10 + 7 + 7))


def test_without_flush_a_rank_waits_in_its_own_time_alone():
    """One that works for longer between two steps has less of it; the other one waits meanwhile."""
    ranks = [
        worked(replica=0, stage=0, worked=[6.0, 6.0, 9.0], pipeline=[7.0, 8.0, 9.5]),
        worked(replica=0, stage=1, worked=[6.0, 5.0, 2.0], pipeline=[8.0, 6.0, 9.5]),
    ]
    shares = [1 - 12 / 15, 1 - 11 / 14, 1 - 11 / 19]
    assert measured_idle_fraction(ranks, flushes=False) == pytest.approx(sorted(shares)[1])
