from __future__ import annotations

from types import SimpleNamespace

import pytest

from suite.job.corpus import Corpus
from suite.ladder import climb as climbing
from suite.ladder import run
from suite.ladder.results import Expected
from suite.ladder.rungs import RUNGS
from suite.reproduce.plan import Plan
from tests.support.climbs import Machine, peak_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose steps take what is predicted of them, too."""
    made = Machine()
    monkeypatch.setattr(run, "reproduce", made.reproduce)

    def expected(plan: Plan, corpus: Corpus, profile: object, **_: object) -> Expected:
        return Expected(peak_bytes=peak_of(plan), phase="backward", step_seconds=made.seconds(plan), terms={})

    monkeypatch.setattr(run, "expected", expected)
    for module in (run, climbing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now))
        monkeypatch.setattr(module, "refusals", lambda _: {rung.name: "not here" for rung in RUNGS if rung.needs})
    return made
