"""Traces a model in a process of its own, so that no command imports PyTorch."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from reference_runs.errors import InputError
from suite.job.trace_job import NotTraced, StepTrace, TraceAnswer, TraceJob
from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent
from suite.reproduce.dry_run.workers import environment

TAIL = 1500  # characters of what a worker said last


class TraceError(Exception):
    """The process that traces ended without an answer."""


def traced(job: TraceJob) -> StepTrace:
    """What a step of the job does.

    Raises:
        InputError: the model cannot be built or traced.
        TraceError: the process ended without an answer.
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
        said, errors = process.communicate(msgspec.json.encode(job) + b"\n")
    finally:
        process.kill()
        process.wait()
    check_interrupted()
    if process.returncode or not said:
        last = errors.decode(errors="replace")[-TAIL:].strip()
        raise TraceError(f"the process that traces {job.source.words} ended with {process.returncode}: {last}")
    answer: TraceAnswer = msgspec.json.decode(said, type=TraceAnswer)
    if isinstance(answer, NotTraced):
        where = f" ({answer.place})" if answer.place else ""
        raise InputError(f"{answer.message}{where}", where=job.source.words)
    return answer
