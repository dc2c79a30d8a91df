"""What is asked of a trace's file before a launch starts."""

from __future__ import annotations

import os
from pathlib import Path

from reference_runs.errors import InputError
from suite.job.events import memory_snapshot_path, trace_path
from suite.job.training_job import LEAST_PROFILED

WHERE = "--trace"


def checked_trace(path: Path, *, ranks: int, device: str, steps: int, where: str = WHERE) -> Path:
    """`path`, absolute, where every rank can write a trace of its profiled steps.

    Args:
        where: the option that names it, for errors.

    Raises:
        InputError: no .json, a directory that is missing or cannot be written, a file of a rank that exists, or too few
            steps to profile any.
    """
    whole = path.absolute()
    if path.suffix != ".json":
        raise InputError("not a trace's name", got=str(path), allowed="a file ending in .json", where=where)
    if steps < LEAST_PROFILED:
        raise InputError(
            "too few steps to profile any", got=f"--steps {steps}", allowed=f"{LEAST_PROFILED} or more", where=where
        )
    if not whole.parent.is_dir():
        raise InputError("no such directory", got=str(path.parent), allowed="a directory that exists", where=where)
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise InputError("cannot write there", got=str(path.parent), allowed="a writable directory", where=where)
    names = [trace_path(str(whole), rank) for rank in range(ranks)]
    if device == "cuda":
        names += [memory_snapshot_path(str(whole), rank) for rank in range(ranks)]
    for name in names:
        if os.path.lexists(name):
            raise InputError("the file exists, and is not overwritten", got=name, allowed="a new name", where=where)
    return whole
