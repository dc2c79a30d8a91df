"""The layout that the page shows, for other software."""

from __future__ import annotations

from reference_runs.errors import InputError
from reference_runs.run import Workload
from suite.report.explore.presets import RUNS, source_of
from suite.report.explore.state import ExploreState
from suite.report.explore.view import view
from suite.report.export.formats import FORMATS, export_format
from suite.report.export.job import ExportedJob

EXPORTS = tuple(FORMATS)


def exported(state: ExploreState, name: str) -> str:
    """The first layout of a state in this format.

    Raises:
        InputError: nothing is predicted of it, or the format has no place for something of the training.
    """
    chosen = export_format(name)
    shown = view(state, state.layout)
    predicted = shown.predicted
    if predicted is None or predicted.run is None or predicted.layout is None or predicted.machine is None:
        raise InputError("nothing is predicted of this layout, so that there is none to export")
    if source_of(state.run) != RUNS and not state.run.endswith(".toml"):
        raise InputError("a table's row is no run to start", allowed="a recorded run or a run file")
    run, machine = predicted.run, predicted.machine
    node = machine.machine.accelerators_per_node if machine.machine else machine.accelerator.board.accelerators_per_node
    stack = state.stack or chosen.stack or machine.stack.name
    workload = Workload(run.architecture, run.recipe, predicted.layout)
    job = ExportedJob(state.run, workload, node, stack, tokens=run.recipe.tokens)
    note = f"# {chosen.note(job)}\n" if chosen.note else ""
    return note + chosen.text(job)
