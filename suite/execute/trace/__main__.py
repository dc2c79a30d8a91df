"""A worker that traces: python -m suite.execute.trace; a line of its input is a job, one of its output the answer."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings

import msgspec

from suite.execute import rank as life

life.die_with_parent()

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException  # it takes seconds

from suite.execute.trace.published_kernels import install
from suite.execute.trace.served import trace_served
from suite.execute.trace.sources import SourceError, last_line, one_line
from suite.execute.trace.step import trace
from suite.job.served_job import ServedJob, ServedTrace
from suite.job.trace_job import UNKNOWN_SHAPES, NotTraced, TraceAnswer, TraceJob


def main() -> None:
    """Trace every job until the input ends: each in a child, as DTensor remembers one's mesh."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints is no answer
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=TraceJob | ServedJob)
        if job.source.configuration:
            import transformers  # noqa: F401  # once, not in each child
        if isinstance(job, TraceJob) and job.adapters is not None:
            import peft  # noqa: F401  # likewise
        gc.freeze()  # what is imported is never garbage
        child = os.fork()
        if child == 0:
            life.die_with_parent()
            if not (isinstance(job, TraceJob) and job.on_cpu):  # where nothing but transformers' own code runs
                install()
            answers.write(msgspec.json.encode(_answer(job)) + b"\n")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            message = f"the process that traced it ended with {code}"
            answers.write(msgspec.json.encode(NotTraced(message=message, is_input=False)) + b"\n")


def _answer(job: TraceJob | ServedJob) -> TraceAnswer | ServedTrace:
    try:
        return trace_served(job) if isinstance(job, ServedJob) else trace(job)
    except SourceError as error:
        return NotTraced(message=str(error), place=error.place)
    except Exception as error:  # whatever a user's module raises
        reads = isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))
        splits = "split_with_sizes" in str(error)  # into as many rows as a tensor says
        what = f"{UNKNOWN_SHAPES} ({one_line(error)})" if reads or splits else f"raises {one_line(error)}"
        return NotTraced(message=what, place=last_line(error), traceback=traceback.format_exc())


main()
