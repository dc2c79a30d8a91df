"""Predictions of the slow-link benchmark, and how it finds the break-even rate; its launches need root."""

from __future__ import annotations

import sys

import msgspec
import pytest

from benchmarks import netlab
from benchmarks.netlab import (
    METHODS,
    Link,
    LinkRun,
    break_even,
    buckets,
    measured_break_even,
    predicted_seconds,
    small_plan,
)
from suite.job.options import Averaging
from suite.launch import network_namespaces
from suite.predict.analytic.parameters import parameter_count


def at(rate: float) -> Link:
    return Link(all_reduce=rate, exchange=rate)


def test_messages_leave_one_after_the_other_once_their_part_of_the_backward_pass_is_done() -> None:
    reported = {"forward": 1.0, "backward": 4.0, "rest": 0.5, "total_bytes": 8.0, "overlapped": [2.0, 6.0]}
    # ready after 1 and 4 s: at 1 byte a second the first leaves from 1 to 3 s, the second from 4 to 10 s
    assert predicted_seconds(**reported, link=at(1.0)) == 1 + 10 + 0.5
    # at 4 bytes a second the second ends 1.5 s behind the backward pass
    assert predicted_seconds(**reported, link=at(4.0)) == 1 + 5.5 + 0.5
    assert predicted_seconds(**reported, link=at(1e9)) == pytest.approx(1 + 4 + 0.5)
    # the second waits for the first where that takes longer than the arithmetic
    assert predicted_seconds(**reported | {"backward": 0.0}, link=at(1.0)) == 1 + 8 + 0.5
    # what overlaps nothing comes on top, at its own rate
    link = Link(all_reduce=1.0, exchange=2.0)
    assert predicted_seconds(**reported | {"overlapped": []}, link=link) == 1 + 4 + 0.5 + 4


def test_the_miniature_has_its_parameters_in_layers_and_one_compressed_bucket_fewer_than_none() -> None:
    for method in METHODS:
        plan = small_plan(2, method)
        assert parameter_count(plan.architecture) >= 25e6
        assert (plan.averaging, plan.layout.data_parallel, plan.layout.zero_stage) == (method, 2, 0)
    exact, half = (sum(buckets(small_plan(2, method))) for method in (Averaging.EXACT, Averaging.FP16))
    assert exact == 2 * half == 4 * parameter_count(small_plan(2, Averaging.EXACT).architecture)
    assert buckets(small_plan(2, Averaging.ONE_BIT)) == []


def base(method: Averaging, step: float) -> LinkRun:
    return LinkRun(
        method=method.value,
        hosts=2,
        mbit_per_second=0.0,
        step_seconds=step,
        least_seconds=step,
        most_seconds=step,
        forward=0.1,
        backward=0.2,
        communication=0.0,
        sent_bytes=1.0,
        measured_bytes=1.0,
        loss=1.0,
    )


def test_the_break_even_rate_is_where_both_predictions_are_equal() -> None:
    runs = [base(Averaging.EXACT, 0.5), base(Averaging.ONE_BIT, 1.0)]
    rate = break_even(runs, 2, at(0.5), at(1e12))
    exact, one_bit = (
        netlab.step_over(run, small_plan(2, method), at(0.5 * rate * 1e6 / 8), at(1e12))
        for run, method in zip(runs, (Averaging.EXACT, Averaging.ONE_BIT), strict=True)
    )
    assert exact == pytest.approx(one_bit, rel=1e-3)
    # 1-bit Adam takes 0.5 s more and sends about 97 MB less, of which a backward pass of 0.2 s hides a part
    assert 97e6 * 8 / 0.7e6 < 0.5 * rate < 97e6 * 8 / 0.5e6
    faster = msgspec.structs.replace(runs[1], step_seconds=0.4)
    assert break_even([runs[0], faster], 2, at(0.5), at(1e12)) == float("inf")


def test_a_slower_link_adds_what_its_messages_take_longer_and_keeps_all_else() -> None:
    plan = small_plan(2, Averaging.ONE_BIT)
    run = base(Averaging.ONE_BIT, 1.0)
    run = msgspec.structs.replace(run, communication=0.4)  # of which the fastest link explains nearly nothing
    size = netlab.sent_bytes(plan)
    assert netlab.step_over(run, plan, at(size), at(4 * size)) == pytest.approx(1.0 + 1.0 - 0.25)
    assert netlab.step_over(run, plan, at(size), at(size)) == 1.0
    exact = small_plan(2, Averaging.EXACT)
    hidden = at(1e12)  # the backward pass hides all of it, but for the last bucket
    assert netlab.step_over(base(Averaging.EXACT, 1.0), exact, at(1e11), hidden) == pytest.approx(1.0, abs=2e-3)


def test_the_measured_break_even_rate_is_where_the_line_through_all_differences_is_zero() -> None:
    # exact 1 + 100 / r, 1-bit 2 + 10 / r: equal at r = 90; errors of one pair of launches that a line evens out
    def points(rates: list[float], noise: float = 0.0) -> list[tuple[float, float, float]]:
        return [(rate, 1 + 100 / rate + sign * noise, 2 + 10 / rate) for rate in rates for sign in (1, -1)]

    assert measured_break_even(points([40.0, 80.0, 120.0, 200.0])) == pytest.approx(90.0)
    assert measured_break_even(points([60.0, 80.0, 120.0, 150.0], noise=0.3)) == pytest.approx(90.0)
    disturbed = [*points([40.0, 80.0, 120.0, 200.0]), (60.0, 9.0, 2.0)]
    assert measured_break_even(disturbed) == pytest.approx(90.0, rel=0.02)
    # not between the rates that were tried: no measurement of it
    assert measured_break_even(points([40.0, 80.0])) is None
    assert measured_break_even(points([120.0, 200.0])) is None
    assert measured_break_even([(rate, 1.0, 2.0 + 10 / rate) for rate in (40.0, 80.0)]) is None


def test_without_namespaces_it_says_so_and_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_namespaces, "why_not", lambda: "needs root")
    monkeypatch.setattr(sys, "argv", ["netlab"])
    with pytest.raises(SystemExit) as end:
        netlab.main()
    assert end.value.code == 3
