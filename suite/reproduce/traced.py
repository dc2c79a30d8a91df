"""Traces models in a process of their own, so that no command imports PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from reference_runs.errors import InputError
from suite.job.served_job import ServedJob, ServedTrace
from suite.job.trace_job import NotTraced, StepTrace, TraceAnswer, TraceJob
from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent
from suite.reproduce.dry_run.workers import environment

TAIL = 1500  # characters of what a worker said last


class TraceError(Exception):
    """The process that traces ended without an answer."""


def traced(jobs: Sequence[TraceJob]) -> list[StepTrace]:
    """The step of each job, traced.

    Raises:
        InputError: a model cannot be built or traced.
        TraceError: the process ended without an answer, for want of memory perhaps.
    """
    return [answer for answer in _answers(jobs) if isinstance(answer, StepTrace)]


def traced_serving(jobs: Sequence[ServedJob]) -> list[ServedTrace]:
    """The forward pass of each job, traced.

    Raises:
        InputError, TraceError: as `traced`.
    """
    return [answer for answer in _answers(jobs) if isinstance(answer, ServedTrace)]


def _answers(jobs: Sequence[TraceJob | ServedJob]) -> list[StepTrace | ServedTrace]:
    """The answer to each job.

    Raises:
        InputError, TraceError: as `traced`.
    """
    with held():
        process = subprocess.Popen(
            [sys.executable, "-m", "suite.execute.trace"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the other
            preexec_fn=die_with_parent,
        )
    try:
        said, errors = process.communicate(b"".join(msgspec.json.encode(job) + b"\n" for job in jobs))
    finally:
        process.kill()  # its child dies with it
        process.wait()
    check_interrupted()
    lines = said.splitlines()
    if len(lines) != len(jobs):
        last = errors.decode(errors="replace")[-TAIL:].strip()
        raise TraceError(f"the process that traces ended with {process.returncode}: {last}")
    answers = [msgspec.json.decode(line, type=TraceAnswer | ServedTrace) for line in lines]
    return [_found(job, answer) for job, answer in zip(jobs, answers, strict=True)]


def _found(job: TraceJob | ServedJob, answer: TraceAnswer | ServedTrace) -> StepTrace | ServedTrace:
    if not isinstance(answer, NotTraced):
        return answer
    if not answer.is_input:
        raise TraceError(f"{job.source.words}: {answer.message}")
    where = f" ({answer.place})" if answer.place else ""
    raise InputError(f"{answer.message}{where}", where=job.source.words)
