"""Serves the page with controls on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.machine.packages import require
from suite.report.explore.view import state_of_run
from suite.report.terminal.progress import states_progress
from suite.report.terminal.tables import console


def explore_command(
    run: Annotated[str, typer.Argument(help="The run to begin with, or a run file ending in .toml.")] = "bloom-176b",
    static: Annotated[
        Path | None,
        typer.Option(help="FILE.html to write, which needs no server: a grid of states of this run.", readable=False),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1.", min=1, max=65535)] = 8050,
) -> None:
    """Serve a page with controls: run, machine and layout; memory, time, passes, messages and formulas at once.

    Examples: python -m suite explore; python -m suite explore gpt-neox-20b --port 8051;
    python -m suite explore bloom-176b --static bloom.html

    Exit codes: 0 the file is written; 2 bad input, or a port that is in use; 130 ended by Ctrl-C.
    """
    if run in miniatures():
        raise InputError("is for recorded runs and run files", got=f"the miniature {run}", meant=miniatures()[run])
    first = state_of_run(run)
    if static is not None:
        _write(run, static)
        return
    require("dash", "plotly")
    from suite.report.explore.page import application

    _check_free(port)
    console().print(f"http://127.0.0.1:{port}/ (Ctrl-C ends it)", soft_wrap=True)
    application(first).run(host="127.0.0.1", port=port, debug=False)


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


def _check_free(port: int) -> None:
    """Refuse a port that another process listens on."""
    import socket

    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"cannot listen: {error.strerror}", got=port, where="--port") from error
