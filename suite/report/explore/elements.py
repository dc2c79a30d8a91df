"""Elements of the pages with controls: fields, parts, and what the browser begins with."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from dash import Dash, dcc, html

from reference_runs.errors import InputError
from suite.report.explore.controls import NUMBERS, Control
from suite.report.explore.words import in_controls

MISTAKE = "a mistake of the suite"
_INDEX = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{%title%}</title><link rel="icon" href="data:,">{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}
<script>window.explore.derivations = DERIVATIONS;</script>{%renderer%}</footer></body></html>"""
SHOW = """function(content) {
  if (!content) { return ''; }
  window.explore.ready();
  window.explore.show(JSON.parse(content));
  return '';
}"""
SHOW_NUMBERS = "function(found) { if (found) { window.explore.numbers(JSON.parse(found)); } return ''; }"
SHOW_MEASURED = "function(content) { if (content) { window.explore.measured(content); } return ''; }"


def empty_application(derivations: object) -> Dash:
    """An application with this project's scripts and style sheet, and no page yet.

    Args:
        derivations: of figures, by the part that shows them.
    """
    app = Dash(__name__, title="explore", update_title=None, assets_folder="assets", serve_locally=True)
    app.index_string = _INDEX.replace("DERIVATIONS", json.dumps(derivations).replace("</", "<\\/"))
    return app


def part_section(name: str, title: str, places: Sequence[str], why: str) -> Any:
    """The section of a part of the page, whose places the browser fills."""
    asked = []
    if name == NUMBERS:
        button = html.Button("Search them", id="numbers-search", type="button", n_clicks=0)
        asked = [html.P([button, html.Span(id="numbers-state", className="muted", role="status")])]
    explained = [html.Details(className="derived", **{"data-why": why})] if why else []
    return html.Section(
        [html.H2(title), *asked, *(html.Div(id=place) for place in places), *explained], id=f"{name}-part"
    )


def control_field(control: Control, value: Any, empty: str | None) -> Any:
    """The labelled field of a control.

    Args:
        empty: shown where it has no value.
    """
    about: dict[str, Any] = {"id": control.name, "value": value, "placeholder": empty}
    if control.options is None:
        least, step = (1, 1) if control.whole else (0, "any")
        return labelled(control.label, dcc.Input(type="number", min=least, step=step, **about))
    field = dcc.Dropdown(options=list(control.options), clearable=control.clearable, **about)
    return labelled(control.label, field)


def labelled(label: str, field: Any) -> Any:
    """A field with its label."""
    return html.Label([html.Span(label, id=f"{field.id}-label"), field])


def lines_of(error: Exception) -> list[str]:
    """Lines for the page: what is wrong with the input, or that the suite made a mistake, which the terminal shows."""
    if isinstance(error, InputError):
        return list(map(in_controls, error.lines))
    logging.getLogger(__name__).error("a mistake of the suite", exc_info=error)
    named = f"{type(error).__name__}: {error}"
    return [f"{MISTAKE}, not of your input ({named}); the terminal that serves the page has the details"]
