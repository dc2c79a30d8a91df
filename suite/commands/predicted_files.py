"""Files of a predicted step that `predict` writes: a timeline, a memory snapshot, Chakra's execution traces."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.errors import InputError
from reference_runs.run import Workload
from reference_runs.stack import NO_KEEPING
from suite.commands.new_file import check_new, check_new_directory, forced
from suite.commands.options import with_parameters
from suite.predict.analytic.machine import Machine
from suite.predict.plan.predicted_run import Predicted
from suite.predict.recorded_run.prediction import micro_batches_held
from suite.predict.simulation.walked_memory import described_keeping

PANEL = "Files to write"
_TIMELINE, _AGAINST, _SNAPSHOT, _CHAKRA = "--timeline", "--against", "--memory-snapshot", "--chakra"
_SHARED: dict[str, tuple[Any, object]] = {
    "timeline": (
        Annotated[
            Path | None,
            typer.Option(help="Write a step of a rank of each stage as a trace for Perfetto.", rich_help_panel=PANEL),
        ],
        None,
    ),
    "against": (
        Annotated[
            str | None,
            typer.Option(
                help="Put the measured ranks of a launch's record, or of a trace, next to it (with --timeline).",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "memory_snapshot": (
        Annotated[
            Path | None,
            typer.Option(
                help="Write the fullest rank's allocations in a step as a snapshot for PyTorch's memory viewer.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "chakra": (
        Annotated[
            Path | None,
            typer.Option(
                help="Write execution traces of Chakra, for ASTRA-sim, to this directory.", rich_help_panel=PANEL
            ),
        ],
        None,
    ),
    "force": (forced(PANEL), False),
}


class PredictedFiles(NamedTuple):
    """The files that are asked for; None where one is not.

    Args:
        against: a record or a trace that the timeline stands next to.
        force: whether files that exist are overwritten.
        measured: the events of `against`, once it is read.
    """

    timeline: Path | None = None
    against: str | None = None
    memory_snapshot: Path | None = None
    chakra: Path | None = None
    force: bool = False
    measured: Sequence[Mapping[str, Any]] = ()

    @property
    def given(self) -> dict[str, object | None]:
        """Values by option, None where one is absent."""
        return {_TIMELINE: self.timeline, _SNAPSHOT: self.memory_snapshot, _CHAKRA: self.chakra}

    def checked(self, runs: list[str], *, sliced: bool) -> PredictedFiles:
        """The same with the events of `against`; refuse, before anything is predicted, what cannot be written or read.

        Args:
            sliced: whether times of measured slices take the model's place.

        Raises:
            InputError: a file that exists or cannot be written, several runs, an option without the one it is of, or
                nothing measured in `against`.
        """
        asked = [option for option, value in self.given.items() if value is not None]
        if self.against is not None and self.timeline is None:
            raise InputError("is of a timeline", got=self.against, allowed=f"with {_TIMELINE}", where=_AGAINST)
        if asked and len(runs) != 1:
            raise InputError("is of one run", got=", ".join(runs), allowed="one", where=asked[0])
        for path, option in ((self.timeline, _TIMELINE), (self.chakra, _CHAKRA)):
            if sliced and path is not None:
                raise InputError("excludes --from: slices have no passes", got=str(path), where=option)
        for path, option, what, suffix in (
            (self.timeline, _TIMELINE, "a trace's", ".json"),
            (self.memory_snapshot, _SNAPSHOT, "a snapshot's", ".pickle"),
        ):
            if path is not None and path.suffix != suffix:
                allowed = f"a file ending in {suffix}"
                raise InputError(f"not {what} name", got=str(path), allowed=allowed, where=option)
            check_new(path, option, force=self.force)
        check_new_directory(self.chakra, _CHAKRA, force=self.force)
        if self.against is None:
            return self
        from suite.commands.measured_processes import measured_processes

        return self._replace(measured=measured_processes(self.against))

    def write(self, name: str, predicted: Predicted) -> list[str]:
        """Write them; a line for each that says what was written.

        Raises:
            InputError: the run has no predicted step, or a file cannot be written.
        """
        lines = []
        if self.timeline is not None:
            since = _Clocks.now()
            self._write_timeline(self.timeline, name, predicted)
            words = "open it at https://ui.perfetto.dev"
            lines.append(f"timeline {self.timeline} ({_size([self.timeline])}, {since.spent}): {words}")
        if self.memory_snapshot is not None:
            since = _Clocks.now()
            _write_snapshot(self.memory_snapshot, name, predicted)
            words = "drop it onto https://docs.pytorch.org/memory_viz"
            size = _size([self.memory_snapshot])
            lines.append(f"memory snapshot {self.memory_snapshot} ({size}, {since.spent}): {words}")
        if self.chakra is not None:
            since = _Clocks.now()
            written, of = _write_chakra(self.chakra, name, predicted)
            files = f"{len(written)} files, {_size(written)}"
            lines.append(f"execution traces {self.chakra} ({files}, {since.spent}): of {of}")
        return lines

    def _write_timeline(self, path: Path, name: str, predicted: Predicted) -> None:
        from suite.predict.timeline.rank_timeline import rank_timelines
        from suite.predict.timeline.trace_file import write_trace

        workload, machine = _timed(predicted, name, _TIMELINE)
        try:
            write_trace(path, name, rank_timelines(workload, machine, where=_TIMELINE), against=self.measured)
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", got=str(path), where=_TIMELINE) from error


def _write_snapshot(path: Path, name: str, predicted: Predicted) -> None:
    from suite.predict.timeline.allocations import allocations
    from suite.predict.timeline.memory_snapshot import write_snapshot

    run, layout, memories = predicted.run, predicted.layout, predicted.prediction and predicted.prediction.memory
    if run is None or layout is None or not memories:
        got = "; ".join(predicted.missing) or name
        raise InputError("no memory of it is predicted", got=got, allowed="a run with a layout", where=_SNAPSHOT)
    workload = Workload(run.architecture, run.recipe, layout)
    stage = max(range(len(memories)), key=lambda stage: memories[stage].peak)
    keeping = predicted.machine.stack.switches.keeping if predicted.machine else NO_KEEPING
    made = allocations(
        workload,
        memories[stage],
        described_keeping(workload, keeping),
        stage=stage,
        micro_batches=micro_batches_held(run.recipe, layout),
    )
    try:
        write_snapshot(path, list(made), f"{name}, stage {stage}, predicted")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=_SNAPSHOT) from error


def _write_chakra(directory: Path, name: str, predicted: Predicted) -> tuple[list[Path], str]:
    """Write a trace for each rank, or of many ranks for the first of each stage; the files, and of which ranks."""
    from suite.predict.timeline.chakra_files import write_traces
    from suite.predict.timeline.execution_trace import execution_traces
    from suite.predict.timeline.rank_timeline import rank_timelines

    workload, machine = _timed(predicted, name, _CHAKRA)
    layout = workload.layout
    if not layout.flushes:
        what, allowed = "a schedule without flush sends across steps", "one with a flush"
        raise InputError(what, got=layout.schedule, allowed=allowed, where=_CHAKRA)
    traces = execution_traces(workload, rank_timelines(workload, machine, where=_CHAKRA))
    try:
        written = write_traces(directory, traces)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(directory), where=_CHAKRA) from error
    return written, "each rank" if len(traces) == layout.ranks else "the first rank of each stage"


def _timed(predicted: Predicted, name: str, option: str) -> tuple[Workload, Machine]:
    """The workload and machine of a prediction that has a step.

    Raises:
        InputError: it has none.
    """
    run, layout, machine = predicted.run, predicted.layout, predicted.machine
    if run is None or layout is None or machine is None or machine.machine is None:
        raise InputError("no step of it is predicted: a layout and a machine are needed", got=name, where=option)
    if predicted.prediction is None or predicted.prediction.step is None:
        raise InputError("no step of it is predicted", got="; ".join(predicted.missing) or name, where=option)
    return Workload(run.architecture, run.recipe, layout), machine.machine


class _Clocks(NamedTuple):
    """Seconds of the wall clock and of the processor."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> _Clocks:
        """Both clocks now."""
        return cls(time.perf_counter(), time.process_time())

    @property
    def spent(self) -> str:
        """Words on the time since then."""
        wall, processor = time.perf_counter() - self.wall, time.process_time() - self.processor
        return f"{wall:,.1f} s, {processor:,.1f} s of CPU"


def _size(paths: list[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:,.1f} MB"


def asks_files(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `files`, `PredictedFiles`, stands for the options of files to write."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        parameters |= _SHARED if name == "files" else {name: (parameter.annotation, parameter.default)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(files=PredictedFiles(**{name: given.pop(name) for name in _SHARED}), **given)

    return with_parameters(called, parameters)
