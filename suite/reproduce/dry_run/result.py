"""Stores a dry run for the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

from reference_runs.accelerator import Accelerator
from reference_runs.layout import layout_text
from suite.job.dry_run_job import Moment
from suite.machine.fingerprint import suite_version
from suite.metrics.comparison import Verdict
from suite.metrics.figures import Quantity
from suite.records.store import new_identity, writable, write_new
from suite.reproduce.dry_run.comparison import DryRun, peak_parts

DIRECTORY = "dry_runs"


class DryRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One layout of a dry run, and the memory of its fullest rank.

    Args:
        kinds: of ranks, one of each was executed.
        exact_figures: that agree.
        micro_batches: of a whole step, whose peak is `peak`; `executed` of the step that `history` is of.
        predicted_peak: bytes.
        board: whose memory counts, with its bytes; None where none is named.
        started: seconds since 1970, when the result was stored.
        schema: of this file; a file of another one is not read.
    """

    schema: Literal[1] = 1
    run: str
    layout: str
    verdict: Verdict
    ranks: int
    kinds: int
    exact_figures: int
    micro_batches: int
    executed: int
    rank: int
    stage: int
    peak: Moment
    predicted_peak: float
    history: list[Moment]
    board: tuple[str, float] | None
    changes: tuple[str, ...]
    started: float
    suite: str


def result_of(run: DryRun, board: Accelerator | None) -> DryRunResult:
    """Result of a dry run that counted every class."""
    fullest = run.fullest
    of_peak = (row for row in run.rows if row.quantity == Quantity.PEAK_BYTES and row.rank == fullest.of.rank)
    return DryRunResult(
        run=run.name,
        layout=layout_text(run.workload.layout),
        verdict=run.verdict,
        ranks=run.workload.layout.ranks,
        kinds=len(run.classes),
        exact_figures=sum(row.tolerance == 0 and row.verdict is Verdict.PASS for row in run.rows),
        micro_batches=run.micro_batches,
        executed=fullest.executed[-1],
        rank=fullest.of.rank,
        stage=fullest.of.stage,
        peak=peak_parts(fullest.step),
        predicted_peak=next(of_peak).left or 0.0,
        history=fullest.step.history,
        board=None if board is None else (board.name, board.board.memory_bytes),
        changes=run.changes,
        started=time.time(),
        suite=suite_version(),
    )


def store(result: DryRunResult, results: Path) -> Path:
    """Write it to a new file in `results`.

    Raises:
        InputError: it cannot be written there.
    """
    path = writable(results / DIRECTORY, results) / f"{result.run}__{new_identity()}.json"
    write_new(path, msgspec.json.encode(result))
    return path
