from __future__ import annotations

from types import SimpleNamespace

import pytest

from suite.job.corpus import Corpus
from suite.ladder import request, run, runner
from suite.ladder.measurement import RungPrediction
from suite.ladder.rung import RUNGS
from suite.reproduce.plan import Plan
from tests.support.ladder_machine import Machine, peak_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose steps take what is predicted of them, too."""
    made = Machine()
    monkeypatch.setattr(request, "reproduce", made.reproduce)

    def expected(plan: Plan, corpus: Corpus, profile: object, **_: object) -> RungPrediction:
        return RungPrediction(peak_bytes=peak_of(plan), phase="backward", step_seconds=made.seconds(plan), terms={})

    monkeypatch.setattr(request, "expected", expected)
    for module in (run, runner):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now))
    for module in (request, runner):
        monkeypatch.setattr(module, "refusals", lambda _: {rung.name: "not here" for rung in RUNGS if rung.needs})
    return made
