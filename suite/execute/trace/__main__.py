"""A worker that traces: python -m suite.execute.trace; its input is a job, its output the answer, a line each."""

from __future__ import annotations

import os
import sys
import traceback
import warnings

import msgspec

from suite.execute import rank as life

life.die_with_parent()

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException  # it takes seconds

from suite.execute.trace.sources import SourceError, last_line, one_line
from suite.execute.trace.step import trace
from suite.job.trace_job import NotTraced, TraceAnswer, TraceJob


def main() -> None:
    """Trace one job."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints is no answer
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=TraceJob)
    answers.write(msgspec.json.encode(_answer(job)) + b"\n")
    answers.flush()


def _answer(job: TraceJob) -> TraceAnswer:
    try:
        return trace(job)
    except SourceError as error:
        return NotTraced(message=str(error), place=error.place)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = f"its shapes depend on numbers that a trace does not know ({one_line(error)})"
        return NotTraced(message=what, place=last_line(error), traceback=traceback.format_exc())
    except Exception as error:  # whatever a user's module raises
        return NotTraced(message=f"raises {one_line(error)}", place=last_line(error), traceback=traceback.format_exc())


main()
