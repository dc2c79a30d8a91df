"""Files of a predicted step that `predict` writes: a timeline, a memory snapshot, Chakra's execution traces."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reference_runs.errors import InputError
from reference_runs.run import Workload
from reference_runs.stack import NO_KEEPING
from suite.commands.new_file import FORCE, check_new, check_new_directory, forced
from suite.commands.options import with_parameters
from suite.predict.analytic.machine import Machine
from suite.predict.plan.predicted_run import Predicted
from suite.predict.recorded_run.prediction import micro_batches_held
from suite.predict.simulation.walked_memory import described_keeping

if TYPE_CHECKING:
    from suite.commands.measured_processes import MeasuredProcesses
    from suite.predict.timeline.allocations import BlockEvent
    from suite.predict.timeline.rank_timeline import RankTimeline

PANEL = "Files to write"
_TIMELINE, _AGAINST, _SNAPSHOT, _CHAKRA = "--timeline", "--against", "--memory-snapshot", "--chakra"
_WHAT = {_TIMELINE: "timeline", _SNAPSHOT: "memory snapshot", _CHAKRA: "execution traces"}
_SHARED: dict[str, tuple[Any, object]] = {
    "timeline": (
        Annotated[
            Path | None,
            typer.Option(
                help="Write one predicted step, one rank per pipeline stage, as a Perfetto trace.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "against": (
        Annotated[
            str | None,
            typer.Option(
                help="Show a measured rank, of a record or a trace file, beside it (with --timeline).",
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
        measured: what `against` measured, once it is read.
    """

    timeline: Path | None = None
    against: str | None = None
    memory_snapshot: Path | None = None
    chakra: Path | None = None
    force: bool = False
    measured: MeasuredProcesses | None = None

    @property
    def given(self) -> dict[str, Path | None]:
        """Values by option, None where one is absent."""
        return {_TIMELINE: self.timeline, _SNAPSHOT: self.memory_snapshot, _CHAKRA: self.chakra}

    def checked(self, runs: list[str], *, sliced: bool) -> PredictedFiles:
        """The same with what `against` measured; refuse, before anything is predicted, what cannot be written or read.

        Args:
            sliced: whether times of measured slices take the model's place.

        Raises:
            InputError: a file that exists or cannot be written, several runs, an option without the one it is of, or
                nothing measured in `against`.
        """
        asked = [option for option, value in self.given.items() if value is not None]
        if self.against is not None and self.timeline is None:
            raise InputError(f"needs {_TIMELINE}", got=self.against, where=_AGAINST)
        if self.force and not asked:
            raise InputError(f"needs {_TIMELINE}, {_SNAPSHOT} or {_CHAKRA}", where=FORCE)
        if asked and len(runs) != 1:
            raise InputError("takes one run", got=", ".join(runs), where=asked[0])
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
        """Write them, once all are computed; a line for each that says what was written.

        Raises:
            InputError: the run has no predicted step, or a file cannot be written.
        """
        computed = []
        for option, path in self.given.items():
            if path is not None:
                since = _Clocks.now()
                write = self._computed(option, path, name, predicted)
                computed.append((option, path, write, _Clocks.now().less(since)))
        lines = []
        if self.measured and self.measured.run not in (None, name, predicted.run and predicted.run.name):
            lines.append(f"{_AGAINST}: the record is of {self.measured.run}, the prediction of {name}")
        for option, path, write, spent in computed:
            since = _Clocks.now().less(spent)
            try:
                files, words = write()
            except OSError as error:
                raise InputError(f"cannot write: {error.strerror}", got=str(path), where=option) from error
            number = f"{len(files)} files, " if option == _CHAKRA else ""
            size = f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"
            lines.append(f"{_WHAT[option]} {path} ({number}{size}, {since.spent}): {words}")
        return lines

    def _computed(self, option: str, path: Path, name: str, predicted: Predicted) -> _Write:
        """A function that writes the file of an option.

        Raises:
            InputError: the run lacks what the file needs.
        """
        if option == _SNAPSHOT:
            return _computed_snapshot(path, name, predicted)
        from suite.predict.timeline.rank_timeline import rank_timelines

        workload, machine = _timed(predicted, name, option)
        if option == _CHAKRA and not workload.layout.flushes:
            what, allowed = "a schedule without flush sends across steps", "one with a flush"
            raise InputError(what, got=workload.layout.schedule, allowed=allowed, where=option)
        timelines = rank_timelines(workload, machine, where=option)
        if option == _CHAKRA:
            return partial(_write_chakra, path, workload, timelines)
        return partial(_write_timeline, path, name, timelines, self.measured.events if self.measured else ())


def _computed_snapshot(path: Path, name: str, predicted: Predicted) -> _Write:
    from suite.predict.timeline.allocations import allocations

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
    return partial(_write_snapshot, path, list(made), f"{name}, stage {stage}, predicted")


def _write_snapshot(path: Path, made: Sequence[BlockEvent], where: str) -> _Written:
    from suite.predict.timeline.memory_snapshot import write_snapshot

    write_snapshot(path, made, where)
    return _Written([path], "drop it onto https://docs.pytorch.org/memory_viz")


def _write_timeline(
    path: Path, name: str, timelines: Sequence[RankTimeline], against: Sequence[Mapping[str, Any]]
) -> _Written:
    from suite.predict.timeline.trace_file import write_trace

    write_trace(path, name, timelines, against=against)
    return _Written([path], "open it at https://ui.perfetto.dev")


def _write_chakra(directory: Path, workload: Workload, timelines: Sequence[RankTimeline]) -> _Written:
    """Write a trace for each rank, or of many ranks for the first of each stage."""
    from suite.predict.timeline.chakra_files import write_traces
    from suite.predict.timeline.execution_trace import execution_traces

    traces = execution_traces(workload, timelines)
    written = write_traces(directory, traces)
    each = "rank" if len(traces) == workload.layout.ranks else "pipeline stage, of its first rank"
    return _Written(written, f"one per {each}")


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


class _Written(NamedTuple):
    """Files, and what to say of them."""

    files: list[Path]
    words: str


_Write = Callable[[], _Written]


class _Clocks(NamedTuple):
    """Seconds of the wall clock and of the processor."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> _Clocks:
        """Both clocks now."""
        return cls(time.perf_counter(), time.process_time())

    def less(self, other: _Clocks) -> _Clocks:
        """Seconds since another moment, or so many seconds earlier."""
        return _Clocks(self.wall - other.wall, self.processor - other.processor)

    @property
    def spent(self) -> str:
        """Words on the time since then."""
        wall, processor = _Clocks.now().less(self)
        return f"{wall:,.1f} s, {processor:,.1f} s of CPU"


def asks_files(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `files`, `PredictedFiles`, stands for the options of files to write."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        parameters |= _SHARED if name == "files" else {name: (parameter.annotation, parameter.default)}

    @wraps(command)
    def called(**given: Any) -> None:
        command(files=PredictedFiles(**{name: given.pop(name) for name in _SHARED}), **given)

    return with_parameters(called, parameters)
