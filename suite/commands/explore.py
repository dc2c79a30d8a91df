"""Serves the page with controls on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from reference_runs.catalog import miniatures
from reference_runs.errors import InputError
from suite.report.explore.view import state_of_run
from suite.report.terminal.tables import console


def explore_command(
    run: Annotated[str, typer.Argument(help="The run to begin with, or a run file ending in .toml.")] = "bloom-176b",
    port: Annotated[int, typer.Option(help="Of 127.0.0.1.", min=1, max=65535)] = 8050,
) -> None:
    """Serve a page with controls: run, machine and layout; memory, time, passes, messages and formulas at once.

    Examples: nox -s explore; nox -s explore -- gpt-neox-20b --port 8051

    Exit codes: 2 bad input, or a port that is in use; 130 ended by Ctrl-C.
    """
    if run in miniatures():
        raise InputError("is for recorded runs and run files", got=f"the miniature {run}", meant=miniatures()[run])
    first = state_of_run(run)
    try:
        from suite.report.explore.page import application
    except ImportError as error:
        raise InputError(f"the page needs {error.name}", allowed="nox -s explore, which installs it") from error
    _check_free(port)
    console().print(f"http://127.0.0.1:{port}/ (Ctrl-C ends it)", soft_wrap=True)
    application(first).run(host="127.0.0.1", port=port, debug=False)


def _check_free(port: int) -> None:
    """Refuse a port that another process listens on."""
    import socket

    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"cannot listen: {error.strerror}", got=port, where="--port") from error
