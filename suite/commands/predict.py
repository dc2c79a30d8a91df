"""Predict runs by arithmetic, and compare with what was published of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.incomplete import missing_keys
from reference_runs.layout import AXES, Layout, layout_text
from reference_runs.miniature import miniature
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from reference_runs.sourced import Kind
from reference_runs.stack import OWN_NAME
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.commands.traced_model import check_absent, is_traced, predict_model
from suite.commands.training_options import (
    LAYOUT_PANEL,
    MACHINE_PANEL,
    OUTPUT_PANEL,
    TRAINING_PANEL,
    Asked,
    EnergyPrice,
    JsonOutput,
    Price,
    Pue,
    asks_training,
)
from suite.job.trace_job import OptimizerKernel
from suite.metrics.comparison import Row, overall
from suite.predict.analytic.process_groups import key_value_copies, node_crossing_share
from suite.predict.machine_model.intervals import MemoryVerdict
from suite.predict.plan.asked import check_positive
from suite.predict.plan.departures import Departure, departures, most_changing_stack
from suite.predict.plan.predicted_run import (
    Predicted,
    PredictionRequest,
    is_accelerator,
    predicted_run,
    undisturbed_profile,
)
from suite.predict.recorded_run.alternatives import Choice, choices
from suite.predict.recorded_run.figures import Prices
from suite.predict.recorded_run.published import BY_ARITHMETIC, OF_THE_MODEL, measured_where
from suite.predict.recorded_run.slice_parts import MeasuredSlice
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
from suite.report.terminal.tables import console, print_folded


@asks_training
def predict(  # noqa: PLR0913  # long: the command's options
    runs: Annotated[
        list[str],
        typer.Argument(help="Recorded runs, miniatures, run files ending in .toml, config.json, or FILE.py:FUNCTION."),
    ],
    asked: Asked,
    machine: Annotated[
        Path | None,
        typer.Option(
            help="Profile that `calibrate` stored, to predict for such machines.",
            show_default=False,
            rich_help_panel=MACHINE_PANEL,
        ),
    ] = None,
    products: Annotated[
        ProductFormat | None,
        typer.Option(help="GEMM format of the layers (default: the run's own).", rich_help_panel=TRAINING_PANEL),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Layout, such as dp8,tp4,pp12; omitted axes are 1 (default: the run's own, or the fastest that fits).",
            rich_help_panel=LAYOUT_PANEL,
        ),
    ] = None,
    records: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Record of a measured slice of RUN, whose times take the model's place; repeatable.",
            rich_help_panel=MACHINE_PANEL,
        ),
    ] = None,
    optimizer: Annotated[
        OptimizerKernel | None,
        typer.Option(help="Optimizer of a traced model (default: adamw).", rich_help_panel=TRAINING_PANEL),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Execute the model of a config.json without its memory, even where a formula describes it.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    price: Price = None,
    energy_price: EnergyPrice = None,
    pue: Pue = 1.0,
    every_figure: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Print every published figure, convention, message, stage and assumption too.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    show_choices: Annotated[
        bool,
        typer.Option(
            "--choices",
            help="Print limits too: what fits, and what pays. `plan` searches layouts.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    json: JsonOutput = False,
) -> None:
    """Predict runs: whether they fit, figures next to the published ones, and where time and memory go.

    Examples: python -m suite predict bloom-176b; python -m suite predict bloom-176b --on h200 --choices;
    python -m suite predict llama2-70b --layout dp16,tp8,pp4 --on h100 --network 3200;
    python -m suite predict gpt2-124m --machine results/machines/PROFILE.json;
    python -m suite predict gpt2-124m --from latest

    Exit codes: 0 predicted; 1 a run does not fit into the accelerator's memory; 2 bad input.
    """
    traced = [name for name in runs if is_traced(name, always=trace or optimizer is not None)]
    of_models: dict[str, object] = {"--trace": trace or None, "--optimizer": optimizer}
    of_runs: dict[str, object] = {
        "--stack": asked.stack,
        "--tokens": asked.training.tokens,
        "--machine": machine,
        "--products": products,
        "--from": records,
        "--choices": show_choices or None,
        "--price": price,
        "--energy-price": energy_price,
    }
    if traced:
        check_absent(of_runs, what="is of runs")
    else:
        check_absent(of_models, what="is of models that are traced")
    exceeded = False
    for name in traced:
        predicted_model = predict_model(name, asked, layout, optimizer, complete=every_figure, as_json=json)
        exceeded |= predicted_model.verdict is MemoryVerdict.NOT
    runs = [name for name in runs if name not in traced]
    request = _request(asked, machine, layout, Prices(price, energy_price, pue))
    request = request._replace(products=products, slices=_slices(records or [], runs, show_choices=show_choices))
    predictions = [(name, predicted_run(name, request)) for name in runs]
    for name, predicted in predictions:
        chosen = _choices(predicted) if show_choices else []
        settled = predicted.request or request
        software = _StackEffects(most_changing_stack(predicted, settled), departures(predicted, settled))
        if json:
            print_json(_entry(name, predicted, chosen if show_choices else None, software))
        else:
            _print(console(), name, predicted, chosen, software, complete=every_figure)
    if exceeded or any(predicted.memory_verdict is MemoryVerdict.NOT for _, predicted in predictions):
        raise typer.Exit(exit_codes.FAIL)


_OF_LOSSES = ("first loss", "first_loss")


class _StackEffects(NamedTuple):
    """Effects of the software, accelerator and format: the stack that would change most, and what was changed."""

    rival: Departure | None
    changed: list[Departure]


def _request(asked: Asked, machine: Path | None, layout: str | None, prices: Prices) -> PredictionRequest:
    """The options, checked: numbers that a quantity has, one machine, a profile that can be used."""
    check_positive(
        {
            "--price": prices.accelerator_hour or None,  # what costs nothing is a price too
            "--energy-price": prices.kilowatt_hour or None,
            "--pue": prices.power_usage_effectiveness,
        }
    )
    if machine is not None and asked.on is not None:
        got = f"--on {asked.on}"
        raise InputError("excludes --on: the profile is of a machine of its own", got=got, where="--machine")
    profile = None if machine is None else undisturbed_profile(machine)
    network = None if asked.network is None else asked.network * 1e9 / 8
    return PredictionRequest(
        asked.on, profile, layout, network, prices, asked.stack, gpus=asked.gpus, training=asked.training
    )


def _slices(records: list[str], runs: list[str], *, show_choices: bool) -> tuple[MeasuredSlice, ...]:
    if records and len(runs) > 1:
        raise InputError("is of one run", got=", ".join(runs), allowed="one", where="--from")
    if records and show_choices:
        raise InputError("is of one layout", got="--choices", allowed="--from alone", where="--from")
    if not records:
        return ()
    from suite.commands.measured_slices import measured_slices

    return tuple(measured_slices(records))


def _entry(name: str, predicted: Predicted, chosen: list[Choice] | None, software: _StackEffects) -> dict[str, object]:
    entry: dict[str, object] = {
        "run": name,
        "status": "ok",
        "verdict": overall(predicted.rows),
        "record": None,
        "figures": predicted.rows,
    }
    if predicted.machine:
        rival = software.rival and _departure(software.rival)
        entry["stack"] = {"name": predicted.machine.stack.name, "read_as": predicted.machine.read_as, "rival": rival}
    if predicted.assumed:
        entry["assumed"] = predicted.assumed
    if predicted.notes:
        entry["notes"] = predicted.notes
    if software.changed:
        entry["changed"] = [_departure(each) for each in software.changed]
    if predicted.machine and predicted.prediction and predicted.prediction.step:
        entry["step_seconds_uncertainty"] = predicted.uncertainty
        entry["intervals"] = predicted.intervals
    if predicted.memory:
        entry["memory"] = predicted.memory._asdict() | {"usable": predicted.memory.usable}
    if predicted.memory_verdict:
        entry["memory_verdict"] = predicted.memory_verdict
    if predicted.sliced:
        entry["from"] = predicted.sliced
    if predicted.remark:
        entry["implausible"] = predicted.remark
    if chosen is not None:
        entry["choices"] = chosen
    return entry


def _departure(departure: Departure) -> dict[str, object]:
    return {"choice": departure.choice, "step_seconds": departure.time, "peak_bytes": departure.peak}


def _choices(predicted: Predicted) -> list[Choice]:
    """Empty for a miniature, and where layout or machine are not known."""
    run, layout, machine, arithmetic = predicted.run, predicted.layout, predicted.machine, predicted.prediction
    if not (run and layout and machine and machine.machine and arithmetic and not missing_keys(run.recipe)):
        return []
    cluster, board = run.cluster, machine.accelerator.board
    return choices(
        Workload(run.architecture, run.recipe, layout),
        machine.machine,
        arithmetic,
        memories={name: accelerator(name).board.memory_bytes for name in accelerator_names()},
        host_bytes_per_second=board.host_bytes_per_second,
        interfaces=cluster.network_interfaces_per_node if cluster else None,
        interface_bytes_per_second=cluster.network_interface_bandwidth if cluster else None,
    )


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


def _print(
    out: Console, name: str, predicted: Predicted, chosen: list[Choice], software: _StackEffects, *, complete: bool
) -> None:
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
    if machine and machine.machine and machine.accelerator.board.accelerators_per_host:
        board, able = machine.accelerator.board, machine.machine
        joined = f"a node: the {able.accelerators_per_node} accelerators that {board.link} joins"
        print_folded(out, f"{joined}, {8e-9 * able.network_bytes_per_second:,.0f} Gbit/s out of it", "")
    if predicted.sliced:
        elsewhere = "" if predicted.is_of_record else f" {measured_where(predicted.run) or 'elsewhere'}"
        alike = machine is not None and is_accelerator(predicted.sliced.device, machine.accelerator.name)
        published = predicted.run.reported.step_seconds
        print_sliced(out, predicted.sliced, published, elsewhere=elsewhere, parts_compare=alike)
    if arithmetic and arithmetic.memory:
        print_fit(out, arithmetic.memory, predicted.memory)
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
    if machine is None:
        return name
    ranks = f"{layout.ranks:,} " if layout else ""
    read = "" if machine.read_as == OWN_NAME else f" ({machine.read_as})"
    return f"{name} on {ranks}{machine.accelerator.name} with {machine.stack.name}{read}"


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
