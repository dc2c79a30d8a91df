"""Facts with their sources of a run or an accelerator, or a miniature's differences to its run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import typer

from reference_runs.accelerator import Accelerator, accelerator, accelerator_names
from reference_runs.catalog import miniatures, reference_run, run_names
from reference_runs.configurations.models import sized_model
from reference_runs.errors import InputError
from reference_runs.floors import FloorQuantity
from reference_runs.incomplete import check_complete, missing_keys
from reference_runs.miniature import Miniature, ScaledFact, miniature
from reference_runs.miniature_shape import SCALES
from reference_runs.named_runs import meant_run
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Sourced, Value
from reference_runs.units import printed
from suite.commands.options import print_json
from suite.commands.traced_model import answered_or_exit, required_source
from suite.commands.traced_options import TracedOptions
from suite.job.trace_job import TraceJob
from suite.predict.analytic.parameters import parameter_count
from suite.report.terminal.tables import coloured, console, print_folded, print_table
from suite.report.terminal.traced import print_model
from suite.reproduce.model_plan import SEQUENCE
from suite.reproduce.traced import traced


def show(
    run: Annotated[
        str,
        typer.Argument(
            help="A recorded run, a miniature, an accelerator, a run file (.toml), or with --mini a config.json."
        ),
    ],
    mini: Annotated[
        bool, typer.Option("--mini", help="Print what the miniature of a run or configuration keeps and scales.")
    ] = False,
    scale: Annotated[str, typer.Option(help="Size of the miniature: cpu or cuda.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the facts of a run or an accelerator with their sources, or what a miniature keeps and scales.

    Examples: python -m suite show bloom-176b; python -m suite show h100; python -m suite show bloom-mini --scale cuda;
    python -m suite show config.json --mini
    """
    minis = miniatures()
    if scale not in SCALES:
        raise InputError("unknown scale", got=repr(scale), allowed=", ".join(SCALES), where="--scale")
    if mini and run.endswith(".json"):
        if scale != "cpu":
            raise InputError("a configuration has one miniature", got=scale, where="--scale")
        _show_configuration(run, as_json=json)
        return
    if run in minis or mini:
        whole = reference_run(minis.get(run, run))
        check_complete(whole.recipe, "for a miniature", whole.where)
        small = miniature(whole, scale, ranks=2)
        if json:
            print_json(small)
        else:
            _print_miniature(small)
        return
    record = _record(run, minis)
    if json:
        print_json(record)
    elif isinstance(record, Accelerator):
        _print_facts(record.title, record.facts, record.sources, _floor_rows(record))
    else:
        title = f"{record.title}: {parameter_count(record.architecture):,} parameters"
        _print_facts(title, record.facts, record.sources)
        if missing := missing_keys(record.recipe):
            keys = ", ".join(f"recipe.{key}" for key in missing)
            needs = "`reproduce` needs them; `predict`, `fit` and `plan` assume precision, batch and tokens"
            print_folded(console(), f"left out: {keys}; {needs}")


def _show_configuration(name: str, *, as_json: bool) -> None:
    """Print the miniature that `reproduce` makes of a configuration: each key that changes, by its rule."""
    source = required_source(name, TracedOptions())
    of_miniature = msgspec.structs.replace(source, mini=True)
    job = TraceJob(source=of_miniature, sequence=SEQUENCE)
    (trace,) = answered_or_exit(lambda: traced([job]))
    if as_json:
        total, values = trace.parameters.total, msgspec.json.decode(trace.values or "{}")
        print_json({"model": trace.model, "parameters": total, "scaled": trace.scaled, "configuration": values})
        return
    out = console()
    print_model(out, trace)
    print_folded(out, f"{trace.parameters.total:,} parameters", "bold")


def _record(name: str, minis: Iterable[str]) -> ReferenceRun | Accelerator:
    """The run of that name or file, or the accelerator of that name or alias."""
    if not name.endswith((".toml", ".json")) and name not in run_names():
        with contextlib.suppress(InputError):
            return accelerator(name)
        if (model := sized_model(name)) is not None:
            what = f"{model} is a model without a run: there is nothing to show"
            raise InputError(what, got=repr(name), allowed="`predict`, `fit` or `plan` with it")
        names = [*run_names(), *minis, *accelerator_names()]
        allowed = ", ".join(names) + ", or a run file ending in .toml"
        raise InputError("unknown name", got=repr(name), meant=meant_run(name, names), allowed=allowed)
    return reference_run(name)


def _floor_rows(device: Accelerator) -> list[list[str]]:
    """Rows of an accelerator's floors, then of the quantities that have none."""
    rows = []
    for floor in device.floors:
        origin = "; ".join(part for part in (floor.source, floor.why, floor.note) if part)
        rows.append([floor.of, floor.interval, floor.kind.value, floor.date, origin])
    for quantity, why in device.no_floor.items():
        rows.append([FloorQuantity(quantity).words, "no floor", "", "", why])
    return rows


def _print_facts(
    title: str, facts: dict[str, Sourced], sources: dict[str, str], floors: Sequence[Sequence[str]] = ()
) -> None:
    out = console()
    print_folded(out, title, "bold")
    rows: list[list[object]] = []
    for key, fact in facts.items():
        why, effect = (f"{name}: {text}" if text else "" for name, text in (("why", fact.why), ("effect", fact.effect)))
        origin = "; ".join(part for part in (fact.source, why, effect, fact.note) if part)
        rows.append([key, _number(fact.value, fact.unit), fact.kind.value, origin])
        for reading in fact.readings:
            conflict = coloured("conflict", "yellow")
            rows.append(["", _number(reading.value, fact.unit), conflict, f"{reading.source} {reading.note}".strip()])
    print_table(out, rows, ["fact", "value", "kind", "source"], right=())
    if floors:
        out.print("\n[bold]floors: what working ones reached, which `accept` compares with[/]")
        print_table(out, floors, ["rate", "interval", "kind", "date", "source"], right=())
    out.print("\n[bold]sources[/]")
    print_table(out, sources.items(), ["key", "document"])


def _number(value: Value | None, unit: str | None) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else printed(value, unit or "")
    return text if unit in (None, "1") else f"{text} {unit}"


def _print_miniature(small: Miniature) -> None:
    out = console()
    parameters = parameter_count(small.architecture)
    print_folded(out, f"{small.name} is {small.run} on a {small.scale} scale: {parameters:,} parameters", "bold")
    rows = [[d.key, _text(d.recorded), _text(d.here), _factor(d), d.rule] for d in small.scaled]
    out.print()
    print_table(out, rows, ["scaled", "recorded", "here", "factor", "rule"], right=())
    out.print()
    print_table(out, [[d.key, _text(d.here)] for d in small.kept if d.here is not None], ["kept", "value"], right=())


def _text(value: int | float | str | bool | None) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else printed(value, "")


def _factor(difference: ScaledFact) -> str:
    recorded, here = difference.recorded, difference.here
    if isinstance(recorded, bool) or isinstance(here, bool):
        return ""
    if isinstance(recorded, (int, float)) and isinstance(here, (int, float)) and recorded and here:
        return f"/ {recorded / here:,.4g}" if recorded >= here else f"* {here / recorded:,.4g}"
    return ""
