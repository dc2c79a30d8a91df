"""A check foresees its power before it launches anything."""

from __future__ import annotations

from types import SimpleNamespace

from suite.regression import check, looks
from suite.regression.check import RegressionCheck
from suite.regression.comparability import setup_of
from tests.support.histories import launch_of, normal_launches


def said(monkeypatch, *, launches, limit, floor="a floor", before=None, show=lambda count: 1 / count):
    """The lines of a check of two runs, where so many launches on both sides show a slow-down of `show`."""
    monkeypatch.setattr(check, "floor_of", lambda *_: (floor, "9 identical launches are recorded"))
    asked = []

    def least(floor, earlier, now, *, family, rerun):
        asked.append((earlier, now, family, rerun))
        return show(now)

    monkeypatch.setattr(looks, "least_detectable", least)
    lines = []
    one = SimpleNamespace(run=SimpleNamespace(setup="s", plan=SimpleNamespace(name="x")), before=before)
    RegressionCheck([], None, None, None, lines.append, limit)._foresee([one, one], [], launches)
    return lines, asked


def test_the_fewest_launches_that_would_show_the_limit_are_told(monkeypatch):
    for launches, limit, remedy in (
        (5, 0.1, "--launches 10 does"),
        (5, 1 / 7, "--launches 7 does"),
        (5, 0.09, "--launches 15 does"),
        (5, 0.05, "--launches 20 does"),
        (5, 0.04, "--launches 30 does"),
        (5, 0.03, "--launches 40 does"),
        (5, 0.02, "--launches 60 does"),
        (7, 0.12, "--launches 10 does"),
        (5, 0.016, "a quieter machine is needed"),
    ):
        lines, asked = said(monkeypatch, launches=launches, limit=limit)
        now = f"no slow-down below {1 / launches:.0%}"
        assert lines == [f"x: {launches} launches show {now} here, asked for {limit:.0%}: {remedy}"] * 2
        assert asked[0] == (launches, launches, 2, launches)
    assert said(monkeypatch, launches=5, limit=0.2)[0] == []  # enough
    baseline = SimpleNamespace(launches=[None] * 3)
    assert said(monkeypatch, launches=5, limit=0.2, before=baseline)[1][0] == (3, 5, 2, 5)


def test_where_no_slow_down_would_be_seen_that_is_said(monkeypatch):
    lines, _ = said(monkeypatch, launches=2, limit=0.1, show=lambda count: None if count < 7 else 0.05)
    assert lines[0] == "x: 2 launches show no slow-down here, asked for 10%: --launches 7 does"


def test_without_a_floor_times_stay_uncalibrated_unless_so_many_launches_give_one(monkeypatch):
    words = "x: times will be uncalibrated: 9 identical launches are recorded"
    assert said(monkeypatch, launches=9, limit=0.1, floor=None)[0] == [words] * 2
    assert said(monkeypatch, launches=10, limit=0.1, floor=None)[0] == []


def test_every_run_is_foreseen_whatever_is_said_of_the_ones_before(monkeypatch):
    """The first has enough launches, the second no floor, the third too few."""
    floors = {"quiet": 0.01, "new": None, "loud": 0.5}
    monkeypatch.setattr(check, "floor_of", lambda setup, *_: (floors[setup], "none is recorded"))
    monkeypatch.setattr(looks, "least_detectable", lambda floor, *_, **__: floor)
    runs = [SimpleNamespace(setup=name, plan=SimpleNamespace(name=name)) for name in floors]
    lines = []
    states = [SimpleNamespace(run=run, before=None) for run in runs]
    RegressionCheck([], None, None, None, lines.append, 0.1)._foresee(states, [], 5)
    assert [line.partition(":")[0] for line in lines] == ["new", "loud"]


def test_of_the_best_stretch_two_suites_are_named():
    suites = ["0.1.0 (aaaaaaaaaaaa)", "0.1.0 (bbbbbbbbbbbb)", "0.1.0 (cccccccccccc)"]
    best = [launch_of(n, value, suite=suites[n // 2]) for n, value in enumerate(normal_launches(1, 6))]
    slow = [launch_of(6 + n, 2 * value) for n, value in enumerate(normal_launches(2, 14))]
    now = [launch_of(40 + n, 2 * value) for n, value in enumerate(normal_launches(3, 5))]
    run = SimpleNamespace(setup=setup_of(best[0]), plan=SimpleNamespace(name="bloom-mini"))
    state = SimpleNamespace(run=run, after=now, again=[])
    shown = check._against_the_best(state, slow, [*best, *slow, *now])
    assert shown.why == f"the best stretch of the history, {suites[0]}, {suites[1]}"
    assert (shown.before_launches, shown.after_launches) == (6, 5)
    known = [*best, *slow, *now]
    assert check._against_the_best(state, best, known) is None
    assert check._against_the_best(state, [], known) is None
    for before in (best[1:], [*best, slow[0]]):  # less and more than the best stretch
        assert check._against_the_best(state, before, known).before == shown.before
    for setup in ("", "zz"):  # that come before and after all fingerprints
        run.setup = setup
        assert check._against_the_best(state, slow, known) is None
