"""Traces models in a process of their own, so that no command imports PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from suite.job.operators import TracedOperator
from suite.job.served_job import ServedJob, ServedTrace
from suite.job.trace_job import ModelSource, NotTraced, StepTrace, TraceAnswer, TraceJob
from suite.launch.interruption import check_interrupted, held
from suite.machine.processes import die_with_parent
from suite.reproduce.dry_run.workers import environment

MOST_MICRO_BATCHES = 3  # that are executed
TAIL = 1500  # characters of what a worker said last


class TraceError(Exception):
    """The process that traces ended without an answer."""


def traced(jobs: Sequence[TraceJob]) -> list[StepTrace]:
    """The step of each job, traced.

    Of many micro-batches three are executed: the first has no gradients to add to, the last may be followed by
    messages, and those between them do the same. What one does is the difference of steps of three and of two.

    Raises:
        InputError: a model cannot be built or traced.
        TraceError: the process ended without an answer, for want of memory perhaps.
    """
    asked: dict[TraceJob, None] = dict.fromkeys(each for job in jobs for each in _executed(job))
    answers = [answer for answer in _answers(list(asked)) if isinstance(answer, StepTrace)]
    steps = dict(zip(asked, answers, strict=True))
    return [_step(job, [steps[each] for each in _executed(job)]) for job in jobs]


def traced_serving(jobs: Sequence[ServedJob]) -> list[ServedTrace]:
    """The forward pass of each job, traced.

    Raises:
        InputError, TraceError: as `traced`.
    """
    return [answer for answer in _answers(jobs) if isinstance(answer, ServedTrace)]


def _executed(job: TraceJob) -> list[TraceJob]:
    if job.micro_batches <= MOST_MICRO_BATCHES:
        return [job]
    numbers = (MOST_MICRO_BATCHES - 1, MOST_MICRO_BATCHES)
    return [msgspec.structs.replace(job, micro_batches=number) for number in numbers]


def _step(job: TraceJob, executed: Sequence[StepTrace]) -> StepTrace:
    """The step of a job from what was executed of it: itself, or steps of two and three micro-batches."""
    *fewer, step = executed
    if not fewer:
        return step
    more = job.micro_batches - MOST_MICRO_BATCHES
    calls = {_alike(each): each.calls for each in fewer[0].operators}
    messages = {(each.axis, each.operation): each for each in fewer[0].collectives}
    operators = []
    for each in step.operators:
        of_one = each.calls - calls.get(_alike(each), 0)
        operators.append(msgspec.structs.replace(each, calls=each.calls + more * of_one))
    collectives = []
    for counted in step.collectives:
        before = messages.get((counted.axis, counted.operation))
        payload = counted.payload_bytes - (before.payload_bytes if before else 0)
        number = counted.messages - (before.messages if before else 0)
        collectives.append(
            msgspec.structs.replace(
                counted, payload_bytes=counted.payload_bytes + more * payload, messages=counted.messages + more * number
            )
        )
    return msgspec.structs.replace(step, operators=operators, collectives=collectives)


def _alike(operator: TracedOperator) -> TracedOperator:
    return msgspec.structs.replace(operator, calls=0, kept_bytes=0)


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


def model_source(name: str) -> ModelSource:
    """The source that an argument names.

    Raises:
        InputError: no such file, or not one of a model.
    """
    file, _, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    path = Path(file)
    if not path.is_file():
        raise InputError("no such file", got=file, allowed="a config.json, or FILE.py:FUNCTION")
    if function:
        if not function.isidentifier():
            raise InputError("not a function's name", got=function, allowed="FILE.py:FUNCTION", where=file)
        return ModelSource(module=f"{path.resolve()}:{function}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"not a JSON file: {error}", where=file) from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError("has no model_type", allowed="a config.json of Hugging Face's transformers", where=file)
    return ModelSource(configuration=str(path.resolve()))
