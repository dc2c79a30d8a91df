"""Measured over predicted peaks of published tables: what calibrates the uncertainty of a peak, and what it holds.

A predicted peak counts tensors. What is published counts more: unused parts of the allocator's segments, workspaces,
what collectives hold, for some tables CUDA's context too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

from reference_runs.machine_model import PeakSpread, fit_scores
from reference_runs.published import PublishedRow, PublishedTable
from reference_runs.stack import stack
from suite.machine.half_precision import Kernels
from suite.predict.analytic.memory_uncertainty import NORMAL_80, PeakKind, peak_kind, peak_uncertainty
from suite.predict.recorded_run.sweep import described_peak
from suite.predict.simulation.walked_memory import unwalked

LEAST_ROWS = 5  # of a kind with a spread of its own
SIGNIFICANCE = 0.05  # of a bias


class MeasuredPeak(NamedTuple):
    """A measured peak.

    Args:
        excess: logarithm of it over the predicted tensors.
    """

    kind: PeakKind
    accelerators: int
    excess: float


def measured_peak(row: PublishedRow) -> MeasuredPeak:
    """The peak of a row whose memory was measured."""
    keeping = stack(row.stack).switches.keeping
    predicted = described_peak(row.workload, keeping, Kernels(cuda=True))
    kind = PeakKind.FORMULA if unwalked(row.workload, keeping) else peak_kind(keeping)
    excess = math.log((row.peak_bytes or 0.0) / predicted) + peak_uncertainty(kind).bias
    return MeasuredPeak(kind, row.layout.ranks, excess)


def measured_peaks(table: PublishedTable) -> list[MeasuredPeak]:
    """Peaks of the rows of a table whose memory was measured and counts."""
    rows = [*table.rows, *(each.row for each in table.skipped if each.memory_counts and each.row)]
    return [measured_peak(row) for row in rows if row.peak_bytes is not None]


def calibrated(peaks: Sequence[MeasuredPeak]) -> dict[str, PeakSpread]:
    """Bias and spread of each kind; see `_bias` and `_spread`.

    A kind with fewer than `LEAST_ROWS` rows has no bias, and the spread of a formula for software that nobody measured:
    the root of the mean square excess of the kinds that formulas predict, which weigh alike.
    """
    of_kinds = {kind: [each for each in peaks if each.kind is kind] for kind in PeakKind}
    squares = [
        fmean(each.excess**2 for each in own) for kind, own in of_kinds.items() if own and kind is not PeakKind.WALKED
    ]
    found = {}
    for kind, own in of_kinds.items():
        if len(own) < LEAST_ROWS:
            found[kind.value] = PeakSpread(bias=0.0, spread=math.sqrt(fmean(squares)), rows=len(own))
        else:
            bias = _bias(own)
            found[kind.value] = PeakSpread(bias=bias, spread=_spread(own, bias), rows=len(own))
    return found


def _bias(peaks: Sequence[MeasuredPeak]) -> float:
    """The mean excess, where it is significant; else 0.

    Peaks on the same number of accelerators share what the formula lacks, so that their means count, each once: by
    Student's t at 5 %, two-sided.
    """
    from scipy.stats import ttest_1samp

    excesses: dict[int, list[float]] = {}
    for each in peaks:
        excesses.setdefault(each.accelerators, []).append(each.excess)
    means = [fmean(group) for group in excesses.values()]
    if len(means) < 2 or ttest_1samp(means, 0.0).pvalue >= SIGNIFICANCE:
        return 0.0
    return fmean(each.excess for each in peaks)


def _spread(peaks: Sequence[MeasuredPeak], bias: float) -> float:
    """Standard deviation whose interval holds 80 % of the n rows, times the root of (n + 2) / n, as few tell less.

    The interval is wider by at least as much as Student's t with n degrees of freedom has it, and by 3 % more at most.
    """
    distances = [abs(each.excess - bias) for each in peaks]
    within = quantiles(distances, n=10, method="inclusive")[7]
    return within / NORMAL_80 * math.sqrt(1 + 2 / len(peaks))


def inside(peaks: Iterable[MeasuredPeak], spreads: dict[str, PeakSpread] | None = None) -> int:
    """How many peaks are inside the 80 % interval of their kind; None: as the chosen edition has it."""
    spreads = spreads or fit_scores().peaks
    return sum(abs(each.excess - spreads[each.kind].bias) <= NORMAL_80 * spreads[each.kind].spread for each in peaks)


def peak_coverage(peaks: Sequence[MeasuredPeak]) -> float:
    """Percent of the peaks inside the interval that those on other numbers of accelerators give."""
    held = 0
    for number in {each.accelerators for each in peaks}:
        others = calibrated([each for each in peaks if each.accelerators != number])
        held += inside((each for each in peaks if each.accelerators == number), others)
    return 100 * held / len(peaks)
