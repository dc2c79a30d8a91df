"""The page with controls, as a Dash application: every control's change asks `predict` again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from reference_runs.accelerator import accelerator_names
from reference_runs.catalog import run_names
from reference_runs.errors import InputError
from reference_runs.layout import Layout, Recomputation, Schedule, parse_layout
from reference_runs.run import ProductFormat
from reference_runs.stack import stacks
from reference_runs.units import printed
from suite.metrics.comparison import Row
from suite.metrics.figures import Quantity
from suite.report.explore.pictures import memory_picture, schedule_panel, schedule_picture, time_picture
from suite.report.explore.state import (
    COUNTS,
    ZERO_FORMS,
    ExploreState,
    address,
    complete_text,
    controls_of,
    layout_of,
    state_of,
)
from suite.report.explore.view import View, recorded_layout, state_of_run, view
from suite.report.explore.why import FUNCTIONS, why
from suite.report.terminal.prediction import read

LAYOUT_CONTROLS = (*COUNTS, "zero", "schedule", "recompute", "every", "switches")
OTHERS = ("run", "on", "network", "stack", "products", "price", "other")
GIB = 2**30
_NAMES = {
    "dp": "data parallel (dp)",
    "tp": "tensor parallel (tp)",
    "pp": "pipeline stages (pp)",
    "cp": "context parallel (cp)",
    "ep": "expert parallel (ep)",
    "interleave": "chunks a stage",
    "micro": "micro-batch",
}


def application(first: ExploreState) -> Dash:
    """The application, which shows `first` where the address says nothing."""
    app = Dash(__name__, title="explore", update_title=None, assets_folder="assets", serve_locally=True)
    app.layout = _page(first)
    values = [Output(name, "value") for name in (*OTHERS, *LAYOUT_CONTROLS)]
    shown = [Output(name, "children") for name in ("answer", "figures", "why", "traffic")]
    pictures = [Output(name, "figure") for name in ("memory-picture", "time-picture", "schedule-picture")]

    @app.callback(  # type: ignore[untyped-decorator]  # Dash has no types
        [*values, Output("url", "search"), *shown, *pictures, Output("schedule-part", "hidden")],
        [Input("url", "search"), *(Input(name, "value") for name in (*OTHERS, *LAYOUT_CONTROLS))],
        State("url", "pathname"),
    )
    def changed(query: str, *given: Any) -> list[Any]:
        return answer(query, dict(zip((*OTHERS, *LAYOUT_CONTROLS), given[:-1], strict=True)), ctx.triggered_id, first)

    return app


def answer(query: str, controls: dict[str, Any], triggered: str | None, first: ExploreState) -> list[Any]:
    """What the page shows after a control or the address has changed: control values, address, parts and pictures."""
    names = (*OTHERS, *LAYOUT_CONTROLS)
    try:
        state = _state(query, controls, triggered, first)
    except InputError as error:
        return [*[no_update] * (len(names) + 1), _refused(error.lines), *[no_update] * 7]
    views = _views(state)
    layout = parse_layout(state.layout, base=recorded_layout(state.run)) if state.layout else Layout()
    values = {**{name: getattr(state, name) for name in OTHERS}, **controls_of(layout)}
    panel = schedule_panel(views[0])
    return [
        *(values[name] for name in names),
        address(state),
        _answer(views),
        _figures(views),
        _why(views[0]),
        _traffic(views[0]),
        memory_picture(views),
        time_picture(views),
        schedule_picture(panel) if panel else {"data": [], "layout": {}},
        panel is None,
    ]


def _state(query: str, controls: dict[str, Any], triggered: str | None, first: ExploreState) -> ExploreState:
    """What is to be shown: the address's state, a run as it was recorded, or what the controls say."""
    if triggered in (None, "url"):
        return state_of(query or "") or first
    if triggered == "run":
        return state_of_run(controls["run"])
    others: dict[str, Any] = {name: controls[name] or None for name in OTHERS}
    layout = layout_of(controls, recorded_layout(controls["run"]))
    return ExploreState(layout=complete_text(layout), **others)


def _views(state: ExploreState) -> list[View]:
    return [view(state, state.layout), *([view(state, state.other)] if state.other else [])]


def _refused(lines: Sequence[str]) -> list[Any]:
    return [html.P(line, className="refused", role="alert") for line in lines]


def _answer(views: Sequence[View]) -> list[Any]:
    """In words: whether it fits, and how long a step takes; of each layout."""
    said: list[Any] = []
    for number, each in enumerate(views):
        letter = "" if len(views) == 1 else f"{'AB'[number]}: "
        if each.predicted is None:
            said += _refused([f"{letter}{line}" for line in each.wrong])
            continue
        peak = max((stage.peak for stage in each.stages), default=None)
        limit = each.predicted.memory_bytes
        words = f"{letter}{each.layout}: "
        if peak is not None and limit is not None:
            fits = "does not fit" if each.predicted.exceeds_memory else "fits"
            words += f"{fits}, {peak / GIB:,.2f} of {limit / GIB:,.4g} GiB"
        seconds = sum(each.terms.values())
        if seconds:
            error = each.predicted.uncertainty
            words += f"; {printed(seconds, 's')} s a step{f' ± {error:.0%}' if error else ''}"
        name = "refused" if each.predicted.exceeds_memory else "fits"
        said.append(html.P(words, className=name, role="status"))
        said += [html.P(f"not predicted: {reason}", className="muted") for reason in each.predicted.missing]
    return said


def _figures(views: Sequence[View]) -> Any:
    """The table of figures: each layout's, and what was published."""
    names = ["predicted"] if len(views) == 1 else ["A", "B"]
    head = html.Thead(html.Tr([html.Th(text, scope="col") for text in ("figure", *names, "published")]))
    of_each = [{row.quantity: row for row in each.rows} for each in views]
    quantities = list(dict.fromkeys(quantity for rows in of_each for quantity in rows))
    body = []
    for quantity in quantities:
        rows = [rows.get(quantity) for rows in of_each]
        known = next(row for row in rows if row is not None)
        cells = [html.Td(read(row.left, quantity), **_exact(row)) if row else html.Td("-") for row in rows]
        body.append(html.Tr([html.Th(quantity, scope="row"), *cells, html.Td(read(known.right, quantity))]))
    return html.Table([head, html.Tbody(body)])


def _exact(row: Row) -> dict[str, str]:
    """The value in full, of which the page prints four digits, for programs that read the page."""
    return {"data-quantity": row.quantity, "data-value": repr(row.left)}


def _why(shown: View) -> list[Any]:
    """Of each figure, its formula with the numbers put in; folded."""
    parts = []
    for row in shown.rows:
        quantity = Quantity(row.quantity)
        if quantity not in FUNCTIONS:
            continue
        derived = why(shown, quantity)
        numbers = html.Table(
            html.Tbody([html.Tr([html.Th(n, scope="row"), html.Td(v)]) for n, v in derived.numbers.items()])
        )
        said = f"{row.quantity} = {read(row.left, row.quantity)}"
        formula = html.Pre(derived.derivation)
        code = html.P([html.Code(name) for name in derived.functions], className="muted")
        parts.append(html.Details([html.Summary(said), numbers, formula, code]))
    return parts


def _traffic(shown: View) -> Any:
    """Payload and messages of a rank in a step, by axis and collective."""
    prediction = shown.predicted.prediction if shown.predicted else None
    if not prediction or not prediction.traffic:
        return html.P("no traffic is predicted", className="muted")
    fullest = max(prediction.traffic.values(), key=lambda entries: sum(entry.payload_bytes for entry in entries))
    head = html.Thead(html.Tr([html.Th(text, scope="col") for text in ("axis", "collective", "GiB", "messages")]))
    rows = [
        html.Tr(
            [
                html.Th(entry.axis, scope="row"),
                html.Td(entry.operation),
                html.Td(f"{entry.payload_bytes / GIB:,.3g}"),
                html.Td(f"{entry.messages:,.0f}"),
            ]
        )
        for entry in fullest
        if entry.payload_bytes
    ]
    return html.Table([head, html.Tbody(rows)])


def _page(first: ExploreState) -> Any:
    layout = parse_layout(first.layout, base=recorded_layout(first.run))
    values = {**msgspec.structs.asdict(first), **controls_of(layout)}
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            html.H1("What would this training take?"),
            html.Main(
                [
                    html.Form(_controls(values), id="controls", **{"aria-label": "run, machine and layout"}),
                    html.Div(
                        [
                            html.Div(id="answer", **{"aria-live": "polite"}),
                            _part("figures", "Figures", html.Div(id="figures")),
                            _part("memory-part", "Memory of each stage", _graph("memory-picture")),
                            _part("time-part", "Where the time goes", _graph("time-picture")),
                            _part("schedule-part", "The pipeline's first passes", _graph("schedule-picture")),
                            _part("traffic-part", "Messages of a rank in a step", html.Div(id="traffic")),
                            _part("why-part", "Why: each formula with its numbers", html.Div(id="why")),
                        ],
                        id="shown",
                    ),
                ]
            ),
        ]
    )


def _part(name: str, title: str, content: Any) -> Any:
    return html.Section([html.H2(title), content], id=name if name != "figures" else "figures-part")


def _graph(name: str) -> Any:
    return dcc.Graph(id=name, config={"displayModeBar": False, "responsive": True})


def _controls(values: dict[str, Any]) -> list[Any]:
    return [
        _choice("run", "run", run_names(), values["run"], clearable=False),
        _choice("on", "accelerator, if another", accelerator_names(), values["on"]),
        _number("network", "Gbit/s out of a node, if others", values["network"], step="any"),
        _choice("stack", "software, if another", list(stacks()), values["stack"]),
        _choice("products", "format of products", [str(each) for each in ProductFormat], values["products"]),
        _number("price", "price of an accelerator hour", values["price"], step="any"),
        *(_number(word, _NAMES[word], values[word], step=1) for word in COUNTS),
        _choice("zero", "ZeRO stage", list(ZERO_FORMS), values["zero"], clearable=False),
        _choice("schedule", "schedule", [str(each) for each in Schedule], values["schedule"], clearable=False),
        _choice(
            "recompute", "recomputation", [str(each) for each in Recomputation], values["recompute"], clearable=False
        ),
        _number("every", "layers a group of full recomputation", values["every"], step=1),
        html.Fieldset(
            [
                html.Legend("switches"),
                dcc.Checklist(
                    id="switches",
                    options={
                        "sp": "sequence parallel",
                        "fused": "fused attention",
                        "noreshard": "keep gathered weights",
                    },
                    value=values["switches"],
                ),
            ]
        ),
        html.Label(
            [
                "a second layout, such as dp8,tp8,pp6",
                dcc.Input(id="other", value=values["other"], type="text", debounce=True, autoComplete="off"),
            ]
        ),
    ]


def _number(name: str, label: str, value: float | None, *, step: Any) -> Any:
    field = dcc.Input(id=name, type="number", value=value, min=0 if step == "any" else 1, step=step, debounce=0.2)
    return html.Label([label, field])


def _choice(name: str, label: str, options: Sequence[str], value: str | None, *, clearable: bool = True) -> Any:
    field = dcc.Dropdown(id=name, options=list(options), value=value, clearable=clearable)
    return html.Label([label, field])
