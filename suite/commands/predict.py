"""Predict runs by arithmetic, and compare with what was published of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.configurations.models import answered_by_formula
from reference_runs.errors import InputError
from reference_runs.incomplete import missing_keys
from reference_runs.machine_model import machine_model
from reference_runs.run import Workload
from suite.commands import exit_codes
from suite.commands.options import print_json
from suite.commands.predicted_files import PredictedFiles, asks_files
from suite.commands.predicted_text import StackEffects, print_prediction
from suite.commands.traced_model import check_absent, no_formula, predict_model
from suite.commands.traced_options import OF_TRACED, TracedOptions, asks_trace
from suite.commands.training_options import (
    LAYOUT_PANEL,
    MACHINE_PANEL,
    OUTPUT_PANEL,
    Asked,
    EnergyPrice,
    JsonOutput,
    Price,
    Products,
    Pue,
    asks_edition,
    asks_training,
)
from suite.metrics.comparison import overall
from suite.predict.analytic.memory_uncertainty import MemoryVerdict
from suite.predict.plan.asked import check_positive
from suite.predict.plan.departures import Departure, departures, most_changing_stack
from suite.predict.plan.predicted_run import Predicted, PredictionRequest, predicted_run, undisturbed_profile
from suite.predict.recorded_run.alternatives import Choice, choices
from suite.predict.recorded_run.figures import Prices
from suite.predict.recorded_run.slice_parts import MeasuredSlice
from suite.report.terminal.tables import console, print_folded


@asks_edition
@asks_training
@asks_trace
@asks_files
def predict(  # noqa: PLR0913  # long: the command's options
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Recorded runs, miniatures, models such as Qwen3-32B, run files ending in .toml, config.json, or "
            "FILE.py:FUNCTION."
        ),
    ],
    asked: Asked,
    tracing: TracedOptions,
    files: PredictedFiles,
    machine: Annotated[
        Path | None,
        typer.Option(
            help="Profile that `calibrate` stored, to predict for such machines.",
            show_default=False,
            rich_help_panel=MACHINE_PANEL,
        ),
    ] = None,
    products: Products = None,
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
    python -m suite predict gpt2-124m --from latest;
    python -m suite predict llama3.1-405b --timeline step.json

    Exit codes: 0 predicted; 1 a run does not fit into the accelerator's memory; 2 bad input.
    """
    reasons = {name: no_formula(name, tracing) for name in runs}
    traced = [name for name, reason in reasons.items() if reason is not None]
    of_runs: dict[str, object] = {
        "--stack": asked.stack,
        "--tokens": asked.training.tokens,
        "--gemm-dtype": products,
        "--from": records,
        "--choices": show_choices or None,
        "--price": price,
        "--energy-price": energy_price,
        **files.given,
    }
    if traced:
        check_absent(of_runs, what="is of runs")
    else:
        check_absent(tracing.given, what=OF_TRACED)
    files = files.checked(runs, sliced=bool(records))
    exceeded = False
    for name in traced:
        model = predict_model(
            name, asked, layout, tracing, machine, reason=reasons[name] or "", complete=every_figure, as_json=json
        )
        exceeded |= model.fitting.verdict is MemoryVerdict.NOT
    runs = [name for name in runs if name not in traced]
    request = _request(asked, machine, layout, Prices(price, energy_price, pue))
    request = request._replace(products=products, slices=_slices(records or [], runs, show_choices=show_choices))
    predictions = [(name, predicted_run(name, request)) for name in runs]
    for name, predicted in predictions:
        written = files.write(name, predicted)
        chosen = _choices(predicted) if show_choices else []
        settled = predicted.request or request
        software = StackEffects(most_changing_stack(predicted, settled), departures(predicted, settled))
        if json:
            print_json(_entry(name, predicted, chosen if show_choices else None, software))
        else:
            print_prediction(console(), name, predicted, chosen, software, complete=every_figure)
        for line in written:
            print_folded(console(stderr=json), line, "")
    fittings = [predicted.fitting for _, predicted in predictions if predicted.fitting]
    if exceeded or any(each.verdict is MemoryVerdict.NOT for each in fittings):
        raise typer.Exit(exit_codes.FAIL)


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


def _entry(name: str, predicted: Predicted, chosen: list[Choice] | None, software: StackEffects) -> dict[str, object]:
    entry: dict[str, object] = {
        "run": name,
        "status": "ok",
        "verdict": overall(predicted.rows),
        "record": None,
        "edition": machine_model().edition,
        "figures": predicted.rows,
    }
    if answered_by_formula(name):
        entry["answered_by"] = "formula"
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
    if predicted.fitting:
        entry["memory_verdict"] = predicted.fitting.verdict
        entry["probability_fits"] = predicted.fitting.probability
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
