"""The page with controls, as a Dash application: every control's change asks `predict` again."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from reference_runs.errors import InputError
from reference_runs.layout import parse_layout
from reference_runs.run import Workload
from suite.report.explore.content import content
from suite.report.explore.controls import LAYOUT_CONTROLS, OTHERS, PARTS, RANKS, SWITCHES, controls
from suite.report.explore.elements import (
    SHOW,
    SHOW_MEASURED,
    SHOW_NUMBERS,
    control_field,
    empty_application,
    labelled,
    lines_of,
    part_section,
)
from suite.report.explore.measured import measured
from suite.report.explore.numbers import Numbers, numbers, searched_for
from suite.report.explore.presets import FILES, RUNS, names, source_of, sources
from suite.report.explore.state import (
    ExploreState,
    address,
    checked_state,
    complete_text,
    controls_of,
    layout_of,
    state_of,
)
from suite.report.explore.unsaid import EMPTY, unsaid
from suite.report.explore.view import recorded_layout, settled, state_of_run, view
from suite.report.explore.why import derivations
from suite.report.export.formats import FORMATS, export_format
from suite.report.export.job import ExportedJob

NAMES = (*OTHERS, RANKS, *LAYOUT_CONTROLS)
EXPORTS = tuple(FORMATS)


class PageScope(NamedTuple):
    """Everything that a page may show.

    Args:
        first: shown where the address says nothing.
        files: run files that may be read: those that the command line named.
    """

    first: ExploreState
    files: tuple[str, ...] = ()

    def check(self, run: str) -> None:
        """Refuse a run file that the command line did not name: another site may send the browser here."""
        if run.endswith(FILES) and run not in self.files:
            allowed = ", ".join((*self.files, "recorded runs"))
            raise InputError("a file that `explore` was not started with", got=repr(run), allowed=allowed, where="run")

    def names(self, source: str) -> dict[str, str]:
        """The presets of a source in words, by name, with the files."""
        return {**({name: name for name in self.files} if source == RUNS else {}), **names(source)}


def application(served: PageScope) -> Dash:
    """The application of the page."""
    app = empty_application(derivations())
    page = _page(served)
    app.layout = lambda: page
    asked = [Input(name, "value") for name in NAMES]

    @app.callback(  # type: ignore[untyped-decorator]  # Dash has no types
        [
            *(Output(name, "value") for name in NAMES),
            Output("url", "search"),
            Output("content", "data"),
            Output("source", "value"),
            Output("run", "options"),
            *(Output(name, "placeholder") for name in EMPTY),
            Output("export-text", "children"),
        ],
        [Input("url", "search"), Input("source", "value"), Input("keep", "n_clicks"), Input("export", "value"), *asked],
    )
    def changed(query: str, source: str, _kept: int, export: str | None, *given: Any) -> list[Any]:
        if ctx.triggered_id == "export":
            return [*[no_update] * (len(NAMES) + 4 + len(EMPTY)), export_text(query, export, served)]
        found = answer(query, source, dict(zip(NAMES, given, strict=True)), ctx.triggered_id, served)
        shown, content_ = found[len(NAMES)], found[len(NAMES) + 1]
        # one text: of a tree, the browser's part of Dash would visit every node
        found[len(NAMES) + 1] = msgspec.json.encode(content_).decode()
        return [*found, no_update if shown is no_update or not export else export_text(shown, export, served)]

    @app.callback(Output("records", "data"), Input("run", "value"))  # type: ignore[untyped-decorator]
    def recorded(run: str | None) -> Any:
        return records_of(run, served)

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
        return msgspec.json.encode(numbers_of(query, served)).decode()

    app.clientside_callback(SHOW_NUMBERS, Output("numbers-in", "children"), Input("numbers", "data"))
    app.clientside_callback(SHOW, Output("shown-in", "children"), Input("content", "data"))
    app.clientside_callback(SHOW_MEASURED, Output("measured-in", "children"), Input("records", "data"))
    _ask_once(app, served)
    return app


def _ask_once(app: Dash, served: PageScope) -> None:
    """Answer the first load before there is any, in one thread.

    Dash arranges its scripts during the first request, and answers a second one at that moment with HTTP 500.
    Modules that are imported on demand come in too.
    """
    app.server.test_client().get("/").close()
    answer("", RUNS, {}, None, served)
    records_of(served.first.run, served)


def answer(query: str, source: str, given: dict[str, Any], triggered: str | None, served: PageScope) -> list[Any]:
    """After a change of a control or of the address: values of controls, address, content, source and its runs.

    The last are words for what each empty control stands for. Values that stay as they are are not sent again. A
    question without an answer changes no control.
    """
    try:
        return _answer(query, source, given, triggered, served)
    except Exception as error:
        refused = {"title": "", "command": "", "views": [{"layout": "", "wrong": lines_of(error)}]}
        return [*[no_update] * (len(NAMES) + 1), refused, *[no_update] * (2 + len(EMPTY))]


def _answer(query: str, source: str, given: dict[str, Any], triggered: str | None, served: PageScope) -> list[Any]:
    state = _state(query, source, given, triggered, served)
    recorded = recorded_layout(state.run, state.stack)
    layout = parse_layout(state.layout, base=recorded) if state.layout else recorded
    values = {**{name: getattr(state, name) for name in OTHERS}, RANKS: layout.ranks, **controls_of(layout)}
    own = source_of(state.run)
    moved = own != source or triggered in (None, "url", "source")
    offered = served.names(own)
    options = [{"label": words, "value": name} for name, words in offered.items()] if moved else no_update
    return [
        *(no_update if name in given and given[name] == value else value for name, value in values.items()),
        address(state),
        content(state) | {"search": searched_for(state)},
        own if moved else no_update,
        options,
        *unsaid(state).values(),
    ]


def _state(query: str, source: str, given: dict[str, Any], triggered: str | None, served: PageScope) -> ExploreState:
    """The state to show: the address's, a run's as it was recorded, or the controls'."""
    if triggered in (None, "url"):
        return _addressed(query, served)
    run = given["run"] or served.first.run
    served.check(run)
    if triggered == "source":
        return state_of_run(run if source_of(run) == source else next(iter(served.names(source))))
    if triggered == "run":
        return state_of_run(run)
    others = {name: None if given[name] == "" else given[name] for name in OTHERS}
    if triggered == RANKS:
        return settled(checked_state({**others, "run": run, "layout": "", RANKS: given[RANKS] or 0}, where="controls"))
    layout = complete_text(layout_of(given, recorded_layout(run)))
    if triggered == "keep":
        others["other"] = layout
    return checked_state({**others, "run": run, "layout": layout}, where="controls")


def _addressed(query: str | None, served: PageScope) -> ExploreState:
    state = state_of(query or "", served.first)
    served.check(state.run)
    return settled(state)


def records_of(run: str | None, served: PageScope) -> Any:
    """Launches of a run with this suite; none of a run that cannot be shown."""
    if not run:
        return no_update
    try:
        served.check(run)
        return measured(run)
    except InputError:
        return {"words": "", "launches": []}


def numbers_of(query: str, served: PageScope) -> Numbers:
    """Other numbers of accelerators for the page's address, or why there are none."""
    try:
        return numbers(_addressed(query, served))
    except Exception as error:
        return {"wrong": lines_of(error)}


def export_text(query: str, name: str | None, served: PageScope) -> str:
    """The page's layout in this format, or the reason why there is none."""
    if not name:
        return ""
    try:
        return exported(_addressed(query, served), name)
    except Exception as error:
        return "\n".join(lines_of(error))


def _page(served: PageScope) -> Any:
    first = served.first
    layout = parse_layout(first.layout, base=recorded_layout(first.run, first.stack))
    values = {**msgspec.structs.asdict(first), **controls_of(layout), RANKS: layout.ranks}
    empty = unsaid(first)
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name) for name in ("content", "records", "numbers")),
            *(html.Div(id=name, hidden=True) for name in ("shown-in", "measured-in", "numbers-in")),
            html.Header([html.H1("What would this training take?"), html.P(id="title", className="muted")]),
            html.Main(
                [
                    html.Details(
                        [
                            html.Summary("Controls"),
                            html.Form(_controls(values, empty, served), id="controls", **_LABELLED),
                        ],
                        open=True,
                        id="controls-fold",
                    ),
                    html.Div(
                        [
                            html.Div(id="answer", **{"aria-live": "polite"}),
                            html.Div(id="answer-more"),
                            html.Div(id="cards"),
                            *(part_section(part.name, part.title, part.places, part.why) for part in PARTS),
                            _export_part(),
                        ],
                        id="shown",
                    ),
                ]
            ),
        ]
    )


_LABELLED = {"aria-label": "run, machine and layout"}


def _export_part() -> Any:
    field = dcc.Dropdown(id="export", options=list(EXPORTS), placeholder="choose a format")
    return html.Section(
        [
            html.H2("Export"),
            html.P(["The same numbers in a terminal:", html.Pre(html.Code(id="command"), tabIndex=0)]),
            labelled("A launch script or configuration for other software", field),
            html.Pre(id="export-text", tabIndex=0, role="region", **{"aria-label": "the exported layout"}),
        ],
        id="export-part",
    )


def _controls(values: dict[str, Any], empty: dict[str, str], served: PageScope) -> list[Any]:
    runs = [{"label": words, "value": name} for name, words in served.names(source_of(values["run"])).items()]
    origins = [{"label": title, "value": name} for name, title in sources().items()]
    groups = [
        html.Fieldset(
            [
                html.Legend("run"),
                labelled(
                    "from", dcc.Dropdown(id="source", options=origins, value=source_of(values["run"]), clearable=False)
                ),
                labelled("run or row", dcc.Dropdown(id="run", options=runs, value=values["run"], clearable=False)),
            ]
        )
    ]
    for title, group in controls().items():
        fields = [control_field(each, values[each.name], empty.get(each.name)) for each in group]
        if title == "layout":
            fields.append(dcc.Checklist(id="switches", options=SWITCHES, value=values["switches"], className="wide"))
        groups.append(html.Fieldset([html.Legend(title), *fields]))
    text = dcc.Input(
        id="other", value=values["other"], type="text", debounce=True, autoComplete="off", placeholder="dp8,tp8,pp6"
    )
    keep = html.Button("Keep this layout as B", id="keep", type="button", n_clicks=0)
    groups.append(html.Fieldset([html.Legend("beside it"), labelled("a second layout, B", text), keep]))
    return groups


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
    if source_of(state.run) != RUNS:
        raise InputError("a table's row is no run to start", allowed="a recorded run or a run file")
    run, machine = predicted.run, predicted.machine
    node = machine.machine.accelerators_per_node if machine.machine else machine.accelerator.board.accelerators_per_node
    stack = state.stack or chosen.stack or machine.stack.name
    workload = Workload(run.architecture, run.recipe, predicted.layout)
    job = ExportedJob(state.run, workload, node, stack, tokens=run.recipe.tokens)
    said = [] if chosen.comments else chosen.remarks(job)
    return "".join([*(f"# {line}\n" for line in said), chosen.text(job)])
