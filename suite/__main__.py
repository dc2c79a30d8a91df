"""Gathers the commands: python -m suite NAME ARGS."""

from __future__ import annotations

import sys
from typing import Any, cast

import typer

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.commands.predict import predict
from suite.commands.reproduce import reproduce_command
from suite.commands.runs import runs
from suite.commands.show import show

# typer carries click inside or beside itself, by version; what it exports names the same classes in both
_ClickException = cast(type[Exception], typer.BadParameter.__mro__[2])

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Reproduces published LLM training runs and checks the machine it stands on.",
)
app.command("runs")(runs)
app.command("show")(show)
app.command("predict")(predict)
app.command("reproduce")(reproduce_command)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one line on stderr."""
    try:
        outcome = app(args=arguments, prog_name="python -m suite", standalone_mode=False)
    except InputError as error:
        return _refused(str(error))
    except _ClickException as error:
        return _refused(str(cast(Any, error).format_message()))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return exit_codes.FAIL
    return outcome if isinstance(outcome, int) else exit_codes.PASS


def _refused(line: str) -> int:
    sys.stderr.write(f"error: {' '.join(line.split())}\n")
    return exit_codes.BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
