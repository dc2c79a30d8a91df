"""The run that a Hugging Face configuration describes, without a file of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from reference_runs.catalog import run_of
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
