"""Serves the page with controls on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.commands.training_options import asks_edition
from suite.machine.packages import require
from suite.report.explore.serving import LOCAL, bracketed, for_hosts, listening_socket, serve
from suite.report.explore.view import state_of_run
from suite.report.terminal.progress import states_progress
from suite.report.terminal.tables import console

FIRST = "bloom-176b"


@asks_edition
def explore_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="The run to begin with, or run files ending in .toml; the page reads no other file.",
            show_default=FIRST,
        ),
    ] = None,
    static: Annotated[
        Path | None,
        typer.Option(help="FILE.html to write, which needs no server: a grid of states of this run.", readable=False),
    ] = None,
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

    Examples: python -m suite explore; python -m suite explore gpt-neox-20b --port 8051;
    python -m suite explore bloom-176b --static bloom.html;
    python -m suite explore --host 0.0.0.0 --allow-host node7.example

    Exit codes: 0 the file is written; 2 bad input, or a port that is in use; 130 ended by Ctrl-C.
    """
    named = runs or [FIRST]
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

    with listening_socket(host, port) as listening:
        files = tuple(run for run in named if run.endswith(".toml"))
        page = application(PageScope(states[0], files))
        page.server.wsgi_app = for_hosts(page.server.wsgi_app, (*LOCAL, bracketed(host), *(allow_host or ())))
        console().print(f"http://{bracketed(host)}:{port}/ (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        serve(page, listening)


def _write(run: str, path: Path) -> None:
    """Write the file, and say how large it is."""
    if path.suffix != ".html":
        raise InputError("expected a file ending in .html", got=str(path), where="--static")
    if not path.parent.is_dir():
        raise InputError("no such directory", got=str(path.parent), where="--static")
    require("jinja2", "plotly")
    from suite.report.explore.offline import MOST_BYTES, write_offline_page

    with states_progress(console(stderr=True)) as progress:
        size, states = write_offline_page(run, path, progress)
    words = f"{states:,} states, {size / 1e6:,.1f} MB of at most {MOST_BYTES / 1e6:,.0f}"
    console().print(f"{path}: {words}", soft_wrap=True, highlight=False)
