"""A node that is made up, on which a battery runs without a launch."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from suite.__main__ import main
from suite.acceptance import battery, battery_record, context, measurements
from suite.acceptance import phases as planned_phases
from suite.acceptance.evidence import MicroMeasurements, MiniatureLaunch, ProbeResult, ReplayHashes, SoakResult
from suite.job.events import Status
from suite.machine.host_state import HostState

LAUNCH_SECONDS = 25.0
MICRO_SECONDS = 90.0
RATES_SECONDS = 15.0


class Node:
    """A node that takes as long as predicted on a clock of its own; what it was asked for, in order.

    Attributes:
        slow: step time over prediction by miniature, of launches one after the other; the last one goes on.
        stragglers: miniatures whose second rank is slow, by a factor of `late`.
        virtual: whether it is a virtual machine.
        stolen: share of the processors that other guests use by miniature, or of "micro", of one after the other;
            after them none; `used` likewise of other processes.
        unequal: launches with a wrong figure, by miniature.
        tokenised: whether the corpora of its miniatures are.
        matrix: flop/s of each rank in the micro-measurements, of one after the other; after them alike.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.slow: dict[str, list[float]] = {}
        self.stragglers: set[str] = set()
        self.late, self.virtual = 1.3, False
        self.stolen: dict[str, list[float]] = {}
        self.used: dict[str, list[float]] = {}
        self.unequal: dict[str, int] = {}
        self.wrong = 0
        self.peak: float | None = None
        self.matrix: list[list[float]] = []
        self.tokenised = True
        self.probe_parts: list[tuple[bool, bool, bool]] = []

    def shares(self, name):
        made = self.asked.count(name)
        both = {"steal_share": self.stolen, "others_share": self.used}
        return {kind: dict(enumerate(of.get(name, []))).get(made, 0.0) for kind, of in both.items()}

    def miniature_launch(self, name, purpose, **_options):
        made = self.asked.count(name)
        shares = self.shares(name)
        self.asked.append(name)
        self.now += LAUNCH_SECONDS
        factors = self.slow.get(name, [1.0])
        slow = self.late if name in self.stragglers else 1.0
        return MiniatureLaunch(
            run=name,
            purpose=purpose,
            status=Status.OK,
            message="",
            ranks_at_fault=[],
            record="",
            seconds=LAUNCH_SECONDS,
            exact=36,
            unequal=["parameters: 1, not 2"] if self.unequal.get(name) == made else [],
            **shares,
            step_seconds=factors[made % len(factors)] * (1 + made / 1000),
            predicted_seconds=1.0,
            compute_seconds=[1.0, slow],
        )

    def micro_measurements(self, *_arguments):
        return self.timed_rates("micro", MICRO_SECONDS), None

    def rates_again(self, *_arguments):
        return self.timed_rates("rates", RATES_SECONDS)

    def timed_rates(self, name, seconds):
        made = self.asked.count("micro") + self.asked.count("rates")
        shares = self.shares(name)
        self.asked.append(name)
        self.now += seconds
        matrix = self.matrix[made] if made < len(self.matrix) else [1.0]
        rates = {"matrix": matrix, "copy": [1.0], "triad": [1.0], "peak": self.peak, "virtual": self.virtual}
        return MicroMeasurements(status=Status.OK, message="", seconds=seconds, **shares, **rates)

    def probe_result(self, _device, _ranks, effort, *, replays, exchanges, soak, **_options):
        self.asked.append("probe")
        self.probe_parts.append((replays, exchanges, soak))
        seconds = 10.0 + (33.0 if replays else 0.0) + (effort.soak_seconds["cpu"] if soak else 0.0)
        self.now += seconds
        hashes = [
            ReplayHashes(rank=0, replay=n, step=0, loss="a", gradients="b", parameters=str(n) if self.wrong else "c")
            for n in range(3)
        ]
        return ProbeResult(
            status=Status.OK,
            message="",
            ranks_at_fault=[],
            seconds=seconds,
            replays=hashes if replays else [],
            soaks=[SoakResult(rank=0, bytes=1, passes=1, wrong=self.wrong, first="x")] if soak else [],
        )


def accept(capsys, results, *arguments):
    """Exit code of `accept`, its report, and findings by check and subject."""
    code = main(["accept", *arguments, "--results", str(results), "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    report = json.loads(said.out)
    return code, report, {(f["check"], f["subject"]): f for f in report["findings"]}


@pytest.fixture
def node(monkeypatch):
    """A node whose clock is that of the battery."""
    simulated = Node()
    monkeypatch.setattr(planned_phases, "competitors", lambda: ([], 0.0))
    monkeypatch.setattr(planned_phases, "host_state", lambda *_arguments: HostState())
    for name in ("miniature_launch", "micro_measurements", "rates_again", "probe_result"):
        monkeypatch.setattr(measurements, name, getattr(simulated, name))
    monkeypatch.setattr(battery_record, "is_virtual_machine", lambda: simulated.virtual)
    monkeypatch.setattr(measurements, "is_tokenised", lambda *_arguments: simulated.tokenised)
    for module in (battery, context):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: simulated.now))
    return simulated
