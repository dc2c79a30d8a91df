"""By how much gains differ without a reason, and what is said where that is more than they are."""

from __future__ import annotations

import math
from statistics import variance

import msgspec
import pytest
from rich.console import Console

from suite.ladder.judge import launch_variation, noise
from suite.ladder.measurement import RungMeasurement
from suite.ladder.rung import Track
from suite.report.terminal.ladder import print_ladder
from tests.support.ladder_machine import Machine, ladder_of, results_of, rung_measurement

STEADY = (1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999)
LOOSE = (1.0, 1.3, 0.8, 1.1, 1.4, 0.9, 1.2, 0.7, 1.0)


def launches(*seconds: float) -> RungMeasurement:
    one = rung_measurement(1.0, spread=0.0)
    return msgspec.structs.replace(one, launches=len(seconds), launch_seconds=list(seconds))


def test_one_launch_varies_as_assumed_on_its_device() -> None:
    assert launch_variation([2.0], assumed=0.05) == pytest.approx(0.05)
    per_token = noise(Track.SPEED, [launches(1.0)], gpu=False) * 100
    assert per_token == pytest.approx(0.05)
    assert noise(Track.SPEED, [launches(1.0)], gpu=True) * 100 == pytest.approx(0.01)


def test_launches_that_are_repeated_count_by_their_own_spread() -> None:
    """Nine have four fifths of their own variance: the formula, worked out beside it."""
    for seconds in (STEADY, LOOSE):
        own = variance([math.log(one) for one in seconds])
        by_hand = math.sqrt(0.2 * 0.05**2 + 0.8 * own)
        assert launch_variation(seconds, assumed=0.05) == pytest.approx(by_hand)
        assert noise(Track.SPEED, [launches(*seconds)], gpu=False) * 100 == pytest.approx(by_hand / 3)
    steady, loose = (noise(Track.SPEED, [launches(*seconds)], gpu=False) * 300 for seconds in (STEADY, LOOSE))
    assert steady < 0.5 * 0.05
    assert loose > 3 * 0.05


def test_a_rung_s_noise_is_in_its_row_and_grows_with_what_its_launches_differ_by(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    even = results_of(ladder_of(["compile"], repeat=3))["compile"].gain
    machine.phases = {"speed/compile": [0.7, 1.0, 1.3]}
    outcome = ladder_of(["compile"], repeat=3)
    uneven = results_of(outcome)["compile"].gain
    assert even is not None
    assert uneven is not None
    assert uneven.measured == pytest.approx(even.measured)
    assert uneven.noise > 2 * even.noise
    print_ladder(Console(width=300), outcome)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("compile") and "gain" in line)
    assert f"{uneven.noise * 1e6:,.1f}" in row
