from __future__ import annotations

import pytest

from suite.predict.plan.failures import CHECKPOINT_SECONDS, Failures, goodput

DAY = 86400.0


def test_what_is_given_is_not_assumed() -> None:
    found = goodput(Failures(1e-4, 30.0, 300.0), accelerators=100, training_seconds=DAY, recorded_checkpoint_seconds=40)
    assert found.assumed == ()
    assert found.between_failures_seconds == pytest.approx(100 * 3600)
    assert (found.checkpoint_seconds, found.restart_seconds) == (30.0, 300.0)
    assert 0.9 < found.share < 1
    assert found.seconds * found.share == pytest.approx(DAY)


def test_defaults_are_named() -> None:
    for recorded, seconds in ((None, CHECKPOINT_SECONDS), (40.0, 40.0)):
        found = goodput(Failures(), accelerators=16384, training_seconds=DAY, recorded_checkpoint_seconds=recorded)
        assert found.checkpoint_seconds == seconds
        assert len(found.assumed) == 3
        assert "419 in 54 days on 16,384" in found.assumed[0]


def test_a_training_shorter_than_the_interval_stores_one_checkpoint() -> None:
    found = goodput(Failures(), accelerators=1, training_seconds=60.0, recorded_checkpoint_seconds=None)
    assert found.interval_seconds == 60.0
