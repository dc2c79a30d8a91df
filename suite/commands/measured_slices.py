"""Records of slices, as `predict --from` takes them."""

from __future__ import annotations

from collections.abc import Sequence

from reference_runs.errors import InputError
from suite.job.slice import slowest
from suite.paths import RESULTS
from suite.predict.recorded_run.slice_parts import MeasuredSlice
from suite.records.query import record_path
from suite.records.store import read


def measured_slices(records: Sequence[str]) -> list[MeasuredSlice]:
    """Times and jobs in records of slices; each is `latest`, an id, its beginning, its last 8 digits, or a path.

    Raises:
        InputError: no such record, a damaged one, one of a launch that measured nothing, or of no slice.
    """
    return [_measured_slice(text) for text in records]


def _measured_slice(text: str) -> MeasuredSlice:
    record = read(record_path(RESULTS, text))
    job = record.begin.job
    allowed = "a record of `reproduce RUN-slice`"
    if job.slice is None:
        raise InputError("no slice: a record of a whole launch", got=job.name, allowed=allowed, where=record.path)
    times = slowest([rank.slice_times for rank in record.end.ranks if rank.slice_times]) if record.end else None
    if times is None:
        raise InputError("a slice that measured nothing", got=record.status, allowed="status ok", where=record.path)
    hardware = record.begin.hardware
    device = hardware["gpus"].partition(", ")[0] if job.device == "cuda" else hardware["cpu"]
    return MeasuredSlice(job, times, record.path, device)
