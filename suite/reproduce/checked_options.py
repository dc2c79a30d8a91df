"""Options of a request that are checked by themselves: the global batch, products, and the trace's file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat, Recipe
from suite.job.events import memory_snapshot_path, trace_path
from suite.job.training_job import LEAST_PROFILED
from suite.reproduce.request import Request


def of_global_batch(samples: int, recipe: Recipe, layout: Layout) -> tuple[Recipe, Layout]:
    """A recipe of so many samples a step from the first on, and the layout that accumulates what it needs for them.

    Raises:
        InputError: no multiple of the samples that all replicas take at once.
    """
    at_once = layout.dealt_to * layout.expert_parallel * layout.micro_batch
    if samples < 1 or samples % at_once:
        what = "global batch: no multiple of replicas * micro_batch"
        raise InputError(what, got=samples, allowed=f"multiples of {at_once}", where="--global-batch")
    if samples == recipe.global_batch:
        return recipe, layout
    recipe = msgspec.structs.replace(
        recipe, global_batch=samples, batch_rampup_start=None, batch_rampup_increment=None, batch_rampup_samples=None
    )
    return recipe, msgspec.structs.replace(layout, accumulation=None)


def checked_products(words: str) -> ProductFormat:
    """The format of a run's products that was asked for.

    Raises:
        InputError: an unknown word.
    """
    if words not in list(ProductFormat):
        raise InputError("unknown products", got=repr(words), allowed=", ".join(ProductFormat), where="--products")
    return ProductFormat(words)


def check_no_slice(request: Request) -> None:
    """Refuse the options of a slice where a whole run is asked for.

    Raises:
        InputError: one of them is given.
    """
    if names := request.given("stage", "layers", "sequence", "micro_batch", "minutes"):
        raise InputError("of a slice alone", allowed="NAME-slice, or --slice", where=", ".join(names))


def checked_trace(path: Path, *, ranks: int, device: str, steps: int, where: str = "--trace") -> Path:
    """`path`, absolute, where every rank can write a trace of its profiled steps; `where` is its option.

    Raises:
        InputError: no .json, a directory that is missing or cannot be written, a file of a rank that exists, or too few
            steps to profile any.
    """
    whole = path.absolute()
    if path.suffix != ".json":
        raise InputError("not a trace's name", got=str(path), allowed="a file ending in .json", where=where)
    if steps < LEAST_PROFILED:
        allowed = f"{LEAST_PROFILED} or more"
        raise InputError("too few steps to profile any", got=f"--steps {steps}", allowed=allowed, where=where)
    if not whole.parent.is_dir():
        raise InputError("no such directory", got=str(path.parent), allowed="a directory that exists", where=where)
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise InputError("cannot write there", got=str(path.parent), allowed="a writable directory", where=where)
    written = (trace_path, memory_snapshot_path) if device == "cuda" else (trace_path,)
    for name in [path_of(str(whole), rank) for path_of in written for rank in range(ranks)]:
        if os.path.lexists(name):
            raise InputError("the file exists, and is not overwritten", got=name, allowed="a new name", where=where)
    return whole
