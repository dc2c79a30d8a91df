"""How far above the predicted tensors published peaks are: the interval of a predicted peak, and what it holds.

A predicted peak counts tensors. What is published counts more: unused parts of the allocator's segments, workspaces,
what collectives hold, for some tables CUDA's context too. So the interval begins at the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

from reference_runs.published import PublishedTable
from reference_runs.stack import stack
from suite.predict.analytic.stage_memory import peak_bytes
from suite.predict.machine_model.model import prepared_row

INTERVAL_PERCENT = 80  # of the peaks that an interval holds


class MeasuredPeak(NamedTuple):
    """A published peak: on how many accelerators, and the logarithm of measured over predicted."""

    accelerators: int
    excess: float


def measured_peaks(table: PublishedTable) -> list[MeasuredPeak]:
    """Peaks of the rows of a table whose memory was measured and counts."""
    rows = [*table.rows, *(each.row for each in table.skipped if each.memory_counts and each.row)]
    return [
        MeasuredPeak(
            row.layout.ranks,
            math.log(
                row.peak_bytes
                / peak_bytes(
                    row.workload,
                    micro_batches=prepared_row(row).micro_batches,
                    keeping=stack(row.stack).switches.keeping,
                )
            ),
        )
        for row in rows
        if row.peak_bytes is not None
    ]


def most_excess(peaks: Sequence[MeasuredPeak]) -> float:
    """The logarithm of the factor up to which 80 % of the peaks are above what is predicted; rows weigh alike."""
    return quantiles([each.excess for each in peaks], n=100, method="inclusive")[INTERVAL_PERCENT - 1]


def peak_coverage(peaks: Sequence[MeasuredPeak]) -> float:
    """Percent of the peaks on each number of accelerators inside the interval that all others give, in the mean."""
    shares = []
    for number in {each.accelerators for each in peaks}:
        most = most_excess([each for each in peaks if each.accelerators != number])
        shares.append(fmean(0 <= each.excess <= most for each in peaks if each.accelerators == number))
    return 100 * fmean(shares)
