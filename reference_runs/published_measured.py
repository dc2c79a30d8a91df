"""What was measured of a published row: seconds of a step and bytes of memory, whatever they are stated in."""

from __future__ import annotations

from reference_runs.published_columns import MEMORY, MEMORY_GB, STEP, STEP_MS, THROUGHPUTS
from reference_runs.published_run import Cells


def step_seconds_of(cells: Cells) -> float | None:
    """Seconds of a step, as stated or from a throughput; None: neither is."""
    if cells.stated.get(STEP):
        return cells.positive(STEP)
    if cells.stated.get(STEP_MS):
        return cells.positive(STEP_MS) / 1000
    samples = cells.count("global_batch")
    tokens = samples * cells.count("seq_len")
    for column, work in zip(THROUGHPUTS, (tokens, tokens / cells.count("gpus"), samples), strict=True):
        if cells.stated.get(column):
            return work / cells.positive(column)
    return None


def peak_bytes_of(cells: Cells) -> float | None:
    """Bytes of the fullest accelerator; None: not stated."""
    for column, unit in ((MEMORY, 2**30), (MEMORY_GB, 10**9)):
        if cells.stated.get(column):
            return cells.positive(column) * unit
    return None
