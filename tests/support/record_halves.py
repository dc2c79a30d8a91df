"""Both halves of a record, as a launch writes them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from reference_runs.errors import InputError
from suite.job.events import Status
from suite.records import store
from suite.records.record import BEGIN, SCHEMA, End, Record, begin_record
from suite.reproduce.plan import job_for
from tests.support.launches import CORPUS, small_plan


def begin(**changes):
    job = job_for(small_plan(ranks=2), CORPUS, "/none")
    job = msgspec.structs.replace(job, steps=changes.pop("steps", job.steps))
    made = begin_record(job, CORPUS, changes.pop("id", None) or store.new_identity())
    return msgspec.structs.replace(made, **changes)


def end(identity: str, **changes: Any) -> End:
    made = End(
        schema=SCHEMA,
        id=identity,
        status=Status.OK,
        message="",
        ranks_at_fault=[],
        finished=time.time(),
        figures=[],
        ranks=[],
    )
    return msgspec.structs.replace(made, **changes)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def stored_records(results: Path, run: str) -> tuple[list[Record], list[InputError]]:
    """All readable records of `run`, whole, oldest first, and why the others are left out."""
    good: list[Record] = []
    bad: list[InputError] = []
    for path in sorted((results / "records" / run).glob(f"*{BEGIN}")):
        try:
            good.append(store.read(path))
        except InputError as error:
            bad.append(error)
    return good, bad
