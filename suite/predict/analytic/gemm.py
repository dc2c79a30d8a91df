"""Seconds of matrix products: a peak times an efficiency, or the memory's bandwidth, whichever takes longer."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from suite.predict.analytic.elementwise import larger, log2, smaller


class EfficiencyTable(NamedTuple):
    """Share of the dense peak that a product of M x K by K x N reaches, on a grid of shapes.

    Args:
        rows: points of M, increasing.
        columns: points of N, increasing.
        depths: points of K, increasing.
        efficiencies: by row, column and depth; one efficiency alone holds for every shape.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    depths: tuple[float, ...]
    efficiencies: tuple[tuple[tuple[float, ...], ...], ...]


class IntensityTable(NamedTuple):
    """Share of the dense peak that a product reaches, by arithmetic intensity.

    Args:
        intensities: points in flop a byte, increasing.
        efficiencies: one at each point.
    """

    intensities: tuple[float, ...]
    efficiencies: tuple[float, ...]


class ProductTables(NamedTuple):
    """Efficiencies of a linear layer's three products apart, each by its own M, N and K."""

    forward: EfficiencyTable
    input_gradient: EfficiencyTable
    weight_gradient: EfficiencyTable


def gemm_flop(*, M: int, N: int, K: int) -> int:
    """Flop of the product of M x K by K x N: 2 M N K, a multiplication and an addition for each element and depth."""
    return 2 * M * N * K


def gemm_bytes(*, M: int, N: int, K: int, element_bytes: int) -> int:
    """Least bytes that a product moves: w (M K + K N + M N), each factor read and the product written once."""
    return element_bytes * (M * K + K * N + M * N)


def arithmetic_intensity(*, M: int, N: int, K: int, element_bytes: int) -> float:
    """Flop for each least byte of a product: 2 M N K / (w (M K + K N + M N)), w bytes an element.

    Equals (2 / w) / (1 / M + 1 / N + 1 / K): it grows with M N / (M + N) and with K, and the smallest dimension limits
    it to 2 / w times that dimension.
    Source: Williams et al. 2009, Roofline, Communications of the ACM 52 (4), operational intensity.
    """
    return gemm_flop(M=M, N=N, K=K) / gemm_bytes(M=M, N=N, K=K, element_bytes=element_bytes)


def gemm_seconds(
    M: int,
    N: int,
    K: int,
    element_bytes: int,
    table: EfficiencyTable | IntensityTable,
    peak_flop_per_second: float,
    memory_bytes_per_second: float,
    saturation: float = 0.0,
    overlap: float = 1.0,
    factor_bytes: float | None = None,
) -> float:
    """Seconds of one product of M x K by K x N.

    max(2 M N K / (e P) (1 + d (1 / M + 1 / N + 1 / K)), w (M K + K N + M N) / B):
        2 M N K / (e P)                 the arithmetic, at efficiency e of the dense peak P
        d (1 / M + 1 / N + 1 / K)       what small dimensions lose, with saturation d: filling tiles, and bytes that
                                        do not overlap with the arithmetic
        w (M K + K N + M N) / B         least bytes over the achievable bandwidth B of the memory; elements of the
                                        factors may have other bytes than those of the product

    plus 1 - o of the smaller of the two, with overlap o.
    Source: Williams et al. 2009 (as `arithmetic_intensity`): the roofline.
    Differs from the sum of both, which supposes that nothing overlaps, by at most a factor of 2, where both are equal.
    """
    share = efficiency(table, M=M, N=N, K=K, element_bytes=element_bytes)
    arithmetic = 2 * M * N * K / (share * peak_flop_per_second) * (1 + saturation * (1 / M + 1 / N + 1 / K))
    factors = element_bytes if factor_bytes is None else factor_bytes
    moved = (factors * (M * K + K * N) + element_bytes * M * N) / memory_bytes_per_second
    return larger(arithmetic, moved) + (1 - overlap) * smaller(arithmetic, moved)


def product_seconds(
    *,
    M: int,
    N: int,
    K: int,
    element_bytes: int,
    table: EfficiencyTable | IntensityTable | ProductTables,
    peak_flop_per_second: float,
    memory_bytes_per_second: float,
    saturation: float = 0.0,
    overlap: float = 1.0,
    factor_bytes: float | None = None,
) -> tuple[float, float]:
    """Seconds of M x K by K x N in the forward pass, and of its two products in the backward pass.

    forward     M x K by K x N
    backward    M x N by N x K     the input's gradient
                K x M by M x N     the weight's gradient

    The three have the same flop, and the same bytes where factors and product have elements of one size: then only a
    table of shapes distinguishes them.
    """
    rest = (peak_flop_per_second, memory_bytes_per_second, saturation, overlap, factor_bytes)
    tables = table if isinstance(table, ProductTables) else ProductTables(table, table, table)  # type: ignore[arg-type]
    forward = gemm_seconds(M, N, K, element_bytes, tables.forward, *rest)
    if table is tables.forward and not _of_shapes(table) and factor_bytes is None:
        return forward, 2 * forward
    by_input = gemm_seconds(M, K, N, element_bytes, tables.input_gradient, *rest)
    return forward, by_input + gemm_seconds(K, N, M, element_bytes, tables.weight_gradient, *rest)


def _of_shapes(table: EfficiencyTable | IntensityTable) -> bool:
    """Whether the table tells shapes of the same flop and bytes apart."""
    return isinstance(table, EfficiencyTable) and len(table.rows) + len(table.columns) + len(table.depths) > 3


def efficiency(table: EfficiencyTable | IntensityTable, *, M: int, N: int, K: int, element_bytes: int) -> float:
    """Share of the dense peak that a product of M x K by K x N reaches, constant beyond a table's outer points.

    By shape, trilinear in log2 of M, N and K; by arithmetic intensity, linear in its log2. The sum over the corners of
    the cell of e_ijk w_i(M) w_j(N) w_k(K), with weights that are 1 at their own point, 0 at its neighbours and linear
    between: exact at the table's points, between the corners' extremes elsewhere.
    """
    if isinstance(table, IntensityTable):
        intensity = arithmetic_intensity(M=M, N=N, K=K, element_bytes=element_bytes)
        first, weights = _weights(table.intensities, intensity)
        return sum(weight * table.efficiencies[first + index] for index, weight in enumerate(weights))
    if not _of_shapes(table):
        return table.efficiencies[0][0][0]
    row, row_weights = _weights(table.rows, M)
    column, column_weights = _weights(table.columns, N)
    depth, depth_weights = _weights(table.depths, K)
    total = 0.0
    for i, of_row in enumerate(row_weights, row):
        for j, of_column in enumerate(column_weights, column):
            for k, of_depth in enumerate(depth_weights, depth):
                total = total + of_row * of_column * of_depth * table.efficiencies[i][j][k]
    return total


def _weights(points: tuple[float, ...], value: float) -> tuple[int, list[float]]:
    """The first point of the cell that holds `value`, and the weights from there on.

    An array has no one cell: it gets the weights of all points, most of them 0.
    """
    first = 0
    if isinstance(value, (int, float)):
        first = min(max(bisect_right(points, value) - 1, 0), max(len(points) - 2, 0))
        points = points[first : first + 2]
    log_value = log2(value)
    passed: list[float] = [1.0]
    for lower, upper in pairwise(points):
        share = (log_value - math.log2(lower)) / (math.log2(upper) - math.log2(lower))
        passed.append(smaller(1.0, larger(0.0, share)))
    passed.append(0.0)
    return first, [before - after for before, after in pairwise(passed)]
