"""Writes a file that a command makes, and none over another."""

from __future__ import annotations

import contextlib
from pathlib import Path

from reference_runs.errors import InputError

STDOUT = "-"  # as the name of a file


def write_new(path: Path, text: str) -> bool:
    """Write a new file, or leave one that says the same; whether it is new.

    Raises:
        InputError: it exists and says something else, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        return True
    except FileExistsError as error:
        with contextlib.suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == text:
                return False
        what = "the file exists, and is not overwritten"
        raise InputError(what, got=str(path), allowed="a new name", where="--output") from error
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", got=str(path), where="--output") from error
