"""The page of a traced model, as a Dash application: a change that no trace answers yet traces a step."""

from __future__ import annotations

from typing import Any

import msgspec
from dash import Dash, Input, Output, ctx, dcc, html, no_update

from suite.report.explore.elements import SHOW, control_field, empty_application, lines_of, part_section
from suite.report.explore.traced import PARTS, TracedPage, TracedState, address, controls, state_of, state_of_query
from suite.reproduce.traced import TraceError

NAMES = TracedState.__struct_fields__
_TRACING = "tracing: up to a minute"


def traced_application(page: TracedPage, first: TracedState) -> Dash:
    """The application of a model's page, which shows `first` where the address says nothing."""
    app = empty_application({})
    shown = _page(first)
    app.layout = lambda: shown
    asked = [Input(name, "value") for name in NAMES]

    @app.callback(  # type: ignore[untyped-decorator]  # Dash has no types
        [*(Output(name, "value") for name in NAMES), Output("url", "search"), Output("content", "data")],
        [Input("url", "search"), *asked],
        running=[(Output("tracing", "children"), _TRACING, "")],
    )
    def changed(query: str, *given: Any) -> list[Any]:
        return answer(query, dict(zip(NAMES, given, strict=True)), ctx.triggered_id, page, first)

    app.clientside_callback(SHOW, Output("shown-in", "children"), Input("content", "data"))
    app.server.test_client().get("/").close()  # Dash arranges its scripts during the first request
    return app


def answer(query: str, given: dict[str, Any], triggered: str | None, page: TracedPage, first: TracedState) -> list[Any]:
    """After a change of a control or of the address: values of controls, address, and content as JSON.

    Values that stay as they are are not sent again. A question without an answer changes no control.
    """
    try:
        if triggered in (None, "url"):
            state = state_of_query(query) if query else first
        else:
            state = state_of(given, where="controls")
        found = page.content(state)
    except Exception as error:
        refused = {"title": "", "command": "", "views": [{"layout": "", "wrong": _lines(error)}]}
        return [*[no_update] * (len(NAMES) + 1), msgspec.json.encode(refused).decode()]
    values = msgspec.to_builtins(state)
    sent = [no_update if given.get(name) == values[name] else values[name] for name in NAMES]
    return [*sent, address(state), msgspec.json.encode(found).decode()]


def _lines(error: Exception) -> list[str]:
    return [str(error)] if isinstance(error, TraceError) else lines_of(error)


def _page(first: TracedState) -> Any:
    values = msgspec.to_builtins(first)
    groups = [
        html.Fieldset([html.Legend(title), *(control_field(each, values[each.name], None) for each in group)])
        for title, group in controls().items()
    ]
    form = html.Form(groups, id="controls", **{"aria-label": "machine, training and layout"})
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="content"),
            html.Div(id="shown-in", hidden=True),
            html.Header([html.H1("What would this training take?"), html.P(id="title", className="muted")]),
            html.Main(
                [
                    html.Details([html.Summary("Controls"), form], open=True, id="controls-fold"),
                    html.Div(
                        [
                            html.P(id="tracing", className="muted", role="status"),
                            html.Div(id="answer", **{"aria-live": "polite"}),
                            html.Div(id="answer-more"),
                            html.Div(id="cards"),
                            *(part_section(part.name, part.title, part.places, part.why) for part in PARTS),
                            html.Section(
                                [
                                    html.H2("In a terminal"),
                                    html.P(["The same numbers:", html.Pre(html.Code(id="command"), tabIndex=0)]),
                                ]
                            ),
                        ],
                        id="shown",
                    ),
                ]
            ),
        ]
    )
