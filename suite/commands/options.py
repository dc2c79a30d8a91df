"""Shared by several commands: options, command lines made from structs, JSON lines."""

from __future__ import annotations

import copy
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import msgspec
import typer
from rich.markup import escape

from reference_runs.errors import InputError
from suite.commands import exit_codes
from suite.paths import program
from suite.report.terminal.tables import console, write_line

Run = Annotated[str | None, typer.Option(help="This run alone, for instance bloom-mini.")]
Machine = Annotated[
    str | None, typer.Option(help="The node's hash or its beginning, or words of the machine such as 'H200'.")
]
Statuses = Annotated[
    list[str] | None, typer.Option("--status", help="For instance --status ok, or --status hang --status oom.")
]
Since = Annotated[str | None, typer.Option(help="Started since, for instance 2026-11-22, 12h, 7d or 4w.")]
Json = Annotated[bool, typer.Option("--json", help="For machines; what is left out is named on stderr.")]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
JsonWithProgress = Annotated[bool, typer.Option("--json", help="One JSON object; progress goes to stderr.")]
Results = Annotated[Path, typer.Option(help="Where records are stored.")]


_Options = TypeVar("_Options", bound=msgspec.Struct)


def command_of(
    options: type[_Options], groups: Mapping[str, Sequence[str]]
) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Decorator of a command that takes one struct: typer sees a parameter for each of the struct's fields.

    A field's annotation carries its `typer.Option` or `typer.Argument`; its default is that of the option.

    Args:
        groups: headings of --help, each with the names of its fields; the others stand first.
    """
    fields = msgspec.structs.fields(options)
    heading_of = {name: heading for heading, names in groups.items() for name in names}
    types = {field.name: _under(heading_of.get(field.name), field.type) for field in fields}

    def decorate(command: Callable[[_Options], None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            command(options(**given))

        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return with_parameters(
            called,
            {
                field.name: (types[field.name], inspect.Parameter.empty if field.required else field.default)
                for field in fields
            },
        )

    return decorate


def command_line(words: Sequence[str], asked: msgspec.Struct, *without: str) -> str:
    """The command with the options of a struct that differ from their defaults, as a shell reads it.

    Args:
        words: of the command.
        without: fields that are left out.
    """
    line = [*program().split(), *words]
    for field in msgspec.structs.fields(type(asked)):
        value = getattr(asked, field.name)
        if field.name in without or value == field.default:
            continue
        info = get_args(field.type)[1]
        declared = [info.default, *(info.param_decls or ()), f"--{field.name.replace('_', '-')}"]
        option = next(name.partition("/")[0] for name in declared if isinstance(name, str) and name.startswith("--"))
        line += [option] if value is True else [option, str(value)]
    return shlex.join(line)


def with_parameters(called: Callable[..., None], parameters: Mapping[str, tuple[Any, object]]) -> Callable[..., None]:
    """The same function, for which typer sees these parameters: each annotated type, and its default."""
    called.__annotations__ = {name: annotated for name, (annotated, _) in parameters.items()}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # inspect reads it; no stub has it
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotated)
            for name, (annotated, default) in parameters.items()
        ]
    )
    return called


def help_of(command: Callable[..., object]) -> str:
    """A command's help, whose examples begin as this program was called."""
    return (inspect.getdoc(command) or "").replace("python -m suite", program())


def _under(heading: str | None, annotated: Any) -> Any:
    """The type of an option with a heading in its `typer.Option`; the same type without one."""
    if heading is None:
        return annotated
    kind, option = get_args(annotated)  # what is annotated, and its typer.Option
    own = copy.copy(option)
    own.rich_help_panel = heading
    return Annotated[kind, own]


def print_json(entry: object) -> None:
    """Print one object on a line."""
    write_line(msgspec.json.encode(entry).decode())


def name_left_out(errors: Sequence[InputError | str]) -> None:
    """A line on stderr for each record that is left out."""
    messages = console(stderr=True)
    for error in errors:
        messages.print(f"left out: {escape(str(error))}", soft_wrap=True)


def exit_code(*, any_record: bool, damaged: bool) -> int:
    """2 where a record is damaged, 3 where there is none, else 0."""
    if damaged:
        return exit_codes.BAD_INPUT
    return exit_codes.PASS if any_record else exit_codes.INCONCLUSIVE
