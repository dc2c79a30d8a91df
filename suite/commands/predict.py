"""What arithmetic says of runs, beside what was published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import check_layout, miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import AXES, Layout, Offload, layout_text, parse_layout
from reference_runs.miniature import miniature
from reference_runs.run import ReferenceRun, Workload
from reference_runs.sourced import Kind
from suite.machine.profile import DISTURBED_SHARE, Profile, disturbed, read
from suite.metrics.comparison import Row, compare, overall
from suite.predict.analytic.process_groups import node_crossing_share
from suite.predict.executed_run.counts import prediction
from suite.predict.machine_model.from_cluster import RunMachine, run_machine
from suite.predict.machine_model.from_profile import profiled_machine
from suite.predict.recorded_run.alternatives import Choice, choices
from suite.predict.recorded_run.figures import Prices, predicted_figures
from suite.predict.recorded_run.prediction import RunPrediction, prediction_without_layout, run_prediction
from suite.predict.recorded_run.published import (
    figures_at_published_times,
    measured_elsewhere,
    measured_figures,
    published_figures,
)
from suite.report.terminal.prediction import (
    print_choices,
    print_memory,
    print_predicted,
    print_published,
    print_time,
    print_traffic,
)
from suite.report.terminal.tables import console, print_comparison


class Predicted(NamedTuple):
    """One run's comparison, and what its breakdown is printed from; a miniature has rows alone."""

    rows: list[Row]
    run: ReferenceRun | None = None
    layout: Layout | None = None
    machine: RunMachine | None = None
    prediction: RunPrediction | None = None
    missing: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What the options ask for; None where nothing was said.

    Args:
        machine: profile of the machine to predict for.
        network: bytes per second out of a node.
    """

    on: str | None
    machine: Profile | None
    layout: str | None
    network: float | None
    prices: Prices
    stack: str | None


def predict(  # noqa: PLR0913  # the command's options
    runs: Annotated[list[str], typer.Argument(help="Recorded runs, miniatures, or run files ending in .toml.")],
    on: Annotated[str | None, typer.Option(help="Accelerator to predict for, instead of the run's own.")] = None,
    machine: Annotated[
        Path | None,
        typer.Option(help="Profile that `calibrate` stored, to predict for such machines.", show_default=False),
    ] = None,
    layout: Annotated[str | None, typer.Option(help="Layout, such as dp8,tp4,pp12; omitted axes are 1.")] = None,
    network: Annotated[
        float | None,
        typer.Option(help="Gbit/s out of a node over all its interfaces, instead of the run's own.", min=0),
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Software, by its name in reference_runs/stacks.toml.")] = None,
    price: Annotated[float | None, typer.Option(help="Price of an accelerator hour, in your currency.", min=0)] = None,
    energy_price: Annotated[float | None, typer.Option(help="Price of a kilowatt hour.", min=0)] = None,
    pue: Annotated[float, typer.Option(help="Power usage effectiveness of the building.", min=1)] = 1.0,
    show_choices: Annotated[
        bool, typer.Option("--choices", help="Limits and alternatives too: what fits, what pays, faster layouts.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the predicted figures of runs beside the published ones, and where time and memory go.

    Examples: python -m suite predict bloom-176b; python -m suite predict bloom-176b --on h200 --choices;
    python -m suite predict llama2-70b --layout dp16,tp8,pp4 --on h100 --network 3200;
    python -m suite predict gpt2-124m --machine results/machines/PROFILE.json
    """
    given = {"--network": network, "--price": price, "--energy-price": energy_price, "--pue": pue}
    for option, value in given.items():
        if value is not None and not (math.isfinite(value) and (value > 0 or option != "--network")):
            raise InputError("not a usable number", got=value, allowed="a finite one above 0", where=option)
    if machine is not None and on is not None:
        raise InputError("excludes --on: the profile is of a machine of its own", got=f"--on {on}", where="--machine")
    profile = None if machine is None else _undisturbed(machine)
    bandwidth = None if network is None else network * 1e9 / 8
    asked = Asked(on, profile, layout, bandwidth, Prices(price, energy_price, pue), stack)
    for name, predicted in [(name, _predicted(name, asked)) for name in runs]:
        chosen = _choices(predicted) if show_choices else []
        if not json:
            _print(console(), name, predicted, chosen)
            continue
        rows = predicted.rows
        entry: dict[str, object] = {
            "run": name,
            "status": "ok",
            "verdict": overall(rows),
            "record": None,
            "figures": rows,
        }
        if predicted.machine and predicted.prediction and predicted.prediction.step:
            entry["step_seconds_uncertainty"] = predicted.machine.uncertainty
        if show_choices:
            entry["choices"] = chosen
        print(msgspec.json.encode(entry).decode())


def _undisturbed(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        InputError: it cannot be read, or others had the processors while it was measured.
    """
    profile = read(path)
    if why := disturbed(profile):
        allowed = f"at most {DISTURBED_SHARE:.0%} together, calibrate again while nothing else runs"
        raise InputError("a disturbed machine profile", got=f"one {why}", allowed=allowed, where=str(path))
    return profile


def _predicted(name: str, asked: Asked) -> Predicted:
    minis = miniatures()
    if name in minis:
        for option, given in (
            ("--on", asked.on),
            ("--machine", asked.machine),
            ("--layout", asked.layout),
            ("--network", asked.network),
            ("--stack", asked.stack),
        ):
            if given is not None:
                raise InputError(
                    "is for recorded runs and run files", got=f"{option} with the miniature {name}", where=option
                )
        small = miniature(reference_run(minis[name]), "cpu", ranks=2)
        figures = prediction(small.workload)
        return Predicted(compare(figures, [], left_name="predicted", right_name="published", judge=False))
    run = reference_run(name, also=minis)
    layout = _layout(run, asked.layout)
    missing = [] if layout else [f"{key} is recorded as not published: give a --layout" for key in run.unpublished]
    machine = _machine(run, layout, asked)
    if machine is None:
        missing.append("no accelerator is recorded: give one with --on")
    elif machine.missing:
        missing.append(f"{machine.missing}: give the --network of a node")
    elif layout and layout.offload is not Offload.NONE:
        missing.append(f"step time: transfers of state offloaded to the host ({layout.offload}) are not described")
    able = machine.machine if machine else None
    predicted = (
        run_prediction(Workload(run.architecture, run.recipe, layout), able)
        if layout
        else prediction_without_layout(run.architecture, run.recipe)
    )
    if predicted.first_loss is None:
        missing.append(f"first_loss: the formula holds for pre-norm, not for {run.architecture.norm}")
    left = predicted_figures(run, layout, able, predicted, asked.prices)
    right = published_figures(run)
    if (asked.on, asked.machine, asked.network, asked.stack) == (None,) * 4 and layout == run.recorded_layout:
        for computed, published in (
            figures_at_published_times(run, predicted, able),
            measured_figures(run, able),
        ):
            left += computed
            right += published
    elif run.recorded_layout is not None:
        right = [measured_elsewhere(figure, run) for figure in right]
    rows = compare(left, right, left_name="predicted", right_name="published", judge=False)
    return Predicted(rows, run, layout, machine, predicted, tuple(missing))


def _machine(run: ReferenceRun, layout: Layout | None, asked: Asked) -> RunMachine | None:
    if asked.machine is not None:
        return profiled_machine(
            asked.machine, run, layout, network_bytes_per_second=asked.network, stack_name=asked.stack
        )
    return run_machine(
        run.cluster,
        run.recipe.precision,
        ranks=layout.ranks if layout else 1,
        accelerator_name=asked.on,
        network_bytes_per_second=asked.network,
        software=run.software,
        stack_name=asked.stack,
    )


def _choices(predicted: Predicted) -> list[Choice]:
    """Empty for a miniature, and where layout or machine are not known."""
    run, layout, machine, arithmetic = predicted.run, predicted.layout, predicted.machine, predicted.prediction
    if not (run and layout and machine and machine.machine and arithmetic):
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


def _layout(run: ReferenceRun, words: str | None) -> Layout | None:
    if words is None:
        return run.recorded_layout
    layout = parse_layout(words, base=run.recorded_layout or Layout())
    check_layout(Workload(run.architecture, run.recipe, layout), "--layout")
    return layout


def _leaving(predicted: Predicted) -> dict[str, float]:
    """By axis, the share of the links of its ring that leave a node."""
    layout, machine = predicted.layout, predicted.machine
    if layout is None or machine is None or machine.machine is None:
        return {}
    per_node = machine.machine.accelerators_per_node
    return {axis: node_crossing_share(layout, axis, accelerators_per_node=per_node) for axis in (*AXES, "embedding")}


def _print(out: Console, name: str, predicted: Predicted, chosen: list[Choice]) -> None:
    run, machine, arithmetic = predicted.run, predicted.machine, predicted.prediction
    stands_on = f" on {predicted.layout.ranks} {machine.accelerator.name}" if machine and predicted.layout else ""
    laid_out = f", {layout_text(predicted.layout)}" if predicted.layout else ""
    out.print(f"[bold]{escape(name)}[/]{stands_on}{laid_out}")
    if run is None:
        print_comparison(out, predicted.rows, left="predicted", right="published")
        return
    print_published(out, predicted.rows)
    print_predicted(out, predicted.rows)
    print_traffic(out, predicted.rows, _leaving(predicted))
    if arithmetic and arithmetic.step:
        print_time(out, arithmetic.step)
    if arithmetic and arithmetic.memory:
        print_memory(out, arithmetic.memory, memory_bytes=machine.accelerator.board.memory_bytes if machine else None)
    if chosen:
        print_choices(out, chosen)
    notes = [f"not predicted: {escape(reason)}" for reason in predicted.missing]
    if machine and arithmetic and arithmetic.step:
        notes += [f"time: {escape(note)}" for note in machine.notes]
    assumed = [key for key, fact in run.facts.items() if fact.kind is Kind.ASSUMED]
    if assumed:
        notes.append(f"assumed, with reasons in `show {escape(name)}`: {', '.join(assumed)}")
    out.print()
    for note in notes:
        out.print(f"[dim]{note}[/]")
    out.print()
