"""Measured over predicted peaks of published tables: what calibrates the uncertainty of a peak, and what it holds.

A predicted peak counts tensors, nanotron's what its log prints. What is published counts more: unused parts of the
allocator's segments, workspaces, what collectives hold, for some tables CUDA's context too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.machine_model import PeakSpread, fit_scores
from reference_runs.published import PublishedRow, PublishedTable
from reference_runs.stack import Modules, stack
from suite.machine.half_precision import Kernels
from suite.predict.analytic.memory_uncertainty import NORMAL_80, PeakKind, peak_kind
from suite.predict.analytic.stage_memory import peak_bytes
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.model import catalogued
from suite.predict.recorded_run.described_memory import described_by_stage, described_peak
from suite.predict.simulation.walked_memory import described_keeping, unwalked

LEAST_ROWS = 5  # of a kind with a spread of its own


class MeasuredPeak(NamedTuple):
    """A measured peak.

    Args:
        excess: logarithm of it over the predicted one.
        of_formula: the same of the formula for software that nobody measured; None: that is what predicts.
    """

    kind: PeakKind
    accelerators: int
    excess: float
    of_formula: float | None = None


class RowMemory(NamedTuple):
    """The predicted memory of a published row.

    Args:
        logged_bytes: the peak that its framework's log prints: nanotron's that of the first stage, others' the fullest.
        fullest_bytes: of the accelerator that needs most, which decides whether the layout fits.
        unlike: features that the stack's own memory does not describe, so that it is by formula.
    """

    kind: PeakKind
    logged_bytes: float
    fullest_bytes: float
    unlike: list[str]


def row_memory(row: PublishedRow) -> RowMemory:
    """The memory of a row, as `predict` prints it of the same workload and stack."""
    workload, keeping, kernels = row.workload, stack(row.stack).switches.keeping, Kernels(cuda=True)
    unlike, own = unwalked(workload, keeping), described_keeping(workload, keeping)
    kind, device_bytes = peak_kind(own), usable_memory(catalogued(row.accelerator).board).usable
    if own.modules is not Modules.NANOTRON:
        peak = described_peak(workload, own, kernels)
        return RowMemory(kind, peak, peak, unlike)
    micro_batches = accumulation(row.recipe, row.layout)
    by_stage = described_by_stage(workload, own, kernels, micro_batches=micro_batches, device_bytes=device_bytes)
    return RowMemory(kind, by_stage[0].peak, max(memory.peak for memory in by_stage), unlike)


def measured_peak(row: PublishedRow) -> MeasuredPeak:
    """The peak of a row whose memory was measured."""
    memory, measured = row_memory(row), row.peak_bytes or 0.0
    excess = math.log(measured / memory.logged_bytes)
    if memory.kind is not PeakKind.NANOTRON:
        return MeasuredPeak(memory.kind, row.layout.ranks, excess)
    by_formula = peak_bytes(row.workload, micro_batches=accumulation(row.recipe, row.layout))
    return MeasuredPeak(memory.kind, row.layout.ranks, excess, math.log(measured / by_formula))


def measured_peaks(table: PublishedTable) -> list[MeasuredPeak]:
    """Peaks of the rows of a table whose memory was measured and counts."""
    rows = [*table.rows, *(each.row for each in table.skipped if each.memory_counts and each.row)]
    return [measured_peak(row) for row in rows if row.peak_bytes is not None]


def calibrated(peaks: Sequence[MeasuredPeak]) -> dict[str, PeakSpread]:
    """Spread of each kind; see `_spread`.

    A kind with fewer than `LEAST_ROWS` rows has the spread of a formula for software that nobody measured:
    the root of its mean square excess in the kinds that are not walked through, which weigh alike.
    """
    of_kinds = {kind: [each for each in peaks if each.kind is kind] for kind in PeakKind}
    squares = [
        fmean((each.excess if each.of_formula is None else each.of_formula) ** 2 for each in own)
        for kind, own in of_kinds.items()
        if own and kind is not PeakKind.WALKED
    ]
    found = {}
    for kind, own in of_kinds.items():
        if len(own) < LEAST_ROWS:
            found[kind.value] = PeakSpread(spread=math.sqrt(fmean(squares)), rows=len(own))
        else:
            found[kind.value] = PeakSpread(spread=_spread(own), rows=len(own))
    return found


def _spread(peaks: Sequence[MeasuredPeak]) -> float:
    """Standard deviation whose interval holds 80 % of the n rows, times the root of (n + 2) / n, as few tell less.

    The interval is wider by at least as much as Student's t with n degrees of freedom has it, and by 3 % more at most.
    """
    distances = [abs(each.excess) for each in peaks]
    within = quantiles(distances, n=10, method="inclusive")[7]
    return within / NORMAL_80 * math.sqrt(1 + 2 / len(peaks))


def inside(peaks: Iterable[MeasuredPeak], spreads: dict[str, PeakSpread] | None = None) -> int:
    """How many peaks are inside the 80 % interval of their kind; None: as the chosen edition has it."""
    spreads = spreads or fit_scores().peaks
    return sum(abs(each.excess) <= NORMAL_80 * spreads[each.kind].spread for each in peaks)


def peak_coverage(peaks: Sequence[MeasuredPeak]) -> float:
    """Percent of the peaks inside the interval that those on other numbers of accelerators give."""
    held = 0
    for number in {each.accelerators for each in peaks}:
        others = calibrated([each for each in peaks if each.accelerators != number])
        held += inside((each for each in peaks if each.accelerators == number), others)
    return 100 * held / len(peaks)
