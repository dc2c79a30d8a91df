from __future__ import annotations

import msgspec
import pytest

from suite.predict.plan.training import CHECKPOINT_SECONDS, Failures, goodput, training
from suite.predict.recorded_run.figures import Prices
from tests.predict.plan.test_search import question

MACHINE = msgspec.structs.replace(question(8).machine, watts=400.0, power_share=0.5)


def test_a_training_by_hand() -> None:
    # 10^9 tokens in steps of 1000 samples of 1000 tokens: 1000 steps of 3.6 s are an hour, on 8 accelerators
    found = training(
        tokens=10**9,
        global_batch=1000,
        sequence=1000,
        step_seconds=3.6,
        ranks=8,
        machine=MACHINE,
        prices=Prices(2.0, 0.1, 1.5),
    )
    assert found.steps == 1000
    assert found.days == pytest.approx(1 / 24)
    assert found.accelerator_seconds == pytest.approx(8 * 3600)
    assert found.joules == pytest.approx(8 * 3600 * 400 * 0.5 * 1.5)
    assert found.cost == pytest.approx(8 * 2.0 + 8 * 0.4 * 0.5 * 1.5 * 0.1)


def test_without_prices_there_is_no_cost_and_without_watts_no_energy() -> None:
    powerless = msgspec.structs.replace(MACHINE, watts=None)
    found = training(
        tokens=1, global_batch=1, sequence=1, step_seconds=1.0, ranks=1, machine=powerless, prices=Prices(None, 0.1)
    )
    assert found.cost is None
    assert found.joules is None


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
