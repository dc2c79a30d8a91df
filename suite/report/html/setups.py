"""Launches by setup: what is compared on the page, with the verdict of the last launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.job.options import Averaging, KernelChoice
from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row, Verdict, overall
from suite.metrics.figures import Figure
from suite.records.record import Record
from suite.records.store import read
from suite.records.summary import LaunchSummary
from suite.reproduce.judged_record import Expected, expected_of_job, judged_rows


class SetupKey(NamedTuple):
    """The facts that all launches of one setup share, in words."""

    run: str
    machine: str
    ranks: int
    layout: str
    execution: str

    @property
    def id(self) -> str:
        """The setup's address on the page: the same for the same words."""
        return f"s-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:10]}"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one setup, oldest first."""

    key: SetupKey
    launches: list[LaunchSummary]

    @property
    def latest(self) -> LaunchSummary:
        """The last one that was started."""
        return self.launches[-1]

    @property
    def latest_ok(self) -> LaunchSummary | None:
        """The last one that ended well."""
        return next((launch for launch in reversed(self.launches) if launch.status == Status.OK), None)


def execution(launch: LaunchSummary) -> str:
    """The way of execution in words: eager or compiled, kernels and averaging other than PyTorch's, a rung."""
    kernels = launch.policy.get("kernels", KernelChoice.TORCH.value)
    averaging = launch.policy.get("averaging", Averaging.EXACT.value)
    words = ["compiled" if launch.compiled else "eager"]
    if kernels != KernelChoice.TORCH.value:
        words.append(f"{kernels} kernels")
    if averaging != Averaging.EXACT.value:
        words.append(averaging)
    if "synchronisation" in launch.policy:
        words.append(f"{launch.policy['synchronisation']} at a parameter store")
    if "slow_ranks" in launch.policy:
        words.append(f"slow {launch.policy['slow_ranks']}")
    if "shares_devices" in launch.policy:
        words.append("GPUs shared by ranks")
    if launch.rung:
        words.append(launch.rung)
    return ", ".join(words)


def setups(launches: Iterable[LaunchSummary]) -> list[Setup]:
    """The setups of launches that come oldest first, in the order of run, machine, ranks and layout."""
    by_key: dict[SetupKey, list[LaunchSummary]] = {}
    for launch in launches:
        key = SetupKey(launch.run, launch.machine, launch.ranks, launch.layout, execution(launch))
        by_key.setdefault(key, []).append(launch)
    return [Setup(key=key, launches=by_key[key]) for key in sorted(by_key)]


def newest(candidates: list[Setup], most: int) -> tuple[list[Setup], list[Setup]]:
    """The `most` setups that were launched last, and the others; both in the order given."""
    ordered = sorted(candidates, key=lambda setup: (setup.latest.started, setup.key), reverse=True)
    kept = {setup.key for setup in ordered[:most]}
    others = [setup for setup in candidates if setup.key not in kept]
    return [setup for setup in candidates if setup.key in kept], others


_VERDICTS_OF_MARKS = {
    "✓": ("pass", "PASS", "accepted"),
    "✗": ("fail", "FAIL", "rejected"),
    "⚠": ("WARN",),
    "▲": ("regression",),
    "▼": ("improved",),
    "≈": ("noise",),
    "…": ("running",),
    "?": ("inconclusive", "unknown", "INCONCLUSIVE", "INVALID", "not decidable"),
}
MARKS = {verdict: mark for mark, verdicts in _VERDICTS_OF_MARKS.items() for verdict in verdicts}
GOOD = frozenset({"pass", "improved", "PASS", "accepted"})
BAD = frozenset({"fail", "regression", "FAIL", "HANG", "rejected", "execution failed", *Status}) - {Status.OK}


class JudgedSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A setup with its verdict.

    Args:
        verdict: of its last launch: pass, fail or shown where it ended well, otherwise how it ended.
        record: the whole last launch that ended well, or the last one where none did; None where it cannot be read.
        rows: of that launch; none where it did not end well.
        why: in words, where there is something to say.
    """

    setup: Setup
    verdict: str
    record: Record | None
    rows: list[Row]
    why: str = ""


def mark(verdict: str) -> str:
    """A sign that shows the verdict without its colour."""
    return MARKS.get(verdict, "!" if verdict in BAD else "○")


def tone(verdict: str) -> str:
    """good, bad or plain: the class of its colour."""
    return "good" if verdict in GOOD else "bad" if verdict in BAD else "plain"


def remembered() -> Expected:
    """`expected_of_job`, once for each job that differs in what they depend on."""
    known: dict[bytes, list[Figure]] = {}

    def expected(job: Job, kernels: Kernels, cores: int) -> list[Figure]:
        alone = job.device == "cuda" or job.layout.ranks <= cores
        facts = (
            job.architecture,
            job.recipe,
            job.layout,
            job.compiled,
            job.averaging,
            job.kernels,
            job.device,
            job.slice,
        )
        script = msgspec.structs.replace(job.training_options, rung="", texts=None)
        key = msgspec.json.encode([*facts, script, list(kernels), alone])
        if key not in known:
            known[key] = expected_of_job(job, kernels, cores)
        return known[key]

    return expected


def judged_setup(setup: Setup, expected: Expected) -> JudgedSetup:
    """The verdict of a setup, and the launch that its pictures show."""
    last, shown = setup.latest, setup.latest_ok
    why = "" if last.status == Status.OK else last.message
    try:
        record = read(Path((shown or last).path))
        rows = judged_rows(record, expected) if shown else []
    except (InputError, OSError) as error:
        return JudgedSetup(
            setup=setup, verdict="unknown", record=None, rows=[], why=f"its record cannot be read: {error}"
        )
    except ValueError as error:  # a layout or an architecture that this version does not predict
        return JudgedSetup(setup=setup, verdict="not judged", record=record, rows=[], why=f"not predicted: {error}")
    if last.status != Status.OK:
        return JudgedSetup(setup=setup, verdict=last.status, record=record, rows=rows, why=why)
    failed = [row for row in rows if row.verdict is Verdict.FAIL and row.rank is None] or [
        row for row in rows if row.verdict is Verdict.FAIL
    ]
    why = ", ".join(dict.fromkeys(" ".join(filter(None, (row.quantity, row.axis, row.operation))) for row in failed))
    return JudgedSetup(setup=setup, verdict=overall(rows).value, record=record, rows=rows, why=why)
