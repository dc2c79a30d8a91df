"""Random effects that step times share beyond their columns: laboratory, model's size, measured parts.

The logarithm of predicted over measured time of a row is the sum of effects of its laboratory, of its model's size
there and of its own, each normal around 0. Their standard deviations are estimated. So a table of many rows tells much
of how times change within it, and of their level no more than one laboratory can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy
from scipy.optimize import minimize

from reference_runs.machine_model import Spreads
from reference_runs.published import PublishedRow

RECORDED_RUNS = "real_runs"  # the table whose rows are each of another laboratory
FARTHEST = 0.15  # from its table's median, where a residual is cut before spreads are estimated


class CorrelatedRows(NamedTuple):
    """Rows of one table by number, and the matrix that makes their residuals independent with variance 1."""

    rows: Any
    whitening: Any


def size_of(row: PublishedRow) -> str:
    """The model's size, in words."""
    return f"{row.architecture.layers} x {row.architecture.hidden}"


def laboratory_of(row: PublishedRow) -> str:
    """Where the row was measured: its table, of recorded runs the run."""
    return row.model if row.table == RECORDED_RUNS else row.table


def _part_of(row: PublishedRow) -> str:
    """Measured layer of a composed row, which tensor parallelism and micro-batch determine; else the size."""
    if row.composed:
        return f"tp{row.layout.tensor_parallel} micro{row.layout.micro_batch}"
    return size_of(row)


def blocks(rows: Sequence[PublishedRow], spreads: Spreads) -> list[CorrelatedRows]:
    """The rows by table, each block with the inverse of the Cholesky factor of its covariance."""
    by_table: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_table.setdefault(row.table, []).append(number)
    return [_block(rows, numbers, spreads) for numbers in by_table.values()]


def _block(rows: Sequence[PublishedRow], numbers: list[int], spreads: Spreads) -> CorrelatedRows:
    composed = rows[numbers[0]].composed
    covariance = spreads.laboratory**2 * _same([laboratory_of(rows[number]) for number in numbers])
    together = spreads.part if composed else spreads.size
    covariance += together**2 * _same([_part_of(rows[number]) for number in numbers])
    covariance += (spreads.composed_row if composed else spreads.row) ** 2 * numpy.eye(len(numbers))
    return CorrelatedRows(numpy.array(numbers), numpy.linalg.inv(numpy.linalg.cholesky(covariance)))


def _same(names: Sequence[str]) -> Any:
    """1 where two of the names are equal, else 0."""
    numbers = numpy.unique(names, return_inverse=True)[1]
    return (numbers[:, None] == numbers[None, :]).astype(float)


def estimated(rows: Sequence[PublishedRow], residuals: Sequence[float], start: Spreads) -> Spreads:
    """The spreads under which the residuals are likeliest; those beyond `FARTHEST` of their table's median are cut.

    Maximises the normal likelihood over the logarithms of the five numbers, by the simplex of Nelder and Mead: blocks
    have closed forms, the mean is the model's own, and no other package is needed. (Mixed models of statsmodels are
    linear in what is fitted; the step time is not.)
    """
    names = ("laboratory", "size", "part", "row", "composed_row")
    cut = numpy.array(residuals, dtype=float)
    for block in blocks(rows, start):
        median = numpy.median(cut[block.rows])
        cut[block.rows] = median + numpy.clip(cut[block.rows] - median, -FARTHEST, FARTHEST)

    def with_values(logarithms: Any) -> Spreads:
        return msgspec.structs.replace(start, **dict(zip(names, map(float, numpy.exp(logarithms)), strict=True)))

    def unlikelihood(logarithms: Any) -> float:
        total = 0.0
        for block in blocks(rows, with_values(logarithms)):
            white = block.whitening @ cut[block.rows]
            total += float(white @ white) / 2 - float(numpy.log(numpy.diag(block.whitening)).sum())
        return total

    first = numpy.log([getattr(start, name) for name in names])
    found = minimize(unlikelihood, first, method="Nelder-Mead", options={"maxiter": 120, "xatol": 0.03, "fatol": 0.1})
    return with_values(found.x)
