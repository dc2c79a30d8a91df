"""Files and directories that a command is asked to write: refused before it works, and none over another unasked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reference_runs.errors import InputError

STDOUT = "-"  # as the name of a file
FORCE = "--force"
_OVERWRITES = "Overwrite files that exist."
Force = Annotated[bool, typer.Option(FORCE, help=_OVERWRITES)]


def forced(panel: str) -> Any:
    """The same option under a heading of --help."""
    return Annotated[bool, typer.Option(FORCE, help=_OVERWRITES, rich_help_panel=panel)]


def check_new(path: Path | None, option: str, *, force: bool) -> None:
    """Refuse a file that cannot be written when the work is done, or that exists; None: no file is asked for.

    A device or a pipe, such as /dev/stdout, is written to: nothing in it is lost.

    Raises:
        InputError: it exists and `force` is not given, or it cannot be written.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            raise InputError("cannot write: Is a directory", got=str(path), where=option)
        if path.exists() and not path.is_file():
            writable = os.access(path, os.W_OK)
        elif os.path.lexists(path):
            check_absent(path, option, force=force)
            writable = os.access(path if path.exists() else path.resolve().parent, os.W_OK)
        else:
            _probe(path)
            return
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=option) from error
    if not writable:
        raise InputError("cannot write: Permission denied", got=str(path), where=option)


def check_absent(path: Path, option: str, *, force: bool) -> None:
    """Refuse a file or directory that exists.

    Raises:
        InputError: it exists and `force` is not given.
    """
    if os.path.lexists(path) and not force:
        what, allowed = (
            f"the {'directory' if path.is_dir() else 'file'} exists, and is not overwritten",
            f"a new name, or {FORCE}",
        )
        raise InputError(what, got=str(path), allowed=allowed, where=option)


def check_new_directory(path: Path | None, option: str, *, force: bool) -> None:
    """Refuse a directory in which nothing can be written when the work is done, or which holds files.

    Raises:
        InputError: it is not empty and `force` is not given, it is a file, or cannot be written or made.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            if any(path.iterdir()):
                check_absent(path, option, force=force)
            _probe(path / f".{os.urandom(4).hex()}")
        elif os.path.lexists(path):
            raise InputError("no directory", got=str(path), allowed="a directory, or a new name", where=option)
        else:
            path.mkdir()
            path.rmdir()
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=option) from error


def _probe(path: Path) -> None:
    """Make the file and remove it again, which says more than rights do: a name that is too long, a full disk."""
    with path.open("xb"):
        pass
    path.unlink()


def write_new(path: Path, text: str, *, force: bool = False) -> bool:
    """Write a new file, or leave one that says the same; whether it is new.

    Raises:
        InputError: it exists, says something else and `force` is not given, or cannot be written.
    """
    option = "--output"
    try:
        if not path.is_dir() and path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return False
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=option) from error
    check_new(path, option, force=force)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", got=str(path), where=option) from error
    return True
