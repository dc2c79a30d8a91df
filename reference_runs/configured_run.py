"""The run that a Hugging Face configuration describes, without a file of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from reference_runs.catalog import run_of
from reference_runs.errors import InputError
from reference_runs.hugging_face.configuration import NotDescribedError
from reference_runs.hugging_face.families import imported
from reference_runs.run import ReferenceRun
from reference_runs.run_text import run_text


def configured_run(path: Path, *, sequence: int | None = None) -> ReferenceRun:
    """The run whose architecture the configuration at `path` has; its recipe lacks what a configuration does not say.

    Raises:
        InputError: as `imported`.
    """
    run = imported(path, sequence=sequence)
    text = run_text(run.title, run.sources, run.facts, comments=())
    return run_of(tomllib.loads(text), name=run.name, where=str(path))


def not_described(path: Path) -> str | None:
    """Why no formula describes the configuration at `path`, in a few words; None: one does."""
    try:
        configured_run(path)
    except NotDescribedError as error:
        return error.reason
    except InputError as error:
        return error.lines[0].removeprefix(f"{error.where}: ")
    return None
