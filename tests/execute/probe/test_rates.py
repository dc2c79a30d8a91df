"""Rates of a copy and a product are seconds by an independent clock."""

from __future__ import annotations

import time

import pytest
import torch

from suite.execute.probe import rates
from suite.execute.probe.rates import seconds


def test_the_median_call_is_timed_without_the_warm_up() -> None:
    spent = iter([0.05] * rates.WARM_UP + [0.001] * 9 + [0.02] * (rates.TIMED - 9))
    assert 0.02 <= seconds(lambda: time.sleep(next(spent)), torch.device("cpu")) < 0.05


@pytest.mark.rare
def test_a_product_of_twice_the_rows_has_about_the_same_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rows in (512, 1024):
        monkeypatch.setitem(rates.PRODUCT_ROWS, "cpu", rows)
        found.append(rates.rates("cpu")["product_flop_per_second"])
    assert 0.3 < found[0] / found[1] < 3  # type: ignore[operator]  # a clock that counts milliseconds is off by 1000
