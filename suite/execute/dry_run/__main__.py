"""A worker of a dry run: python -m suite.execute.dry_run JOB.json.

A line of its input is an `AskedRank`, a line of its output the answer.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, TextIO

import msgspec

from suite.execute import rank as life

life.die_with_parent()

gc.disable()  # the imports below leave no garbage

from torch.utils._python_dispatch import TorchDispatchMode  # after die_with_parent: it takes seconds

from suite.execute.dry_run.rank import count
from suite.job.dry_run_job import Answer, AskedRank, CountedRank, NotCounted
from suite.job.training_job import Job

gc.freeze()  # each step begins with a collection, which looks at what comes after
gc.enable()


def call_modes_directly() -> None:
    """A worker compiles nothing, so that no dispatch mode has to keep Dynamo from tracing it, at every operator.

    Source: torch.utils._python_dispatch.TorchDispatchMode.__init_subclass__ (torch 2.13).
    """
    modes: list[Any] = [TorchDispatchMode]
    for mode in modes:  # grows
        modes += mode.__subclasses__()
        own = getattr(vars(mode).get("__torch_dispatch__"), "__wrapped__", None)
        if own is not None:
            mode.__torch_dispatch__ = own


def main() -> None:
    """Count every rank that is asked for, until the input ends: each in a child, as DTensor remembers one's mesh."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    call_modes_directly()
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    for line in sys.stdin:
        asked = msgspec.json.decode(line, type=AskedRank)
        child = os.fork()
        if child == 0:
            life.die_with_parent()
            _tell(answers, _answer(job, asked))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            message = f"the process of rank {asked.rank} ended with {code}"
            _tell(answers, NotCounted(rank=asked.rank, message=message, traceback=""))


def _answer(job: Job, asked: AskedRank) -> Answer:
    start = time.perf_counter()
    if asked.layers is not None:
        job = msgspec.structs.replace(job, architecture=msgspec.structs.replace(job.architecture, layers=asked.layers))
    try:
        steps = count(job, asked.rank, asked.steps, activations=asked.activations)
    except BaseException as error:  # whatever it is, it is reported
        message = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        return NotCounted(rank=asked.rank, message=message, traceback=traceback.format_exc())
    seconds = time.perf_counter() - start
    return CountedRank(rank=asked.rank, seconds=seconds, steps=steps, layers=asked.layers)


def _tell(answers: TextIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer).decode() + "\n")
    answers.flush()


main()
