"""Print the JSON schema of what a command prints with --json."""

from __future__ import annotations

from typing import Annotated

import typer

from reference_runs.errors import InputError, nearest
from suite.commands.json_schemas import TYPES, schema
from suite.commands.options import print_json


def schema_command(
    command: Annotated[list[str] | None, typer.Argument(help="For instance predict, or results list.")] = None,
) -> None:
    """Print the JSON schema of a line that a command prints with --json. Without a command: list those that have one.

    `fleet node-patch` and `fleet references` always print JSON. `explore`, `refit` and `schema` have no --json.

    Examples: python -m suite schema predict; python -m suite schema results list

    Exit codes: 0 printed, 2 unknown command.
    """
    if not command:
        print("\n".join(TYPES))
        return
    name = " ".join(command)
    if name not in TYPES:
        raise InputError("no schema", got=repr(name), meant=nearest(name, TYPES), allowed=", ".join(TYPES))
    print_json(schema(name))
