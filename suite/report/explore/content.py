"""Everything that the page shows of a state, as numbers and words; the browser makes tables and pictures of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from reference_runs.catalog import accumulation
from reference_runs.machine_model import chosen_edition
from reference_runs.published_tables import PUBLISHED
from reference_runs.run import ReferenceRun, Workload
from suite.paths import program
from suite.predict.analytic.memory_uncertainty import Fitting
from suite.predict.plan.predicted_run import Predicted
from suite.predict.recorded_run.published import OF_THE_MODEL, measured_where
from suite.report.explore.machine_use import link_traffic, roofline_points
from suite.report.explore.passes import drawn_passes
from suite.report.explore.presets import RUNS, described_run, row_of, source_of, tables
from suite.report.explore.state import ExploreState
from suite.report.explore.view import View, is_of_record, memory_parts, view
from suite.report.explore.why import why, worked_roofline, worked_traffic
from suite.report.explore.words import in_controls

Content = dict[str, Any]


def content(state: ExploreState) -> Content:
    """The contents of a state: its one or two layouts."""
    remarks = _remarks(state)
    layouts = [state.layout, *([state.other] if state.other else [])]
    return {
        "title": described_run(state.run).title,
        "command": command(state),
        "views": [_with_remarks(layout_content(view(state, each)), remarks) for each in layouts],
    }


def _with_remarks(shown: Content, remarks: list[str]) -> Content:
    """A layout's contents, with remarks on the run before its own assumptions."""
    return shown | {"notes": [*remarks, *shown["notes"]]} if "notes" in shown else shown


def command(state: ExploreState) -> str:
    """The command that prints the same numbers."""
    if source_of(state.run) != RUNS:
        path = PUBLISHED / tables()[source_of(state.run)].facts.file
        here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        edition = ["--edition", chosen] if (chosen := chosen_edition()) else []
        return shlex.join([*program().split(), "validate", *edition, str(here)])
    options = {
        "--layout": state.layout or None,
        "--on": state.on,
        "--network": _typed(state.network),
        "--stack": state.stack,
        "--gemm-dtype": state.products,
        "--precision": state.precision,
        "--batch": _typed(state.batch),
        "--sequence": _typed(state.sequence),
        "--tokens": _typed(state.tokens),
        "--price": _typed(state.price),
        "--edition": chosen_edition(),
    }
    words = [*program().split(), "predict", state.run]
    return shlex.join([*words, *(word for option, value in options.items() if value for word in (option, value))])


def _typed(value: float | None) -> str | None:
    return None if value is None else f"{value:.12g}"


def _remarks(state: ExploreState) -> list[str]:
    row = None if source_of(state.run) == RUNS else row_of(state.run)
    if row is None:
        return []
    blank = ", ".join(row.assumed).replace("_", " ")
    remarks = [f"assumed of what the table leaves blank: {blank}"] if row.assumed else []
    if row.composed:
        remarks.append("its step time is a sum of measured parts, without what a step costs besides them (overhead)")
    return remarks


def layout_content(shown: View) -> Content:
    """The contents of one layout; `wrong` alone where nothing is predicted."""
    predicted = shown.predicted
    if predicted is None or predicted.prediction is None or predicted.run is None:
        return {"layout": shown.layout, "wrong": list(shown.wrong)}
    rows, compares = shown.rows, is_of_record(predicted)
    machine = predicted.machine
    found: Content = {
        "layout": shown.layout,
        "wrong": [],
        "accelerators": predicted.layout.ranks if predicted.layout else None,
        "accelerator": machine.accelerator.name if machine else None,
        "memory_limit": predicted.memory_bytes,
        **fitting_content(predicted.fitting),
        "intervals": {str(quantity): list(ends) for quantity, ends in predicted.intervals.items()},
        "not_predicted": list(map(in_controls, predicted.missing)),
        "notes": _notes(predicted),
        "figures": [
            {
                "quantity": row.quantity,
                "unit": row.unit,
                "value": row.left,
                "published": row.right,
                "source": row.why if row.right is not None else None,
                "compares": compares or row.quantity in OF_THE_MODEL,
                "why": why(shown, row)._asdict(),
            }
            for row in rows
        ],
        "published_elsewhere": None if compares else _elsewhere(predicted.run),
        "terms": shown.terms,
        "memory": memory_parts(shown.stages),
        "instants": [stage.fullest_instant()[0] for stage in shown.stages],
    }
    return found | _of_machine(shown)


def fitting_content(fitting: Fitting | None) -> Content:
    """Whether a peak fits: the verdict, the words with the probability, and the probability; None: not known."""
    if fitting is None:
        return {"verdict": None, "fits": None, "probability_fits": None}
    return {"verdict": fitting.verdict, "fits": fitting.words, "probability_fits": fitting.probability}


def _notes(predicted: Predicted) -> list[str]:
    """Assumptions with the controls that change them, and what the figures rest on."""
    assumed = [f"assumed: {in_controls(words)} (control: {in_controls(option)})" for words, option in predicted.assumed]
    machine = predicted.machine.notes if predicted.machine else ()
    intervals = "80%: four of five measured values lie within" if predicted.intervals else None
    unpublished = bool(predicted.run and predicted.run.unpublished)
    own = "the run's own layout was not published: the page begins with a fast one" if unpublished else None
    rest = (own, *predicted.notes, *machine, predicted.remark, intervals)
    return [*assumed, *(in_controls(each) for each in rest if each)]


def _elsewhere(run: ReferenceRun) -> str | None:
    where = measured_where(run)
    return where and f"Published figures are those {where}."


def _of_machine(shown: View) -> Content:
    """Passes, messages over links and products under the roofline; None where they are not known."""
    predicted = shown.predicted
    assert predicted is not None
    if predicted.layout is None or predicted.run is None or predicted.prediction is None:
        return {"passes": None, "traffic": None, "products": None, "micro_batches": None, "worked": {}}
    passes = drawn_passes(shown)
    machine = predicted.machine.machine if predicted.machine else None
    workload = Workload(predicted.run.architecture, predicted.run.recipe, predicted.layout)
    drawn = {"passes": passes._asdict() if passes else None}
    if machine is None or predicted.prediction.step is None:
        return {**drawn, "micro_batches": None, "traffic": None, "products": None, "worked": {}}
    traffic = link_traffic(workload, machine, predicted.prediction.traffic)
    points = roofline_points(workload, machine)
    worked = {"traffic": worked_traffic(traffic), "roofline": worked_roofline(points, machine)}
    return {
        **drawn,
        "micro_batches": accumulation(workload.recipe, workload.layout),
        "traffic": [entry._asdict() | {"leaves_node": entry.leaves_node} for entry in traffic],
        "products": {
            "points": [point._asdict() for point in points],
            "peak": machine.product_peak_flop_per_second or machine.peak_flop_per_second,
            "memory_bytes_per_second": machine.memory_bytes_per_second,
        },
        "worked": {
            part: [each._asdict() | {"why": each.why._asdict()} for each in found] for part, found in worked.items()
        },
    }
