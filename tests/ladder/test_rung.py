"""How much a rung's losses may differ: as derived, and as sums in another order do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference_runs.run import Precision
from suite.ladder.rung import FP16_ROUNDING, REORDERED, ROUNDING, RUNGS, Promise, reordered_bound, setting_above

UNIT = float(np.finfo(np.float32).eps) / 2


def test_the_bound_of_reordered_sums_is_that_of_a_step_s_tokens_and_thirteen_steps() -> None:
    assert pytest.approx(14 * math.sqrt(32768) * UNIT) == REORDERED
    assert pytest.approx(1.51e-4, rel=0.01) == REORDERED


@pytest.mark.parametrize("mean", [0.0, 1.0], ids=["cancelling", "positive"])
def test_fp32_sums_in_another_order_differ_by_less_than_the_bound_s_part_for_one_sum(mean: float) -> None:
    """Root of the mean square over 50 draws, of one addend after the other, forwards and backwards; in units of what
    a sum of such addends is. By hand it is 0.58 sqrt(n) u of addends that cancel, 0.47 of positive ones."""
    addends, draws = 4096, 50
    drawn = (np.random.default_rng(1).standard_normal((draws, addends)) * (0.1 if mean else 1.0) + mean).astype("f4")
    forwards, backwards = (np.cumsum(one, axis=1, dtype="f4")[:, -1].astype("f8") for one in (drawn, drawn[:, ::-1]))
    usual = addends if mean else math.sqrt(addends)
    found = math.sqrt(float(np.mean((forwards - backwards) ** 2))) / usual
    whole = reordered_bound(addends=addends, steps=0)
    assert whole == pytest.approx(math.sqrt(addends) * UNIT)
    assert whole / 5 < found < whole


def test_a_rung_has_the_bound_of_what_its_losses_are_computed_in() -> None:
    """Its own precision, or that of what it stands on; of changed losses and equal ones there is no bound."""
    for rung in RUNGS:
        setting = setting_above(rung, RUNGS)
        bounds = {Precision.FP32: REORDERED, Precision.FP16: FP16_ROUNDING, Precision.BF16: ROUNDING}
        assert rung.bound == (bounds[setting.precision] if rung.promise is Promise.WITHIN else 0.0)
