"""Gathers the commands on records: list, show, diff, check, export, merge, prune."""

from __future__ import annotations

import importlib

import typer

from suite.commands import exit_codes
from suite.commands.grouped_help import GroupedCommand
from suite.commands.options import help_of

NAMES = ("list", "show", "diff", "check", "export", "merge", "prune")
OF_ONE = ("show", "diff")  # single records; the others take what options choose


def results_commands(asked: str = "") -> typer.Typer:
    """The group `results`; with a known command, that command alone."""
    app = typer.Typer(rich_markup_mode=None, help="List, show, compare, check, export, merge and remove records.")
    app.callback(invoke_without_command=True)(_help)
    for name in [asked] if asked in NAMES else NAMES:
        module = importlib.import_module(f"suite.commands.results_of_{'one' if name in OF_ONE else 'many'}")
        command = getattr(module, f"{name}_command")
        app.command(name, cls=GroupedCommand, help=help_of(command))(command)
    return app


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(exit_codes.BAD_INPUT)
