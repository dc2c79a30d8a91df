"""The page as one file without a server: a grid of states of one run, and what draws them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference_runs.errors import InputError
from suite.paths import program, whole_file
from suite.report.explore.controls import PARTS, RANKS, SWITCHES, TRAINING, Control, controls
from suite.report.explore.grid import StateGrid, computed_grid, packed
from suite.report.explore.measured import measured
from suite.report.explore.numbers import Numbers, numbers
from suite.report.explore.presets import described_run
from suite.report.explore.state import controls_of
from suite.report.explore.unsaid import unsaid
from suite.report.explore.view import recorded_layout, state_of_run
from suite.report.explore.why import derivations

MOST_BYTES = 10_000_000
HERE = Path(__file__).parent


def write_offline_page(run: str, path: Path, progress: Callable[[int, int], None]) -> tuple[int, int]:
    """Write the file of a run; its bytes, and the states in it.

    Raises:
        InputError: the run has no layout or machine to begin with, the file would be larger than `MOST_BYTES`, or
            cannot be written.
    """
    described = described_run(run)
    if described.recorded_layout is None or described.cluster is None:
        raise InputError(
            "no layout and machine are recorded", got=run, allowed="a run that has them", where=described.where
        )
    grid = computed_grid(run, progress)
    text = offline_page(run, grid).encode()
    if len(text) > MOST_BYTES:
        raise InputError("the file would be too large", got=f"{len(text):,} bytes", allowed=f"{MOST_BYTES:,}")
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(text)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where="--static") from error
    return len(text), len(grid.contents)


def offline_page(run: str, grid: StateGrid) -> str:
    """The file's text."""
    import jinja2
    from markupsafe import Markup

    described = described_run(run)
    assert described.cluster is not None
    own = controls_of(recorded_layout(run))
    begin = {name: own[name] for name in grid.axes if name in own} | {"on": None, "sp": "sp" in own["switches"]}
    columns = packed(
        grid,
        title=described.title,
        own=begin,
        accelerator=described.cluster.accelerator,
        command=f"{program()} predict {run}",
        measured=measured(run),
        numbers=_numbers(run),
    )
    scripts = {
        "amounts": (HERE / "assets" / "amounts.js").read_text(encoding="utf-8"),
        "charts": (HERE / "assets" / "charts.js").read_text(encoding="utf-8"),
        "script": (HERE / "assets" / "explore.js").read_text(encoding="utf-8"),
        "static_script": (HERE / "static" / "static.js").read_text(encoding="utf-8"),
        "style": (HERE / "assets" / "explore.css").read_text(encoding="utf-8"),
        "derivations": json.dumps(derivations()).replace("</", "<\\/"),
    }
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        (HERE / "static" / "page.html.jinja").read_text(encoding="utf-8")
    )
    return template.render(
        title=f"{described.title}: what would this training take?",
        run=run,
        program=program(),
        states=len(grid.contents),
        groups=_groups(run, grid),
        parts=PARTS,
        **columns,
        **{name: Markup(text) for name, text in scripts.items()},  # noqa: S704  # the project's own files
    )


def _numbers(run: str) -> Numbers:
    """Other numbers of accelerators than the run's, without links: states that the file may lack."""
    found = numbers(state_of_run(run))
    return found | {"rows": [row | {"address": None} for row in found.get("rows", [])]}


def _groups(run: str, grid: StateGrid) -> dict[str, list[dict[str, Any]]]:
    """The controls of the served page, and whether each varies here or what it is held at."""
    first = state_of_run(run)
    empty = unsaid(first)
    held = {**{name: getattr(first, name) for name in ("network", "stack", "products", *TRAINING)}, **grid.held}

    def field(control: Control) -> dict[str, Any]:
        value = held.get(control.name)
        return {
            "name": control.name,
            "label": control.label,
            "varies": control.name in grid.axes,
            "value": empty.get(control.name) if value is None else value,
            "wide": control.options is not None,
        }

    groups = {title: [field(each) for each in group if each.name != RANKS] for title, group in controls().items()}
    for name, words in SWITCHES.items():
        varies = name in grid.axes
        value = "on" if name in grid.held["switches"] else "off"
        groups["layout"].append({"name": name, "label": words, "varies": varies, "value": value, "wide": False})
    return groups
