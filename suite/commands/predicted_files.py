"""Files of a predicted step that `predict` writes: a timeline, a memory snapshot, Chakra's execution traces."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from reference_runs.errors import InputError
from reference_runs.run import Workload
from suite.commands.new_file import FORCE, check_new
from suite.commands.options import with_parameters
from suite.predict.analytic.machine import Machine
from suite.predict.plan.predicted_run import Predicted

PANEL = "Files to write"
_TIMELINE, _AGAINST = "--timeline", "--against"
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
    "force": (Annotated[bool, typer.Option(FORCE, help="Overwrite files that exist.", rich_help_panel=PANEL)], False),
}


class PredictedFiles(NamedTuple):
    """The files that are asked for; None where one is not.

    Args:
        against: a record or a trace that the timeline stands next to.
        force: whether files that exist are overwritten.
    """

    timeline: Path | None = None
    against: str | None = None
    force: bool = False

    @property
    def given(self) -> dict[str, object | None]:
        """Values by option, None where one is absent."""
        return {_TIMELINE: self.timeline}

    def check(self, runs: list[str], *, sliced: bool) -> None:
        """Refuse, before anything is predicted, what cannot be written in the end.

        Args:
            sliced: whether times of measured slices take the model's place.

        Raises:
            InputError: a file that exists or cannot be written, several runs, or an option without the one it is of.
        """
        asked = [option for option, value in self.given.items() if value is not None]
        if self.against is not None and self.timeline is None:
            raise InputError("is of a timeline", got=self.against, allowed=f"with {_TIMELINE}", where=_AGAINST)
        if asked and len(runs) != 1:
            raise InputError("is of one run", got=", ".join(runs), allowed="one", where=asked[0])
        if sliced and self.timeline is not None:
            raise InputError("excludes --from: slices have no passes", got=str(self.timeline), where=_TIMELINE)
        if self.timeline is not None and self.timeline.suffix != ".json":
            what, allowed = "not a trace's name", "a file ending in .json"
            raise InputError(what, got=str(self.timeline), allowed=allowed, where=_TIMELINE)
        check_new(self.timeline, _TIMELINE, force=self.force)

    def write(self, name: str, predicted: Predicted) -> list[str]:
        """Write them; a line for each that says what was written.

        Raises:
            InputError: the run has no predicted step, or a file cannot be written.
        """
        lines = []
        if self.timeline is not None:
            self._write_timeline(self.timeline, name, predicted)
            lines.append(_written("timeline", self.timeline, "open it at https://ui.perfetto.dev"))
        return lines

    def _write_timeline(self, path: Path, name: str, predicted: Predicted) -> None:
        from suite.commands.measured_processes import measured_processes
        from suite.predict.timeline.rank_timeline import rank_timelines
        from suite.predict.timeline.trace_file import write_trace

        workload, machine = _timed(predicted, name, _TIMELINE)
        measured = () if self.against is None else measured_processes(self.against)
        try:
            write_trace(path, name, rank_timelines(workload, machine), against=measured)
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", got=str(path), where=_TIMELINE) from error


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


def _written(what: str, path: Path, words: str) -> str:
    return f"{what} {path} ({path.stat().st_size / 1e6:,.1f} MB): {words}"


def asks_files(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: its parameter `files`, `PredictedFiles`, stands for the options of files to write."""
    parameters: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        parameters |= _SHARED if name == "files" else {name: (parameter.annotation, parameter.default)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(files=PredictedFiles(**{name: given.pop(name) for name in _SHARED}), **given)

    return with_parameters(called, parameters)
