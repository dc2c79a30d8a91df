"""The run that a Hugging Face configuration describes, without a file of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference_runs.catalog import run_of
from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.hugging_face.families import Imported, imported, imported_values
from reference_runs.run import ReferenceRun
from reference_runs.run_text import run_text


def configured_run(path: Path, *, sequence: int | None = None) -> ReferenceRun:
    """The run whose architecture the configuration at `path` has; its recipe lacks what a configuration does not say.

    Raises:
        InputError: as `imported`.
    """
    run = imported(path, sequence=sequence)
    return _run(run, run.name, str(path))


def run_of_values(values: Mapping[str, Any], name: str, *, sequence: int | None = None) -> ReferenceRun:
    """As `configured_run`, of the keys of a configuration that no file has; refusals begin with its name.

    Raises:
        InputError: as `imported`.
    """
    return _run(imported_values(values, Path(f"{name}.json"), sequence=sequence, where=name), name, name)


def _run(run: Imported, name: str, where: str) -> ReferenceRun:
    text = run_text(run.title, run.sources, run.facts, comments=())
    return run_of(tomllib.loads(text), name=name, where=where)


def not_described(path: Path) -> str | None:
    """Why no formula describes the configuration at `path`, in a few words; None: one does."""
    try:
        configured_run(path)
    except NotDescribedError as error:
        return error.reason
    except InputError as error:
        return error.lines[0].removeprefix(f"{error.where}: ")
    return None
