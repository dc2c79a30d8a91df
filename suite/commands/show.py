"""Facts with their sources of a run or an accelerator, or a miniature's differences to its run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from reference_runs.accelerator import Accelerator, accelerator, accelerator_names
from reference_runs.catalog import miniatures, reference_run, run_names
from reference_runs.errors import InputError, nearest
from reference_runs.miniature import SCALES, Miniature, ScaledFact, miniature
from reference_runs.run import ReferenceRun
from reference_runs.sourced import Sourced
from reference_runs.units import printed
from suite.predict.analytic.parameters import parameter_count
from suite.report.terminal.tables import console, plain_table


def show(
    run: Annotated[
        str, typer.Argument(help="A recorded run, a miniature, an accelerator, or a run file ending in .toml.")
    ],
    scale: Annotated[str, typer.Option(help="For a miniature: cpu or cuda.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the facts of a run or an accelerator with their sources, or what a miniature keeps and scales.

    Examples: python -m suite show bloom-176b; python -m suite show h100; python -m suite show bloom-mini --scale cuda
    """
    minis = miniatures()
    if scale not in SCALES:
        raise InputError("unknown scale", got=repr(scale), allowed=", ".join(SCALES), where="--scale")
    if run in minis:
        small = miniature(reference_run(minis[run]), scale, ranks=2)
        if json:
            print(msgspec.json.encode(small).decode())
        else:
            _print_miniature(small)
        return
    record = _record(run, minis)
    if json:
        print(msgspec.json.encode(record).decode())
    elif isinstance(record, Accelerator):
        _print_facts(f"[bold]{escape(record.title)}[/]", record.facts, record.sources)
    else:
        title = f"[bold]{escape(record.title)}[/]: {parameter_count(record.architecture):,} parameters"
        _print_facts(title, record.facts, record.sources)


def _record(name: str, minis: Iterable[str]) -> ReferenceRun | Accelerator:
    """The run of that name or file, or the accelerator of that name or alias."""
    if not name.endswith(".toml") and name not in run_names():
        with contextlib.suppress(InputError):
            return accelerator(name)
        names = [*run_names(), *minis, *accelerator_names()]
        allowed = ", ".join(names) + ", or a run file ending in .toml"
        raise InputError("unknown name", got=repr(name), meant=nearest(name, names), allowed=allowed)
    return reference_run(name)


def _print_facts(title: str, facts: dict[str, Sourced], sources: dict[str, str]) -> None:
    out = console()
    out.print(title)
    rows = []
    for key, fact in facts.items():
        rows.append([key, _value(fact), fact.kind.value, escape(_origin(fact))])
        for reading in fact.readings:
            other = f"{_number(reading.value, fact.unit)}"
            rows.append(
                ["", f"[yellow]{escape(other)}[/]", "conflict", escape(f"{reading.source} {reading.note}".strip())]
            )
    out.print(plain_table(["fact", "value", "kind", "source, and why"], rows))
    out.print("\n[bold]sources[/]")
    out.print(plain_table(["key", "document"], [[key, escape(text)] for key, text in sources.items()]))


def _origin(fact: Sourced) -> str:
    parts = [fact.source]
    if fact.why:
        parts.append(f"why: {fact.why}")
    if fact.effect:
        parts.append(f"effect: {fact.effect}")
    if fact.note:
        parts.append(fact.note)
    return "; ".join(parts)


def _value(fact: Sourced) -> str:
    return escape(_number(fact.value, fact.unit))


def _number(value: int | float | str | bool | None, unit: str | None) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else printed(value, unit or "")
    return text if unit in (None, "1") else f"{text} {unit}"


def _print_miniature(small: Miniature) -> None:
    out = console()
    out.print(
        f"[bold]{small.name}[/] is {small.run} on a {small.scale} scale: "
        f"{parameter_count(small.architecture):,} parameters"
    )
    out.print("\n[bold]scaled[/]")
    rows = [[d.key, _text(d.recorded), _text(d.here), _factor(d), escape(d.rule)] for d in small.scaled]
    out.print(plain_table(["fact", "recorded", "here", "factor", "rule"], rows))
    out.print("\n[bold]kept[/]")
    out.print(plain_table(["fact", "value"], [[d.key, _text(d.here)] for d in small.kept if d.here is not None]))


def _text(value: int | float | str | bool | None) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else printed(value, "")


def _factor(difference: ScaledFact) -> str:
    recorded, here = difference.recorded, difference.here
    if isinstance(recorded, bool) or isinstance(here, bool):
        return ""
    if isinstance(recorded, (int, float)) and isinstance(here, (int, float)) and recorded and here:
        return f"/ {recorded / here:,.4g}" if recorded >= here else f"* {here / recorded:,.4g}"
    return ""
