"""The learning rate over a run."""

from __future__ import annotations

import msgspec
import pytest

from suite.execute.optimizer import learning_rate
from tests.launches import small_plan

RECIPE = msgspec.structs.replace(
    small_plan(ranks=1).recipe,
    global_batch=10,
    warmup=40,
    decay=240,
    learning_rate=1.0,
    minimum_learning_rate=0.1,
)


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    assert [learning_rate(RECIPE, step) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_cosine_passes_its_middle_and_ends_at_the_minimum() -> None:
    assert learning_rate(RECIPE, 13) == pytest.approx(0.55)  # 140 samples: half of the way from 40 to 240
    assert learning_rate(RECIPE, 23) == pytest.approx(0.1)
    assert learning_rate(RECIPE, 1000) == 0.1


def test_it_never_rises_after_the_warm_up() -> None:
    rates = [learning_rate(RECIPE, step) for step in range(3, 30)]
    assert rates == sorted(rates, reverse=True)
