"""Launches on paper for the command `regress`: no rank is started, records are written as always."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from pathlib import Path

import msgspec

from suite.__main__ import main
from suite.job.events import Status, Step, StepKind
from suite.launch.interruption import OutOfTimeError
from suite.metrics.figures import Figure, Quantity
from suite.records import store
from suite.records.record import RankOutcome, begin_record
from suite.records.store import new_identity, records_directory
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, launch_result
from tests.support.record_halves import end

OLD, NEW = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
COUNTS = {
    "parameters": 1000,
    "optimizer_bytes": 6000,
    "messages": 5,
    "payload_bytes": 4000,
    "peak_bytes": 100_000,
    "first_loss": 9.5,
}


class Machine:
    """Launches on paper: each takes what its code takes, times the machine's own factor and 1 % of chance.

    Args:
        results: where records are written.
    """

    def __init__(self, results):
        self.results = results
        self.commit = OLD
        self.slower = {OLD: 1.0, NEW: 1.0}  # by code
        self.drift = 1.0
        self.spread = 0.01
        self.lasts = None  # launches until the time is over
        self.counts = {}
        self.losses = [9.5, 9.0, 8.5]
        self.status = Status.OK
        self.torch = "2.13.0"
        self.modified = False
        self.order = []
        self.plans = {}
        self.chance = random.Random(7)

    def launch(self, plan, commit, environment=None):
        """Record a launch of `commit`, or of it in an environment with such facts."""
        if self.lasts is not None and len(self.order) >= self.lasts:
            raise OutOfTimeError
        code = environment["environment"] if environment else commit
        self.order.append(code)
        job = job_for(plan, CORPUS, "/none")
        first = begin_record(job, CORPUS, new_identity(), environment)
        suite = f"0.1.0 ({commit}, modified)" if self.modified and commit == self.commit else f"0.1.0 ({commit})"
        software = first.software | {"suite": suite} | ({} if environment else {"torch": self.torch})
        first = msgspec.structs.replace(
            first, software=software, hashes=first.hashes | {"software": str(sorted(software.items()))}
        )
        seconds = self.slower[code] * self.drift * math.exp(self.spread * self.chance.gauss(0, 1))
        counts = COUNTS | (self.counts if commit == self.commit else {})
        figures = [
            Figure(quantity=Quantity.STEP_SECONDS, value=seconds),
            Figure(quantity=Quantity.STEP_SECONDS, value=0.6 * seconds, term="backward"),
            Figure(quantity=Quantity.TOKENS_PER_SECOND, value=1000 / seconds),
            *(Figure(quantity=Quantity(name), value=value) for name, value in counts.items() if value is not None),
        ]
        steps = [Step(n, StepKind.TIMED, loss, seconds, 0.0) for n, loss in enumerate(self.losses)]
        closed = end(
            first.id,
            status=self.status,
            message="" if self.status is Status.OK else "rank 1 killed by SIGKILL",
            figures=figures if self.status is Status.OK else [],
            ranks=[RankOutcome(rank=0, steps=steps, last="finished", environment={})],
        )
        opened = store.Opened(records_directory(self.results, plan.name), first)
        opened.close(closed)
        return launch_result(
            run=plan.name, status=self.status, message=closed.message, record=str(opened.path), losses=self.losses
        )

    def regress(self, *arguments, run="gpt2-mini"):
        """The command's exit code, with new launches by the code that is checked out."""
        return main(["regress", run, *arguments, "--device", "cpu", "--results", str(self.results)])


def on_paper(here, monkeypatch):
    """Launch on paper from now on, and take no time for it."""

    def reproduce(plan, corpus, results, live, *, profile_source, interpreter):
        here.plans[plan.name] = plan
        return here.launch(plan, here.commit, interpreter.software)

    @contextmanager
    def tree(commit, repository):
        yield Path(commit)

    def old(tree, arguments):
        return here.launch(here.plans[arguments[0]], tree.name[:12]).record

    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("suite.metrics.noise_floor.PAIRS", 250)  # of 1000: the power's standard error is 0.02
    monkeypatch.setattr("suite.records.store._RESERVED_BYTES", 0)
    monkeypatch.setattr("suite.commands.regress.reproduce", reproduce)
    monkeypatch.setattr("suite.commands.regress.corpus_for", lambda *_: CORPUS)
    monkeypatch.setattr("suite.regression.check.checkout", tree)
    monkeypatch.setattr("suite.commands.regress.old_launch", old)
    commits = {OLD: OLD + 28 * "a", "main": OLD + 28 * "a", NEW: NEW + 28 * "b"}
    monkeypatch.setattr("suite.regression.baselines.full_commit", lambda ref, _: commits.get(ref))


STEP = ("step_seconds", None)


def in_turn(launches, old=OLD, new=NEW):
    """Who is launched when, so often each: A B, B A, A B, ..."""
    return [who for number in range(launches) for who in ((new, old) if number % 2 else (old, new))]
