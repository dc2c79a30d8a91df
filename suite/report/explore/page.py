"""The page with controls, as a Dash application: every control's change asks `predict` again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from reference_runs.errors import InputError
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.report.explore.content import content
from suite.report.explore.controls import LAYOUT_CONTROLS, NUMBERS, OTHERS, PARTS, SWITCHES, Control, controls
from suite.report.explore.measured import measured
from suite.report.explore.numbers import Numbers, numbers, searched_for
from suite.report.explore.presets import RUNS, names, source_of, sources
from suite.report.explore.state import ExploreState, address, complete_text, controls_of, layout_of, state_of
from suite.report.explore.view import recorded_layout, state_of_run, view
from suite.report.explore.why import derivations
from suite.report.export.formats import FORMATS, export_format
from suite.report.export.job import ExportedJob

NAMES = (*OTHERS, *LAYOUT_CONTROLS)
EXPORTS = tuple(FORMATS)
_INDEX = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{%title%}</title><link rel="icon" href="data:,">{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}
<script>window.explore.derivations = DERIVATIONS;</script>{%renderer%}</footer></body></html>"""
_SHOW = """function(content) {
  if (!content) { return ''; }
  window.explore.ready();
  window.explore.show(JSON.parse(content));
  return '';
}"""
_NUMBERS = "function(found) { if (found) { window.explore.numbers(JSON.parse(found)); } return ''; }"
_MEASURED = "function(content) { if (content) { window.explore.measured(content); } return ''; }"


def application(first: ExploreState) -> Dash:
    """The application, which shows `first` where the address says nothing."""
    app = Dash(__name__, title="explore", update_title=None, assets_folder="assets", serve_locally=True)
    app.layout = lambda: _page(first)  # anew for each visit
    app.index_string = _INDEX.replace("DERIVATIONS", json.dumps(derivations()).replace("</", "<\\/"))
    asked = [Input(name, "value") for name in NAMES]

    @app.callback(  # type: ignore[untyped-decorator]  # Dash has no types
        [
            *(Output(name, "value") for name in NAMES),
            Output("url", "search"),
            Output("content", "data"),
            Output("source", "value"),
            Output("run", "options"),
            Output("export-text", "children"),
        ],
        [Input("url", "search"), Input("source", "value"), Input("keep", "n_clicks"), Input("export", "value"), *asked],
    )
    def changed(query: str, source: str, _kept: int, export: str | None, *given: Any) -> list[Any]:
        if ctx.triggered_id == "export":
            return [*[no_update] * (len(NAMES) + 4), export_text(query, export, first)]
        found = answer(query, source, dict(zip(NAMES, given, strict=True)), ctx.triggered_id, first)
        shown, content_ = found[len(NAMES)], found[len(NAMES) + 1]
        # one text: of a tree, the browser's part of Dash would visit every node
        found[len(NAMES) + 1] = msgspec.json.encode(content_).decode()
        return [*found, no_update if shown is no_update or not export else export_text(shown, export, first)]

    @app.callback(Output("records", "data"), Input("run", "value"))  # type: ignore[untyped-decorator]
    def recorded(run: str) -> Any:
        return _records(run)

    @app.callback(  # type: ignore[untyped-decorator]
        Output("numbers", "data"),
        Input("numbers-search", "n_clicks"),
        State("url", "search"),
        running=[
            (Output("numbers-search", "disabled"), True, False),
            (Output("numbers-state", "children"), "searching: from a second to a minute", ""),
        ],
        prevent_initial_call=True,
    )
    def searched(_clicks: int, query: str) -> str:
        return msgspec.json.encode(numbers_of(query, first)).decode()

    app.clientside_callback(_NUMBERS, Output("numbers-in", "children"), Input("numbers", "data"))
    app.clientside_callback(_SHOW, Output("shown-in", "children"), Input("content", "data"))
    app.clientside_callback(_MEASURED, Output("measured-in", "children"), Input("records", "data"))
    return app


def answer(query: str, source: str, given: dict[str, Any], triggered: str | None, first: ExploreState) -> list[Any]:
    """After a change of a control or of the address: values of controls, address, content, source and its runs.

    What stays as it is is not sent again.
    """
    try:
        state = _state(query, source, given, triggered, first)
    except InputError as error:
        refused = {"title": "", "remarks": [], "command": "", "views": [{"layout": "", "wrong": list(error.lines)}]}
        return [*[no_update] * (len(NAMES) + 1), refused, no_update, no_update]
    recorded = recorded_layout(state.run, state.stack)
    layout = parse_layout(state.layout, base=recorded) if state.layout else recorded
    values = {**{name: getattr(state, name) for name in OTHERS}, **controls_of(layout)}
    own = source_of(state.run)
    moved = own != source or triggered in (None, "url", "source")
    options = [{"label": words, "value": name} for name, words in names(own).items()] if moved else no_update
    if moved and state.run not in names(own):
        options = [*options, {"label": state.run, "value": state.run}]
    return [
        *(no_update if name in given and given[name] == value else value for name, value in values.items()),
        address(state),
        content(state) | {"search": searched_for(state)},
        own if moved else no_update,
        options,
    ]


def _state(query: str, source: str, given: dict[str, Any], triggered: str | None, first: ExploreState) -> ExploreState:
    """The state to show: the address's, a run's as it was recorded, or the controls'."""
    if triggered in (None, "url"):
        return state_of(query or "") or first
    if triggered == "source":
        return state_of_run(given["run"] if source_of(given["run"]) == source else next(iter(names(source))))
    if triggered == "run":
        return state_of_run(given["run"])
    others: dict[str, Any] = {name: given[name] or None for name in OTHERS}
    layout = complete_text(layout_of(given, recorded_layout(given["run"])))
    if triggered == "keep":
        others["other"] = layout
    return ExploreState(layout=layout, **others)


def _records(run: str | None) -> Any:
    try:
        return measured(run) if run else no_update
    except InputError:
        return {"words": "", "launches": []}


def numbers_of(query: str, first: ExploreState) -> Numbers:
    """Other numbers of accelerators for the page's address, or why there are none."""
    try:
        return numbers(state_of(query or "") or first)
    except InputError as error:
        return {"wrong": list(error.lines)}


def export_text(query: str, name: str | None, first: ExploreState) -> str:
    """The page's layout in this format, or the reason why there is none."""
    if not name:
        return ""
    try:
        return exported(state_of(query or "") or first, name)
    except InputError as error:
        return "\n".join(error.lines)


def _page(first: ExploreState) -> Any:
    layout = parse_layout(first.layout, base=recorded_layout(first.run, first.stack))
    values = {**msgspec.structs.asdict(first), **controls_of(layout)}
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name) for name in ("content", "records", "numbers")),
            *(html.Div(id=name, hidden=True) for name in ("shown-in", "measured-in", "numbers-in")),
            html.Header([html.H1("What would this training take?"), html.P(id="title", className="muted")]),
            html.Main(
                [
                    html.Details(
                        [html.Summary("Controls"), html.Form(_controls(values), id="controls", **_LABELLED)],
                        open=True,
                        id="controls-fold",
                    ),
                    html.Div(
                        [
                            html.Div(id="answer", **{"aria-live": "polite"}),
                            html.Div(id="answer-more"),
                            html.Div(id="cards"),
                            *(_part(part.name, part.title, part.places, part.why) for part in PARTS),
                            _export_part(),
                        ],
                        id="shown",
                    ),
                ]
            ),
        ]
    )


_LABELLED = {"aria-label": "run, machine and layout"}


def _part(name: str, title: str, places: Sequence[str], why: str) -> Any:
    asked = []
    if name == NUMBERS:
        button = html.Button("Search them", id="numbers-search", type="button", n_clicks=0)
        asked = [html.P([button, html.Span(id="numbers-state", className="muted", role="status")])]
    explained = [html.Details(className="derived", **{"data-why": why})] if why else []
    return html.Section(
        [html.H2(title), *asked, *(html.Div(id=place) for place in places), *explained], id=f"{name}-part"
    )


def _export_part() -> Any:
    field = dcc.Dropdown(id="export", options=list(EXPORTS), placeholder="choose a format")
    return html.Section(
        [
            html.H2("Take it along"),
            html.Div(id="remarks"),
            html.P(["The same numbers in a terminal:", html.Pre(html.Code(id="command"), tabIndex=0)]),
            _labelled("As a launch script or configuration of other software", field),
            html.Pre(id="export-text", tabIndex=0, role="region", **{"aria-label": "the exported layout"}),
        ],
        id="export-part",
    )


def _controls(values: dict[str, Any]) -> list[Any]:
    runs = [{"label": words, "value": name} for name, words in names(source_of(values["run"])).items()]
    origins = [{"label": title, "value": name} for name, title in sources().items()]
    groups = [
        html.Fieldset(
            [
                html.Legend("run"),
                _labelled(
                    "from", dcc.Dropdown(id="source", options=origins, value=source_of(values["run"]), clearable=False)
                ),
                _labelled("run or row", dcc.Dropdown(id="run", options=runs, value=values["run"], clearable=False)),
            ]
        )
    ]
    for title, group in controls().items():
        fields = [_control(each, values[each.name]) for each in group]
        if title == "layout":
            fields.append(dcc.Checklist(id="switches", options=SWITCHES, value=values["switches"], className="wide"))
        groups.append(html.Fieldset([html.Legend(title), *fields]))
    text = dcc.Input(
        id="other", value=values["other"], type="text", debounce=True, autoComplete="off", placeholder="dp8,tp8,pp6"
    )
    keep = html.Button("Keep this layout as B", id="keep", type="button", n_clicks=0)
    groups.append(html.Fieldset([html.Legend("beside it"), _labelled("a second layout, B", text), keep]))
    return groups


def _control(control: Control, value: Any) -> Any:
    if control.options is None:
        least, step = (1, 1) if control.whole else (0, "any")
        return _labelled(control.label, dcc.Input(id=control.name, type="number", value=value, min=least, step=step))
    options = list(control.options)
    field = dcc.Dropdown(id=control.name, options=options, value=value, clearable=control.clearable)
    return _labelled(control.label, field)


def _labelled(label: str, field: Any) -> Any:
    return html.Label([html.Span(label, id=f"{field.id}-label"), field])


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
    said = [] if chosen.comments else chosen.remarks(job)
    return "".join([*(f"# {line}\n" for line in said), chosen.text(job)])
