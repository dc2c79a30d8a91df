"""Gathers the commands on many nodes: accept, show, references, node-patch, report."""

from __future__ import annotations

import importlib
from typing import Any

import typer

from suite.commands import exit_codes
from suite.commands.grouped_help import GroupedCommand
from suite.commands.options import help_of

# Command -> its module and function. Only the module of the command that is asked for is imported.
NAMES = {
    "accept": ("fleet_accept", "accept_command"),
    "show": ("fleet_accept", "show_command"),
    "references": ("fleet_references", "references_command"),
    "node-patch": ("fleet_node_patch", "node_patch_command"),
    "report": ("fleet_report", "report_command"),
}


def fleet_commands(asked: str = "") -> typer.Typer:
    """The group `fleet`; with a known command, that command alone."""
    app = typer.Typer(rich_markup_mode=None, help="Judge many nodes, and ask about the batteries of all of them.")
    app.callback(invoke_without_command=True)(_help)
    for name in [asked] if asked in NAMES else NAMES:
        module, function = NAMES[name]
        settings: dict[str, Any] = {"allow_extra_args": True} if name == "accept" else {}
        command = getattr(importlib.import_module(f"suite.commands.{module}"), function)
        app.command(name, cls=GroupedCommand, help=help_of(command), context_settings=settings)(command)
    return app


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(exit_codes.BAD_INPUT)
