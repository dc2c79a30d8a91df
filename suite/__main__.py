"""Gathers the commands: `refruns NAME ARGS` where it is installed, `python -m suite NAME ARGS` in a checkout."""

from __future__ import annotations

import codecs
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any, cast

from suite.machine.packages import OWN, BrokenPackageError, broken, lacking, lacking_line, of_every_command

BAD_INPUT, INCONCLUSIVE = 2, 3  # as `suite.commands.exit_codes`, which may not be importable yet


def _unusable(error: ImportError) -> int:
    """Say which package this Python lacks, and how to get it, or which does not import.

    Anything of our own is a mistake of ours.
    """
    if words := broken(error):
        sys.stderr.write(f"error: {words}\n")
        return INCONCLUSIVE
    package = (error.name or "").partition(".")[0]
    if package in OWN or not package:
        raise error
    wanted = [package, *(other for other in of_every_command() if other != package)]
    sys.stderr.write(f"error: {lacking_line(lacking(wanted))}\n")
    return BAD_INPUT


try:
    import typer

    from reference_runs.errors import InputError, nearest
    from reference_runs.printable import printable
    from suite.commands import exit_codes
    from suite.launch.interruption import end_as_interrupted, interrupted_by
    from suite.paths import program
except ImportError as not_imported:
    sys.exit(_unusable(not_imported))

# Command -> its module and function. Only the module of the command that is asked for is imported.
COMMANDS = {
    "runs": ("suite.commands.runs", "runs"),
    "show": ("suite.commands.show", "show"),
    "import": ("suite.commands.import_configuration", "import_command"),
    "predict": ("suite.commands.predict", "predict"),
    "fit": ("suite.commands.fit", "fit_command"),
    "plan": ("suite.commands.plan", "plan_command"),
    "explore": ("suite.commands.explore", "explore_command"),
    "diagnose": ("suite.commands.diagnose", "diagnose"),
    "validate": ("suite.commands.validate", "validate"),
    "refit": ("suite.commands.refit", "refit_command"),
    "formulas": ("suite.commands.formulas", "formulas"),
    "reproduce": ("suite.commands.reproduce", "reproduce_command"),
    "dry-run": ("suite.commands.dry_run", "dry_run_command"),
    "calibrate": ("suite.commands.calibrate", "calibrate_command"),
    "results": ("suite.commands.results", "results_commands"),
    "regress": ("suite.commands.regress", "regress_command"),
    "accept": ("suite.commands.accept", "accept_command"),
    "fleet": ("suite.commands.fleet", "fleet_commands"),
    "ladder": ("suite.commands.ladder", "ladder_command"),
    "report": ("suite.commands.report", "report_command"),
    "first-hour": ("suite.commands.first_hour", "first_hour_command"),
    "schema": ("suite.commands.schema", "schema_command"),
}
GROUPS = ("results", "fleet")  # whose function makes commands of their own
# Command -> options as they were called before -> as they are called
OLD_OPTIONS = {"ladder": {"walk": "track", "break": "ablate", "twins": "leave-one-out", "no-twins": "no-leave-one-out"}}

# typer contains click or depends on it, by version; what it exports names the same classes in both
_ClickException = cast(type[Exception], typer.BadParameter.__mro__[2])


def application(arguments: list[str]) -> typer.Typer:
    """The command-line application; with a known command first, that command alone."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Predicts published LLM training runs, executes them at small scale, and explains the differences.",
    )
    from suite.commands.grouped_help import GroupedCommand

    app.callback()(_options)
    asked = arguments[0] if arguments else ""
    from suite.commands.options import help_of  # with rich, which `--version` needs not

    for name in [asked] if asked in COMMANDS else list(COMMANDS):
        module, function = COMMANDS[name]
        command = getattr(importlib.import_module(module), function)
        if name in GROUPS:
            app.add_typer(command(next(iter(arguments[1:]), "")), name=name)
        else:
            renamed = OLD_OPTIONS.get(name, {})
            settings: dict[str, Any] = {"token_normalize_func": lambda word, to=renamed: to.get(word, word)}
            app.command(name, cls=GroupedCommand, help=help_of(command), context_settings=settings)(command)
    return app


def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Predicts published LLM training runs, executes them at small scale, and explains the differences."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is a line on stderr for each mistake, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):
        _print_anything(name)
    if not given:
        main(["--help"])
        return exit_codes.BAD_INPUT
    try:
        code = _run(given)
        sys.stdout.flush()
    except InputError as error:
        return _refused(error.lines)
    except _ClickException as error:
        return _refused([" ".join(str(cast(Any, error).format_message()).split())])
    except ImportError as error:
        return _unusable(error)
    except BrokenPackageError as error:
        _say(f"error: {error}")
        return exit_codes.INCONCLUSIVE
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return exit_codes.INTERRUPTED
    except (OSError, SystemExit) as end:
        # rich turns a broken pipe into SystemExit
        cause = end.__context__ if isinstance(end, SystemExit) else end
        if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:  # wherever a path is looked for
            name = str(cause.filename)
            return _refused([f"command line: too long for a file's name; got {len(name)} letters, {name[:60]}..."])
        if not isinstance(cause, OSError) or cause.errno not in _UNWRITABLE or cause.filename is not None:
            raise
        return _unwritable(cause)
    return code


_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _run(given: list[str]) -> int:
    for argument in given:
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise InputError("not UTF-8", got=argument, allowed="names of files in UTF-8", where="command line")
    if given[0] == "--version":
        from suite.machine.fingerprint import suite_version

        sys.stdout.write(f"llm-reference-runs {suite_version()}\n")
        return exit_codes.PASS
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        meant = nearest(given[0], COMMANDS)
        raise InputError("unknown command", got=repr(given[0]), meant=meant, allowed=", ".join(COMMANDS))
    outcome = application(given)(args=given, prog_name=program(), standalone_mode=False)
    return outcome if isinstance(outcome, int) else exit_codes.PASS


def _unwritable(error: OSError) -> int:
    """End where the output cannot be written: silently where nobody reads it, else with a line that says why."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # what is still buffered must not fail again when Python ends
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()
        return exit_codes.NOBODY_READS
    _say(f"error: cannot write the output: {error.strerror}")
    return exit_codes.EXECUTION_FAILED


def _print_anything(name: str) -> None:
    """Let an output that is closed, or of an encoding such as ASCII, take every character."""
    stream = getattr(sys, name)
    if stream is None:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process
    elif "utf" not in (getattr(stream, "encoding", None) or "utf").lower():
        codecs.register_error("suite", _replaced)
        stream.reconfigure(errors="suite")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Bars of "#", and "?" for any other character that the encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    cells = {"█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": " ", "▎": " ", "▏": " ", "…": "~"}
    text = error.object[error.start : error.end]
    return "".join(cells.get(character, "?") for character in text), error.end


def _refused(lines: Iterable[str]) -> int:
    _say(*(f"error: {line}" for line in lines))
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


def _say(*lines: str) -> None:
    """Lines on stderr, or nowhere where it cannot be written: the exit code says enough."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(run())
