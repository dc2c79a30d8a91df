"""Gathers the commands: python -m suite NAME ARGS."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import typer

from reference_runs.errors import InputError, nearest
from suite.commands import exit_codes
from suite.launch.interruption import end_as_interrupted, interrupted_by

# Command -> its module and function. Only the module of the command that is asked for is imported.
COMMANDS = {
    "runs": ("suite.commands.runs", "runs"),
    "show": ("suite.commands.show", "show"),
    "predict": ("suite.commands.predict", "predict"),
    "validate": ("suite.commands.validate", "validate"),
    "fit": ("suite.commands.fit", "fit_command"),
    "formulas": ("suite.commands.formulas", "formulas"),
    "reproduce": ("suite.commands.reproduce", "reproduce_command"),
    "calibrate": ("suite.commands.calibrate", "calibrate_command"),
    "results": ("suite.commands.results", "results_commands"),
    "regress": ("suite.commands.regress", "regress_command"),
    "accept": ("suite.commands.accept", "accept_command"),
    "ladder": ("suite.commands.ladder", "ladder_command"),
    "report": ("suite.commands.report", "report_command"),
}
GROUPS = ("results",)  # whose function makes commands of their own
# Command -> options as they were called before -> as they are called
OLD_OPTIONS = {
    "ladder": {"walk": "track", "break": "ablate", "twins": "leave-one-out", "no-twins": "no-leave-one-out"},
}

# typer carries click inside or beside itself, by version; what it exports names the same classes in both
_ClickException = cast(type[Exception], typer.BadParameter.__mro__[2])


def application(arguments: list[str]) -> typer.Typer:
    """The command-line application; with a known command first, that command alone."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Reproduces published LLM training runs and checks the machine it stands on.",
    )
    app.callback()(_no_options)
    asked = arguments[0] if arguments else ""
    for name in [asked] if asked in COMMANDS else list(COMMANDS):
        module, function = COMMANDS[name]
        command = getattr(importlib.import_module(module), function)
        if name in GROUPS:
            app.add_typer(command(), name=name)
        else:
            renamed = OLD_OPTIONS.get(name, {})
            current = partial(_current_name, renamed)
            app.command(name, context_settings={"token_normalize_func": current} if renamed else {})(command)
    return app


def _current_name(renamed: dict[str, str], option: str) -> str:
    return renamed.get(option, option)


def _no_options() -> None:
    """Options belong to the commands; this keeps a single command a command."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        main(["--help"])
        return exit_codes.BAD_INPUT
    try:
        if not given[0].startswith("-") and given[0] not in COMMANDS:
            meant = nearest(given[0], COMMANDS)
            raise InputError("unknown command", got=repr(given[0]), meant=meant, allowed=", ".join(COMMANDS))
        outcome = application(given)(args=given, prog_name="python -m suite", standalone_mode=False)
    except InputError as error:
        return _refused(error.lines)
    except _ClickException as error:
        return _refused([" ".join(str(cast(Any, error).format_message()).split())])
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return exit_codes.INTERRUPTED
    except (BrokenPipeError, SystemExit) as end:
        # rich turns a broken pipe into SystemExit
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        sys.stderr.close()
        return exit_codes.NOBODY_READS
    return outcome if isinstance(outcome, int) else exit_codes.PASS


def _refused(lines: Iterable[str]) -> int:
    sys.stderr.write("".join(f"error: {line}\n" for line in lines))
    return exit_codes.BAD_INPUT


def run() -> int:
    """`main` of a process of its own: its exit code is 128 + n where signal n ended it, as a shell's would be."""
    end_as_interrupted()
    try:
        code = main()
    except (Exception, KeyboardInterrupt):  # for instance: a terminal that hung up takes no last words
        if interrupted_by() is None:
            raise
        code = exit_codes.INTERRUPTED
    number = interrupted_by()
    if number is None:
        return code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # else Python would flush again at its end, and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 128 + number


if __name__ == "__main__":
    sys.exit(run())
