"""Two runs of one model: a log or numbers beside another log or other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from reference_runs.errors import InputError
from reference_runs.training_logs.training_log import PrintedStep, stated_log, training_log
from reference_runs.training_traces.files import TraceKind, files_of_kind, traces
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.predict.diagnosis.compared import ComparedRun, ComparedRuns, compared, compared_traces, with_candidates
from suite.predict.diagnosis.diagnosis import expected_step
from suite.predict.diagnosis.pace import pace, step_seconds
from suite.predict.diagnosis.said import said
from suite.predict.diagnosis.trace_terms import StepTerms, step_terms
from suite.predict.plan.asked import check_positive
from suite.predict.plan.predicted_run import Predicted
from suite.report.terminal.diagnosis import print_comparison
from suite.report.terminal.tables import console


class OtherRun(NamedTuple):
    """The run to compare with, as the options give it; None where they do not."""

    log: Path | None
    step_time: float | None
    gpus: int | None
    batch: int | None

    def check(self) -> bool:
        """Whether there is one.

        Raises:
            InputError: facts of another run without the run, or both its log and its time.
        """
        numbers = {"--against-step-time": self.step_time, "--against-gpus": self.gpus, "--against-batch": self.batch}
        check_positive(numbers)
        if self.log is not None and self.step_time is not None:
            raise InputError("excludes --against", got=str(self.step_time), where="--against-step-time")
        if self.log is None and self.step_time is None:
            for option, number in numbers.items():
                if number is not None:
                    allowed = "--against LOG or --against-step-time"
                    raise InputError("is of the other run", got=str(number), allowed=allowed, where=option)
        return self.log is not None or self.step_time is not None


def print_pair(here: ComparedRun, asked: OtherRun, predicted: Predicted | None, *, as_json: bool) -> None:
    """Print how a run compares with another, and exit with 1 if it is slower and a cause is known.

    Args:
        predicted: this run; None: not known, and no candidates are computed.

    Raises:
        InputError: a log that is not understood.
    """
    other = _other(asked)
    expected = expected_step(predicted) if predicted else None
    found = with_candidates(compared(here, other), here, other, expected)
    _print(found, as_json=as_json)


def _other(asked: OtherRun) -> ComparedRun:
    if asked.log is None:
        measured = pace([PrintedStep(seconds=asked.step_time)])
        return ComparedRun(stated_log("the run of --against-step-time"), measured, asked.gpus, asked.batch)
    log = training_log(asked.log)
    known = said(log)
    gpus, batch = asked.gpus or known.gpus, asked.batch or known.batch
    tokens = batch * known.sequence if batch and known.sequence else None
    timed = step_seconds(log, tokens=tokens, gpus=gpus, micro_batches=None)
    return ComparedRun(log, pace(timed), gpus, batch, known.micro_batch)


def print_pair_of_traces(steps: Sequence[StepTerms], other: Path, *, as_json: bool) -> None:
    """Print how the steps of traces compare with those of another run's, and exit with 1 if they are slower.

    Args:
        other: a trace, or a folder of them.

    Raises:
        InputError: no trace.
    """
    kind, files = files_of_kind([other])
    if kind not in (TraceKind.KINETO, TraceKind.NSIGHT):
        raise InputError("cannot be compared with a trace", got=kind, allowed="traces", where=f"--against {other}")
    _print(compared_traces(steps, [step_terms(trace) for trace in traces(kind, files)]), as_json=as_json)


def _print(found: ComparedRuns, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_comparison(console(), found)
    if found.causes:
        raise typer.Exit(exit_codes.FAIL)
