"""Serves the page with controls on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.commands.new_file import Force, check_new
from suite.commands.traced_model import check_absent, no_formula, required_source
from suite.commands.traced_options import OF_TRACED, TracedOptions, asks_trace
from suite.commands.training_options import asks_edition
from suite.job.trace_job import OptimizerKernel
from suite.machine.packages import require
from suite.report.explore.presets import FILES
from suite.report.explore.serving import LOCAL, bracketed, for_hosts, listening_socket, serve
from suite.report.explore.view import state_of_run
from suite.report.terminal.progress import states_progress
from suite.report.terminal.tables import console

FIRST = "bloom-176b"


@asks_edition
@asks_trace
def explore_command(
    tracing: TracedOptions,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="The run to begin with, run files ending in .toml, config.json, or FILE.py:FUNCTION; the page reads "
            "no other file.",
            show_default=FIRST,
        ),
    ] = None,
    static: Annotated[
        Path | None,
        typer.Option(help="FILE.html to write, which needs no server: a grid of states of this run.", readable=False),
    ] = None,
    force: Force = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8050,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name under which browsers reach the page, besides localhost and the address of --host; repeatable."
        ),
    ] = None,
) -> None:
    """Serve a page with controls: run, machine and layout; memory, time, passes, messages and formulas at once.

    A model that no formula describes has a page of its own: each step is traced once, whatever the accelerator.

    Examples: python -m suite explore; python -m suite explore gpt-neox-20b --port 8051;
    python -m suite explore bloom-176b --static bloom.html;
    python -m suite explore --host 0.0.0.0 --allow-host node7.example

    Exit codes: 0 the file is written; 2 bad input, or a port that is in use; 130 ended by Ctrl-C.
    """
    check_new(static, "--static", force=force)
    named = runs or [FIRST]
    reasons = {run: reason for run in named if (reason := no_formula(run, tracing)) is not None}
    if reasons:
        _serve_traced(named, tracing, reasons[next(iter(reasons))], static, (host, port, allow_host or []))
        return
    check_absent(tracing.given, what=OF_TRACED)
    for run in named:
        if run in miniatures():
            raise InputError("is for recorded runs and run files", got=f"the miniature {run}", meant=miniatures()[run])
    states = [state_of_run(run) for run in named]
    if static is not None:
        if len(named) > 1:
            raise InputError("is of one run", got=", ".join(named), allowed="one", where="--static")
        _write(named[0], static)
        return
    require("dash", "plotly")
    from suite.report.explore.page import PageScope, application

    files = tuple(run for run in named if run.endswith(FILES))
    _serve(lambda: application(PageScope(states[0], files)), host, port, allow_host or [])


def _serve_traced(
    named: list[str], tracing: TracedOptions, reason: str, static: Path | None, where: tuple[str, int, list[str]]
) -> None:
    """Serve the page of a model that no formula describes."""
    if len(named) > 1:
        raise InputError("a model that is traced has a page of its own", got=", ".join(named), allowed="one")
    check_absent({"--static": static}, what="is of runs")
    source = required_source(named[0], tracing)
    require("dash", "plotly")
    from suite.report.explore.traced import TracedPage, TracedState
    from suite.report.explore.traced_page import traced_application

    page, first = (
        TracedPage(source, named[0], reason),
        TracedState(optimizer=tracing.optimizer or OptimizerKernel.ADAMW),
    )
    _serve(lambda: traced_application(page, first), *where)


def _serve(application: Callable[[], Any], host: str, port: int, allow_host: list[str]) -> None:
    with listening_socket(host, port) as listening:
        page = application()
        page.server.wsgi_app = for_hosts(page.server.wsgi_app, (*LOCAL, bracketed(host), *allow_host))
        console().print(f"http://{bracketed(host)}:{port}/ (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        serve(page, listening)


def _write(run: str, path: Path) -> None:
    """Write the file, and say how large it is."""
    if path.suffix != ".html":
        raise InputError("expected a file ending in .html", got=str(path), where="--static")
    require("jinja2", "plotly")
    from suite.report.explore.offline import MOST_BYTES, write_offline_page

    with states_progress(console(stderr=True)) as progress:
        size, states = write_offline_page(run, path, progress)
    words = f"{states:,} states, {size / 1e6:,.1f} MB of at most {MOST_BYTES / 1e6:,.0f}"
    console().print(f"{path}: {words}", soft_wrap=True, highlight=False)
