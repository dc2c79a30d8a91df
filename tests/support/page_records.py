"""A results directory for tests of the page: launches that passed, failed and hung, machines, a change, bad names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from suite.job.events import Status, Step, StepKind
from suite.job.training_job import Job
from suite.machine.fingerprint import Fingerprint
from suite.machine.half_precision import Kernels
from suite.machine.profile import encode, machines_directory
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.paths import RECORDED
from suite.predict.executed_run.figures import expected_figures
from suite.records import store
from suite.records.battery import SCHEMA as BATTERY_SCHEMA
from suite.records.battery import BatteryBegin, BatteryEnd, CheckFinding, CheckVerdict, Decision, RecoveryAction
from suite.records.battery import encode as encode_battery
from suite.records.record import RankOutcome, begin_record
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan
from tests.support.profiles import profile
from tests.support.record_halves import end

EVIL_RUN = "<img src=x onerror=hacked()>"
EVIL_MESSAGE = "</script><script>window.hacked = 1</script> & 'quoted'"
DAY = 86400.0
FIRST = 1.79e9  # 2026-09-21
SHARES = {StepTerm.FORWARD: 0.3, StepTerm.BACKWARD: 0.6, StepTerm.OPTIMIZER: 0.1, StepTerm.UNEXPLAINED: 0.0}
HERE = {"cpu": "AMD EPYC", "cores": "2", "gpus": "none", "memory": "8000000 kB", "cpu_flags": "0"}
THERE = {**HERE, "cpu": "Intel Xeon", "cores": "8"}


def times(seconds: float) -> list[Figure]:
    """A step and its terms."""
    terms = [
        Figure(quantity=Quantity.STEP_SECONDS, term=term.value, value=seconds * share) for term, share in SHARES.items()
    ]
    return [Figure(quantity=Quantity.STEP_SECONDS, value=seconds), *terms]


def job_of(run: str, *, ranks: int = 2, compiled: bool = False, seed: int = 3) -> Job:
    """BLOOM's block in small, under another name."""
    made = job_for(small_plan(ranks=ranks, compiled=compiled), CORPUS, "/none")
    return msgspec.structs.replace(made, name=run, seed=seed)


def record(
    results: Path,
    job: Job,
    number: int,
    *,
    seconds: float = 0.5,
    status: Status = Status.OK,
    message: str = "",
    hardware: dict[str, str] | None = None,
    suite: str = "0.1.0 (aaaaaaaaaaaa)",
    changed: dict[Quantity, int] | None = None,
) -> Path:
    """One launch on day `number` whose counts are as expected, but for what is added to those in `changed`."""
    begin = begin_record(job, CORPUS, f"{number:06d}__node__{number:08x}")
    begin = msgspec.structs.replace(
        begin,
        started=FIRST + DAY * number,
        hardware=hardware or HERE,
        software={**begin.software, "suite": suite},
        hashes={**begin.hashes, "software": suite[-14:], "hardware": str(hash(str(hardware)))[:8]},
    )
    ok = status is Status.OK
    counted = [
        msgspec.structs.replace(figure, value=figure.value + (changed or {}).get(figure.quantity, 0))
        for figure in (expected_figures(job, kernels=Kernels(), cores=2) if ok else [])
        if not (figure.term or "").startswith("textbook")
    ]
    steps = [Step(n, StepKind.TIMED, 9.5 - n / 5 + job.seed / 50, seconds, 0.0) for n in range(8 if ok else 2)]
    closed = end(
        begin.id,
        status=status,
        message=message,
        ranks_at_fault=[] if ok else [1],
        finished=begin.started + 60,
        figures=[*counted, *times(seconds)] if ok else [],
        ranks=[
            RankOutcome(rank=n, steps=steps, last="finished", environment={}, failure="" if ok else f"at {message}")
            for n in range(job.layout.ranks)
        ],
        predicted=times(0.55) if ok else [],
        profile="results/machines/here.json",
        others_share=0.02,
        log_tail="" if ok else EVIL_MESSAGE,
    )
    directory = store.records_directory(results, begin.run)
    return store.Opened(directory, begin).close(closed)


def battery(
    results: Path, number: int, node: str, *findings: CheckFinding, decision: Decision | None, hardware: str = "h"
) -> Path:
    """The record of a battery, and without `decision` its first half alone; the path of the half written last."""
    directory = results / "acceptance"
    directory.mkdir(parents=True, exist_ok=True)
    identity = f"20261122T0000{number:02d}Z"
    hashes = {"hardware": hardware, "software": "s"}
    opening = BatteryBegin(
        kind="battery",
        schema=BATTERY_SCHEMA,
        id=identity,
        node=node,
        profile="quick",
        options={},
        started=FIRST + number,
        hardware={},
        software={},
        hashes=hashes,
    )
    path = directory / f"{identity}.begin.json"
    path.write_bytes(encode_battery(opening))
    if decision is not None:
        closed = BatteryEnd(
            kind="battery",
            schema=BATTERY_SCHEMA,
            id=identity,
            node=node,
            profile="quick",
            finished=FIRST + number + 200,
            seconds=200.0,
            decision=decision,
            findings=list(findings),
            hashes=hashes,
        )
        path = directory / f"{identity}.end.json"
        path.write_bytes(encode_battery(closed))
    return path


def page_records(results: Path) -> Path:
    """Everything that the page can show, small."""
    for number in range(24):
        slower = 1.2 if number >= 12 else 1.0
        suite = f"0.1.0 ({'ab'[number >= 12] * 12})"
        record(results, job_of("bloom-mini"), number, seconds=slower * (0.5 + 0.001 * (number % 3)), suite=suite)
    record(results, job_of("bloom-mini", compiled=True), 30)
    record(results, job_of("bloom-mini", seed=4), 31)
    record(results, job_of("bloom-mini"), 32, hardware=THERE, changed={Quantity.MESSAGES: 1})
    record(results, job_of("gpt2-mini", ranks=1), 33)
    record(results, job_of("gpt2-mini", ranks=1), 34, hardware=THERE, status=Status.HANG, message="rank 0 was silent")
    record(results, job_of(EVIL_RUN), 35, status=Status.CRASHED, message=EVIL_MESSAGE)
    facts: dict[str, Any] = {"cpu": "AMD EPYC", "cores": "2", "gpus": "none"}
    print_ = Fingerprint(node="0123abcd", device="cpu", hardware=facts, software={"torch": "2.13.0"})
    machines_directory(results).mkdir(parents=True)
    (machines_directory(results) / "here.json").write_bytes(encode(profile(fingerprint=print_)))
    slow = CheckFinding(
        check=5,
        subject="link 0-1",
        verdict=CheckVerdict.FAIL,
        measured=5e8,
        expected=1e9,
        unit="byte/s",
        ratio=0.5,
        part=EVIL_MESSAGE,
        evidence="measured twice",
        action=RecoveryAction.RESEAT,
        to_do="reseat the cable",
    )
    good = CheckFinding(check=1, subject="rank 0", verdict=CheckVerdict.PASS)
    battery(results, 1, "n1", good, slow, decision=Decision.REJECTED)
    battery(results, 2, "n1", good, decision=Decision.ACCEPTED)
    battery(results, 3, "n2", good, slow, decision=Decision.REJECTED)
    battery(results, 4, "n3", decision=None)
    shutil.copytree(
        RECORDED / "kernels", results / "kernels", ignore=shutil.ignore_patterns("*.svg", "*.md"), dirs_exist_ok=True
    )
    return results
