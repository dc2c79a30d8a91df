"""Setups on the page: the median launch, which is shown, and the verdict of the last one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.job.training_job import Job
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import Row, Verdict, overall
from suite.metrics.figures import Figure
from suite.records.record import Record
from suite.records.store import read
from suite.records.summary import LaunchSummary
from suite.report.compared_launches import SetupKey, by_setup, comparable_launches, median_launch
from suite.reproduce.judged_record import Expected, expected_of_job, judged_rows


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one setup, oldest first; those that are compared; the median one of these, if any."""

    key: SetupKey
    launches: list[LaunchSummary]
    comparable: list[LaunchSummary]
    median: LaunchSummary | None

    @property
    def latest(self) -> LaunchSummary:
        """The last one that was started."""
        return self.launches[-1]


def setups(launches: Iterable[LaunchSummary]) -> list[Setup]:
    """The setups of launches that come oldest first, in the order of run, machine, ranks and layout."""
    found = []
    for key, own in by_setup(launches).items():
        comparable = comparable_launches(own)
        found.append(Setup(key=key, launches=own, comparable=comparable, median=median_launch(comparable)))
    return found


def newest(candidates: list[Setup], most: int) -> tuple[list[Setup], list[Setup]]:
    """The `most` setups that were launched last, and the others; both in the order given."""
    ordered = sorted(candidates, key=lambda setup: (setup.latest.started, setup.key), reverse=True)
    kept = {setup.key for setup in ordered[:most]}
    others = [setup for setup in candidates if setup.key not in kept]
    return [setup for setup in candidates if setup.key in kept], others


class JudgedSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A setup with its verdict.

    Args:
        verdict: of its last launch: pass, fail or shown where it ended well, otherwise how it ended.
        record: the whole median launch; where figures of the last one differ, that one, and the last one too where none
            ended well; None where it cannot be read.
        rows: of that launch; none where it did not end well.
        why: in words, where there is something to say.
    """

    setup: Setup
    verdict: str
    record: Record | None
    rows: list[Row]
    why: str = ""


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
    last, shown = setup.latest, setup.median or setup.latest
    try:
        record = read(Path(shown.path))
        rows = judged_rows(record, expected) if setup.median else []
        newest_record, newest_rows = record, rows
        if last.status == Status.OK and last.path != shown.path:
            newest_record = read(Path(last.path))
            newest_rows = judged_rows(newest_record, expected)
    except (InputError, OSError) as error:
        return JudgedSetup(
            setup=setup, verdict="unknown", record=None, rows=[], why=f"its record cannot be read: {error}"
        )
    except ValueError as error:  # a layout or an architecture that this version does not predict
        return JudgedSetup(setup=setup, verdict="not judged", record=record, rows=[], why=f"not predicted: {error}")
    if last.status != Status.OK:
        return JudgedSetup(setup=setup, verdict=last.status, record=record, rows=rows, why=last.message)
    verdict = overall(newest_rows)
    if verdict is not Verdict.FAIL:
        return JudgedSetup(setup=setup, verdict=verdict.value, record=record, rows=rows)
    failed = [row for row in newest_rows if row.verdict is Verdict.FAIL and row.rank is None] or [
        row for row in newest_rows if row.verdict is Verdict.FAIL
    ]
    why = ", ".join(dict.fromkeys(" ".join(filter(None, (row.quantity, row.axis, row.operation))) for row in failed))
    return JudgedSetup(setup=setup, verdict=verdict.value, record=newest_record, rows=newest_rows, why=why)
