"""The share of a pipeline's time in which its ranks did not compute, from what they report."""

from __future__ import annotations

import pytest

from suite.job.events import Finished
from suite.reproduce.measured_figures import measured_idle_fraction


def finished(*, replica: int, stage: int, worked: list[float], pipeline: list[float]) -> Finished:
    """What a rank reports of its timed steps; the rest is nothing."""
    return Finished(
        coordinates={"dp": replica, "tp": 0, "pp": stage},
        collectives=[],
        worked_seconds=worked,
        pipeline_seconds=pipeline,
        interface_sent_bytes=None,
        arithmetic="",
        environment={},
        parameters=0,
        own_parameters=0,
        model_flop=0,
        hardware_flop=0,
        weight_bytes=0,
        gradient_bytes=0,
        optimizer_bytes=0,
        activation_bytes=0,
        peak_bytes=0,
        time=0.0,
    )


def test_with_a_flush_the_first_rank_to_end_waits_for_the_others_of_its_pipeline() -> None:
    ranks = [
        finished(replica=0, stage=0, worked=[6.0], pipeline=[10.0]),
        finished(replica=0, stage=1, worked=[6.0], pipeline=[8.0]),
        finished(replica=1, stage=0, worked=[6.0], pipeline=[7.0]),
        finished(replica=1, stage=1, worked=[6.0], pipeline=[6.0]),
    ]
    assert measured_idle_fraction(ranks, flushes=True) == pytest.approx(1 - 24 / (10 + 10 + 7 + 7))


def test_without_flush_a_rank_waits_in_its_own_time_alone() -> None:
    """One that works for longer between two steps has less of it; the other one waits meanwhile."""
    ranks = [
        finished(replica=0, stage=0, worked=[6.0, 6.0, 9.0], pipeline=[7.0, 8.0, 9.5]),
        finished(replica=0, stage=1, worked=[6.0, 5.0, 2.0], pipeline=[8.0, 6.0, 9.5]),
    ]
    shares = [1 - 12 / 15, 1 - 11 / 14, 1 - 11 / 19]
    assert measured_idle_fraction(ranks, flushes=False) == pytest.approx(sorted(shares)[1])
