from __future__ import annotations

import itertools
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.predict.analytic.gemm import (
    EfficiencyTable,
    IntensityTable,
    ProductTables,
    arithmetic_intensity,
    efficiency,
    gemm_bytes,
    gemm_flop,
    gemm_seconds,
    product_seconds,
)
from tests.support.machines import flat_efficiency, intensity_tables, shape_tables, shares

DIMENSIONS = st.integers(1, 10**5)
RATES = st.floats(1e6, 1e18)
# a cell's weights add up to 1 within a rounding of each of three factors and eight sums
ROUNDING = 1e-14


def seconds(M: Any, N: Any, K: Any, **changes: Any) -> Any:
    machine: dict[str, Any] = {
        "element_bytes": 2,
        "table": flat_efficiency(0.5),
        "peak_flop_per_second": 1e12,
        "memory_bytes_per_second": 1e12,
    }
    return gemm_seconds(M=M, N=N, K=K, **(machine | changes))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_flop_and_bytes_equal_those_of_a_product_that_is_carried_out(M: int, N: int, K: int) -> None:
    left, right, product = numpy.ones((M, K)), numpy.ones((K, N)), numpy.zeros((M, N))
    operations = 0
    for i, j, k in itertools.product(range(M), range(N), range(K)):
        product[i, j] += left[i, k] * right[k, j]
        operations += 2
    assert (product == left @ right).all()
    assert gemm_flop(M=M, N=N, K=K) == operations
    assert gemm_bytes(M=M, N=N, K=K, element_bytes=8) == left.nbytes + right.nbytes + product.nbytes


@given(DIMENSIONS, DIMENSIONS, DIMENSIONS, st.sampled_from([2, 4]))
def test_intensity_is_the_harmonic_form(M: int, N: int, K: int, w: int) -> None:
    # a handful of roundings on either side
    harmonic = 2 / w / (1 / M + 1 / N + 1 / K)
    assert arithmetic_intensity(M=M, N=N, K=K, element_bytes=w) == pytest.approx(harmonic, rel=1e-14, abs=0)


def test_the_roofline_bends_where_intensity_equals_peak_over_bandwidth() -> None:
    # 2 M^3 / (e P) against 6 M^2 / B bytes at two an element: equal at M = 3 e P / B = 1.5
    assert seconds(1, 1, 1) == 6 / 1e12
    assert seconds(3, 3, 3) == 2 * 27 / 0.5e12
    assert seconds(1, 1, 1, memory_bytes_per_second=math.inf) == 2 / 0.5e12


@given(DIMENSIONS, DIMENSIONS, DIMENSIONS, RATES, RATES, RATES)
def test_a_product_is_never_slower_on_a_faster_machine(
    M: int, N: int, K: int, a: float, b: float, fixed: float
) -> None:
    slow, fast = sorted((a, b))
    for rate, other in (
        ("peak_flop_per_second", "memory_bytes_per_second"),
        ("memory_bytes_per_second", "peak_flop_per_second"),
    ):
        assert seconds(M, N, K, **{rate: fast, other: fixed}) <= seconds(M, N, K, **{rate: slow, other: fixed})


@given(shape_tables())
def test_a_table_of_shapes_is_exact_at_its_points(table: EfficiencyTable) -> None:
    for (i, M), (j, N), (k, K) in itertools.product(*map(enumerate, table[:3])):
        # points are real here; the formula takes any positive number
        assert efficiency(table, M=M, N=N, K=K, element_bytes=2) == table.efficiencies[i][j][k]  # type: ignore[arg-type]


def neighbours(points: tuple[float, ...], value: float) -> list[int]:
    """Indices of the points around a value: a search that shares nothing with the code."""
    below = [place for place, point in enumerate(points) if point <= value]
    above = [place for place, point in enumerate(points) if point >= value]
    return sorted({below[-1] if below else 0, above[0] if above else len(points) - 1})


@given(shape_tables(), DIMENSIONS, DIMENSIONS, DIMENSIONS)
def test_between_points_an_efficiency_stays_between_those_of_its_neighbours(
    table: EfficiencyTable, M: int, N: int, K: int
) -> None:
    places = [neighbours(points, value) for points, value in zip(table[:3], (M, N, K), strict=True)]
    corners = [table.efficiencies[i][j][k] for i, j, k in itertools.product(*places)]
    found = efficiency(table, M=M, N=N, K=K, element_bytes=2)
    assert min(corners) * (1 - ROUNDING) <= found <= max(corners) * (1 + ROUNDING)


def test_an_efficiency_is_linear_in_the_logarithm_between_points_and_constant_beyond() -> None:
    table = EfficiencyTable((1.0, 16.0), (1.0,), (1.0, 4.0), (((0.1, 0.3),), ((0.5, 0.9),)))
    # half way in log2 M, half way in log2 K: the mean of the four corners, of which three roundings are visible
    assert efficiency(table, M=4, N=7, K=2, element_bytes=2) == pytest.approx(0.45, rel=1e-15, abs=0)
    assert efficiency(table, M=2, N=7, K=1, element_bytes=2) == pytest.approx(0.2, rel=1e-15, abs=0)
    table = EfficiencyTable((8.0, 16.0), (8.0,), (8.0,), (((0.2,),), ((0.6,),)))
    assert efficiency(table, M=1, N=1, K=1, element_bytes=2) == 0.2
    assert efficiency(table, M=10**6, N=1, K=1, element_bytes=2) == 0.6


@given(intensity_tables(), DIMENSIONS, DIMENSIONS, DIMENSIONS)
def test_an_efficiency_by_intensity_stays_between_its_neighbours(table: IntensityTable, M: int, N: int, K: int) -> None:
    intensity = arithmetic_intensity(M=M, N=N, K=K, element_bytes=2)
    around = [table.efficiencies[place] for place in neighbours(table.intensities, intensity)]
    found = efficiency(table, M=M, N=N, K=K, element_bytes=2)
    assert min(around) * (1 - ROUNDING) <= found <= max(around) * (1 + ROUNDING)


def test_an_efficiency_by_intensity_is_exact_at_its_points() -> None:
    # M = N = K has the intensity M / 3 at two bytes an element
    table = IntensityTable((8.0, 16.0, 64.0), (0.3, 0.5, 0.8))
    found = [efficiency(table, M=3 * i, N=3 * i, K=3 * i, element_bytes=2) for i in (8, 16, 32, 64)]
    assert found == pytest.approx([0.3, 0.5, 0.65, 0.8], rel=1e-15, abs=0)


@given(
    shape_tables() | intensity_tables() | shares(),
    st.lists(st.tuples(DIMENSIONS, DIMENSIONS, DIMENSIONS), min_size=1, max_size=5),
)
def test_arrays_of_shapes_give_what_each_shape_gives(
    table: EfficiencyTable | IntensityTable | float, shapes: list[tuple[int, int, int]]
) -> None:
    """Exactly, where one efficiency serves all: products of three dimensions stay below 2**53."""
    flat = isinstance(table, float)
    every: Any = flat_efficiency(table) if flat else table
    M, N, K = (numpy.array(column, dtype=float) for column in zip(*shapes, strict=True))
    found = numpy.broadcast_to(seconds(M, N, K, table=every), len(shapes))
    each = [seconds(*shape, table=every) for shape in shapes]
    # log2 of numpy and of math may differ by a rounding: of places up to 17 in cells at least log2(1.01) = 0.014 wide,
    # 17 / 0.014 of 2**-52 of a weight, times at most 20 between efficiencies of 0.05 and 1
    assert list(found) == pytest.approx(each, rel=0 if flat else 1e-11, abs=0)


def test_only_a_table_of_shapes_tells_a_product_from_its_backward_products() -> None:
    machine: dict[str, Any] = {"element_bytes": 2, "peak_flop_per_second": 1e12, "memory_bytes_per_second": math.inf}
    deep = EfficiencyTable((1.0,), (1.0,), (10.0, 1000.0), (((0.25, 1.0),),))
    forward, backward = product_seconds(M=10, N=100, K=1000, table=deep, **machine)
    flop = 2 * 10 * 100 * 1000
    # depth 1000 forward; N = 100, half way between the points, and M = 10 backward
    assert forward == flop / 1e12
    assert backward == pytest.approx(flop / 0.625e12 + flop / 0.25e12, rel=1e-15, abs=0)
    flat = product_seconds(M=10, N=100, K=1000, table=flat_efficiency(0.5), **machine)
    assert flat == (flop / 0.5e12, 2 * flop / 0.5e12)


def test_each_of_a_layers_products_takes_its_own_efficiency() -> None:
    tables = ProductTables(flat_efficiency(0.5), flat_efficiency(0.25), flat_efficiency(0.125))
    sizes = {"M": 64, "N": 96, "K": 32, "element_bytes": 2}
    forward, backward = product_seconds(
        **sizes, table=tables, peak_flop_per_second=1e12, memory_bytes_per_second=math.inf
    )
    flop = 2 * 64 * 96 * 32
    assert forward == pytest.approx(flop / 0.5e12, rel=1e-12)
    assert backward == pytest.approx(flop / 0.25e12 + flop / 0.125e12, rel=1e-12)
