"""Prints what `predict` says of a run: the verdict, figures, where time and memory go, and assumptions."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from rich.console import Console

from reference_runs.catalog import miniatures, reference_run
from reference_runs.configurations.models import answered_by_formula, name_with_source
from reference_runs.layout import AXES, Layout, layout_text
from reference_runs.miniature import miniature
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Kind
from reference_runs.stack import OWN_NAME
from suite.metrics.comparison import Row
from suite.predict.analytic.process_groups import key_value_copies, node_crossing_share
from suite.predict.plan.departures import Departure
from suite.predict.plan.predicted_run import Predicted, is_accelerator
from suite.predict.recorded_run.alternatives import Choice
from suite.predict.recorded_run.published import BY_ARITHMETIC, OF_THE_MODEL, measured_where
from suite.report.slice import print_sliced
from suite.report.terminal.plan import print_assumptions
from suite.report.terminal.prediction import (
    print_choices,
    print_counts,
    print_figures,
    print_fit,
    print_largest_memory,
    print_largest_times,
    print_memory,
    print_predicted,
    print_published,
    print_time,
    print_traffic,
)
from suite.report.terminal.tables import print_folded

_OF_LOSSES = ("first loss", "first_loss")


class StackEffects(NamedTuple):
    """Effects of the software, accelerator and format: the stack that would change most, and what was changed."""

    rival: Departure | None
    changed: list[Departure]


def print_prediction(
    out: Console, name: str, predicted: Predicted, chosen: list[Choice], software: StackEffects, *, complete: bool
) -> None:
    """Print the prediction of a run.

    Args:
        name: as it was typed; of a configuration the first line says that a formula answers.
        chosen: limits and other choices; empty: none were asked for.
        complete: every figure, stage, message and assumption.
    """
    machine, arithmetic = predicted.machine, predicted.prediction
    if predicted.run is None:
        _print_miniature(out, name, predicted.rows)
        return
    laid_out = predicted.layout is not None and machine is not None
    print_folded(out, _first_line(name, predicted), "bold")
    if predicted.layout:
        base = predicted.run.recorded_layout or Layout(fused_attention=True)  # either attention is said
        print_folded(out, layout_text(predicted.layout, base=base), "")
    if laid_out and software.rival:
        print_folded(out, f"with {software.rival.choice} instead: {software.rival.words}", "")
    for each in software.changed:
        print_folded(out, f"{each.choice}: {each.words}", "")
    if machine and machine.machine and machine.accelerator.board.accelerators_per_host and not predicted.is_of_record:
        board, able = machine.accelerator.board, machine.machine
        joined = f"a node: the {able.accelerators_per_node} accelerators that {board.link} joins"
        print_folded(out, f"{joined}, {8e-9 * able.network_bytes_per_second:,.0f} Gbit/s out of it", "")
    if predicted.sliced:
        elsewhere = "" if predicted.is_of_record else f" {measured_where(predicted.run) or 'elsewhere'}"
        alike = machine is not None and is_accelerator(predicted.sliced.device, machine.accelerator.name)
        published = predicted.run.reported.step_seconds
        print_sliced(out, predicted.sliced, published, elsewhere=elsewhere, parts_compare=alike)
    if arithmetic and arithmetic.memory:
        print_fit(out, arithmetic.memory, predicted.memory, predicted.fitting)
    rows = predicted.rows
    if not predicted.is_of_record:
        rows = [row if complete and row.term in BY_ARITHMETIC else _not_compared(row) for row in rows]
    more = ""
    if complete:
        _print_all(out, predicted, rows)
    else:
        left_out = print_figures(out, rows, predicted.intervals)
        figures = f"{left_out} more figure{'s' if left_out > 1 else ''}, " if left_out else ""
        more = f"--all prints {figures}stages, messages and notes"
        if arithmetic and arithmetic.step:
            print_largest_times(out, arithmetic.step)
        if arithmetic and arithmetic.memory:
            print_largest_memory(out, arithmetic.memory)
    print_choices(out, chosen)
    print_assumptions(out, predicted.assumed, predicted.notes)
    for reason in predicted.missing:
        if complete or not reason.startswith(_OF_LOSSES):
            print_folded(out, f"not predicted: {reason}")
    if predicted.remark:
        print_folded(out, f"implausible: {predicted.remark}", "yellow")
    is_published = any(row.right is not None and row.quantity not in OF_THE_MODEL for row in predicted.rows)
    if is_published and not predicted.is_of_record and (where := _published_of(predicted.run, complete=complete)):
        print_folded(out, f"published figures are {where}: not compared")
    if more:
        print_folded(out, more)


def _published_of(run: ReferenceRun, *, complete: bool) -> str | None:
    """Where the published figures were measured; None where that is not recorded."""
    if missing := ", ".join(run.unpublished):
        return f"of a layout that is not published{f' ({missing})' if complete else ''}"
    where = measured_where(run)
    return where if where is None or complete else f"{where.partition(',')[0]} in the recorded layout"


def _first_line(name: str, predicted: Predicted) -> str:
    """The run, its accelerators and its software."""
    machine, layout = predicted.machine, predicted.layout
    if answered_by_formula(name):
        name = f"by formula: {name_with_source(name)}"
    if machine is None:
        return name
    ranks = f"{layout.ranks:,} " if layout else ""
    read = "" if machine.read_as == OWN_NAME else f" ({machine.read_as})"
    measured = "" if machine.is_calibrated else " (uncalibrated)"
    return f"{name} on {ranks}{machine.accelerator.name}{measured} with {machine.stack.name}{read}"


def _print_miniature(out: Console, name: str, rows: list[Row]) -> None:
    small = miniature(reference_run(miniatures()[name]), "cpu", ranks=2)
    layout = f"{small.workload.layout.ranks} ranks on a CPU, {layout_text(small.workload.layout)}"
    print_folded(out, f"{name}, {small.run} scaled down: {layout}", "bold")
    print_counts(out, rows)


def _print_all(out: Console, predicted: Predicted, rows: list[Row]) -> None:
    run, machine, arithmetic = predicted.run, predicted.machine, predicted.prediction
    print_published(out, rows)
    print_predicted(out, rows)
    print_traffic(out, rows, _leaving(predicted))
    if arithmetic and arithmetic.step:
        print_time(out, arithmetic.step, predicted.step_interval)
    if arithmetic and arithmetic.memory:
        print_memory(out, arithmetic.memory, memory_bytes=predicted.memory_bytes)
        if predicted.memory and predicted.memory.words:
            print_folded(out, f"usable memory, GiB: {predicted.memory.words}")
    out.print()
    if machine and arithmetic and arithmetic.step:
        for note in machine.notes:
            print_folded(out, f"time: {note}")
    assumed = [key for key, fact in run.facts.items() if fact.kind is Kind.ASSUMED] if run else []
    if run and assumed:
        print_folded(out, f"assumed, with reasons in `show {run.name}`: {', '.join(assumed)}")


def _not_compared(row: Row) -> Row:
    """The row without what was published of another machine or layout."""
    if row.right is None or row.quantity in OF_THE_MODEL:
        return row
    return msgspec.structs.replace(row, right=None, difference=None)


def _leaving(predicted: Predicted) -> dict[str, float]:
    """Share of the links of each axis's ring that leave a node."""
    layout, machine = predicted.layout, predicted.machine
    if predicted.run is None or layout is None or machine is None or machine.machine is None:
        return {}
    per_node = machine.machine.accelerators_per_node
    copies = key_value_copies(predicted.run.architecture, tensor_parallel=layout.tensor_parallel)
    return {
        axis: node_crossing_share(layout, axis, accelerators_per_node=per_node, head_copies=copies)
        for axis in (*AXES, "embedding", "kv")
    }
