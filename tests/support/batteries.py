"""Made-up evidence and findings of a battery."""

from __future__ import annotations

from suite.acceptance.context import RunningBattery, Settings
from suite.acceptance.evidence import (
    Exchange,
    LaunchPurpose,
    MicroMeasurements,
    MiniatureLaunch,
    ProbeResult,
    ReplayHashes,
    SoakResult,
    Surroundings,
)
from suite.acceptance.past_batteries import History
from suite.acceptance.presets import EFFORTS, selected_checks
from suite.job.calibration_job import RankMoments
from suite.job.events import Status
from suite.machine.cpu_speed import SpeedSample
from suite.records.battery import SCHEMA, BatteryEnd, CheckFinding, CheckVerdict, Decision

NOTHING = History()


def planned_battery(results, *, device="cpu", ranks=2, profile="quick", **changes):
    """A battery that has settings, and nothing else yet."""
    effort = EFFORTS[profile]
    usual = {
        "profile": profile,
        "effort": effort,
        "device": device,
        "ranks": ranks,
        "results": results,
        "fleet": None,
        "selected": selected_checks(None, None),
        "miniatures": effort.miniatures,
        "timed": effort.timed,
        "devices": None,
        "others": 0.05,
        "resume": False,
    }
    return RunningBattery(Settings(**(usual | changes)), None, NOTHING, print)


def ended(findings, **changes):
    """A battery that was accepted, with these findings."""
    usual = {
        "kind": "battery",
        "schema": SCHEMA,
        "id": "b",
        "node": "x",
        "profile": "quick",
        "finished": 0.0,
        "seconds": 1.0,
        "decision": Decision.ACCEPTED,
        "hashes": {"hardware": "h"},
    }
    return BatteryEnd(**(usual | changes), findings=list(findings))


def micro(**changes):
    """Two equal ranks at 90 % of their peak."""
    usual = {"matrix": [9e10, 9e10], "copy": [1e10, 1e10], "triad": [1e10, 1e10], "peak": 1e11, "peak_source": "clock"}
    return MicroMeasurements(**({"status": Status.OK, "message": "", "seconds": 1.0} | usual | changes))


def moments(*, slower=1.0, memory=1.0, **changes):
    """Moments of a rank whose turns took `slower` times as long as usual, those of the memory kernel `memory` times."""
    kernels = {"host": 5e-5, "product": 1e-4, "elementwise": 3e-5}
    sample = SpeedSample(**{name: slower * seconds for name, seconds in kernels.items()}, memory=memory * 1e-4)
    usual = {
        "turns": 40,
        "fastest": sample,
        "middle": sample,
        "product": slower * 1e-4,
        "copy": (1e10, 1e10),
        "triad": (1e10, 1e10),
    }
    return RankMoments(**(usual | changes))


def probing(**parts):
    return ProbeResult(**({"status": Status.OK, "message": "", "ranks_at_fault": [], "seconds": 1.0} | parts))


def exchange(rank, peer, bytes_per_second, **changes):
    """An exchange of messages with a peer, or of sums where there is none."""
    usual = {"rank": rank, "peer": peer, "bytes_per_second": bytes_per_second, "wrong": 0, "first": "", "bytes": 16}
    return Exchange(**(usual | changes))


def soaked(rank=0, **changes):
    return SoakResult(**({"rank": rank, "bytes": 8, "passes": 2, "wrong": 0, "first": "x"} | changes))


def replays(ranks=2, times=3, steps=3, wrong=lambda _rank, _replay, _step: False):
    return [
        ReplayHashes(
            rank=rank,
            replay=replay,
            step=step,
            loss="a",
            gradients=f"{rank}{replay}" if wrong(rank, replay, step) else "b",
            parameters="c",
        )
        for rank in range(ranks)
        for replay in range(times)
        for step in range(steps)
    ]


def launched(**changes):
    """A launch that took as long as predicted."""
    usual = {
        "run": "bloom-mini",
        "purpose": LaunchPurpose.TIMES,
        "status": Status.OK,
        "message": "",
        "ranks_at_fault": [],
        "record": "r",
        "seconds": 20.0,
        "exact": 40,
        "step_seconds": 1.0,
        "predicted_seconds": 1.0,
        "measured_terms": {"forward": 0.5, "backward": 0.5, "unexplained": 0.01},
        "predicted_terms": {"forward": 0.5, "backward": 0.5},
        "compute_seconds": [1.0, 1.0],
        "timed": [1.0] * 5,
        "losses": [8.9, 8.8, 8.7],
        "stack": "s",
        "deterministic": True,
    }
    return MiniatureLaunch(**(usual | changes))


def history_of(*, past=None, fleet=None, spread=None, terms=None):
    """A history with these values by check and name, all with one spread and the same terms."""

    def findings(values):
        return {
            key: [
                CheckFinding(
                    check=int(key.partition(":")[0]),
                    subject="x",
                    verdict=CheckVerdict.PASS,
                    measured=value,
                    spread=spread,
                    terms=terms or {},
                )
                for value in of_key
            ]
            for key, of_key in (values or {}).items()
        }

    return History(past=findings(past), fleet=findings(fleet))


def by_check(findings):
    return {f.check: f for f in findings}


def times(factor, *, count=5, term="backward", **changes):
    """Launches slowed by a factor in one term, 1 % apart."""
    out = []
    for number in range(count):
        seconds = factor * (0.99, 1.0, 1.01)[number % 3]
        terms = {"forward": 0.5, "backward": 0.5, "unexplained": 0.01}
        terms[term] = terms.get(term, 0.1) + seconds - 1.0
        out.append(launched(**({"step_seconds": seconds, "measured_terms": terms} | changes)))
    return out


def surroundings(**changes):
    usual = {"device": "cpu", "ranks": 2, "devices": 2, "devices_expected": None, "others_share": 0.0}
    return Surroundings(**(usual | {"competitors": []} | changes))
