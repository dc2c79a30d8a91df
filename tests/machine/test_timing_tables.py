"""Interpolation between measured points, and lines of latency plus bandwidth."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.machine.timing_tables import Axis, Line, Subject, Table, fitted
from suite.machine.timings import Timing

SUBJECT = Subject(operation="product", variant="NT")
AXES = (Axis("M", (8, 64, 200)), Axis("N", (16, 100)), Axis("K", (24, 72, 1000)))


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, seconds, 3, 1)


def table(seconds: list[float]) -> Table:
    return Table(subject=SUBJECT, axes=AXES, timings=tuple(map(timing, seconds)))


points = list(product(*(axis.points for axis in AXES)))
some_seconds = st.lists(st.floats(1e-6, 1.0), min_size=len(points), max_size=len(points))


@given(some_seconds)
def test_interpolation_is_exact_at_every_point_of_the_grid(seconds: list[float]) -> None:
    measured = table(seconds)
    for sizes, expected in zip(points, seconds, strict=True):
        assert measured.seconds(sizes) == pytest.approx(expected, rel=1e-12)


@given(some_seconds, st.floats(8, 200), st.floats(16, 100), st.floats(24, 1000))
def test_interpolation_lies_between_the_corners_of_the_cell(seconds: list[float], m: float, n: float, k: float) -> None:
    sizes = (m, n, k)
    corners = []
    for place, own in zip(points, seconds, strict=True):
        beside = []
        for axis, point, size in zip(AXES, place, sizes, strict=True):
            below = max(p for p in axis.points if p <= size)
            above = min(p for p in axis.points if p >= size)
            beside.append(point in (below, above))
        if all(beside):
            corners.append(own)
    found = table(seconds).seconds(sizes)
    assert min(corners) * (1 - 1e-12) <= found <= max(corners) * (1 + 1e-12)


@given(st.floats(8, 200), st.floats(16, 100), st.floats(24, 1000))
def test_interpolation_is_exact_between_points_for_a_call_plus_arithmetic_plus_memory(
    m: float, n: float, k: float
) -> None:
    def law(m: float, n: float, k: float) -> float:
        return 5e-6 + 2 * m * n * (k + 30) / 8e10 + 4 * (m * k + k * n + m * n) / 1e10

    assert table([law(*sizes) for sizes in points]).seconds((m, n, k)) == pytest.approx(law(m, n, k), rel=1e-9)


@given(st.floats(8, 64))
def test_a_size_with_a_power_is_interpolated_in_that_power(length: float) -> None:
    axes = (Axis("sequence", (8, 24, 64), 2),)
    quadratic = Table(subject=SUBJECT, axes=axes, timings=tuple(timing(1e-6 + 1e-8 * s**2) for s in (8, 24, 64)))
    assert quadratic.seconds([length]) == pytest.approx(1e-6 + 1e-8 * length**2, rel=1e-9)


def test_beyond_the_last_point_seconds_grow_with_the_axis_s_power_and_below_the_first_they_stay() -> None:
    attention = Table(
        subject=SUBJECT,
        axes=(Axis("heads", (2, 4)), Axis("sequence", (8, 16), 2)),
        timings=(*map(timing, (1, 2, 3, 4)),),
    )
    assert attention.seconds((8, 16)) == pytest.approx(2 * 4)
    assert attention.seconds((4, 48)) == pytest.approx(9 * 4)
    assert attention.seconds((1, 4)) == pytest.approx(1)
    assert attention.distance((4, 16)) == 0
    assert attention.distance((8, 4)) == pytest.approx(2 * math.log(2))


def straight_line(sizes: list[float], seconds: list[float]) -> Line:
    return fitted(SUBJECT, "byte", sizes, [timing(each) for each in seconds])


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-8))
def test_a_line_recovers_the_latency_and_bandwidth_that_made_its_points(latency: float, per_byte: float) -> None:
    sizes = [256.0, 4096.0, 65536.0, 1e6, 1.6e7]
    line = fitted(SUBJECT, "byte", sizes, [timing(latency + per_byte * size) for size in sizes])
    assert line.fixed_seconds == pytest.approx(latency, rel=1e-6)
    assert line.units_per_second == pytest.approx(1 / per_byte, rel=1e-6)
    assert line.worst < 1e-6


def test_a_line_through_disturbed_points_is_off_by_less_than_the_disturbance_and_says_how_far() -> None:
    sizes = [256.0, 4096.0, 65536.0, 1e6, 1.6e7]
    factors = [1.1, 0.9, 1.05, 0.95, 1.0]
    line = straight_line(sizes, [f * (1e-4 + 1e-9 * x) for f, x in zip(factors, sizes, strict=True)])
    assert line.fixed_seconds == pytest.approx(1e-4, rel=0.1)
    assert line.seconds_per_unit == pytest.approx(1e-9, rel=0.1)
    assert 0.02 < line.residual <= line.worst < 0.15


@given(st.lists(st.floats(0.3, 3), min_size=5, max_size=5), st.floats(1e-5, 1e-3))
def test_a_line_has_the_largest_size_s_time_whatever_the_short_ones_took(factors: list[float], latency: float) -> None:
    sizes = [256.0, 2304.0, 21632.0, 198846.0, 1.8e6, 1.68e7]
    seconds = [factor * (latency + 5e-9 * size) for factor, size in zip([*factors, 1.0], sizes, strict=True)]
    line = straight_line(sizes, seconds)
    assert line.fixed_seconds + line.seconds_per_unit * sizes[-1] == pytest.approx(seconds[-1], rel=1e-9)
    # of its seconds the largest has a share of latency / seconds; weights 1 / y^2 and factors of 3 make 4 of it at most
    assert 5e-9 * (1 - 4 * latency / seconds[-1]) < line.seconds_per_unit < 5e-9 + latency / sizes[-1] * (1 + 1e-9)


def test_a_line_through_the_messages_of_a_slow_link_has_its_rate() -> None:
    """200 Mbyte/s less 4 % of headers; as timed in the test of a slow link, where squares alone gave 239."""
    sizes = [256.0, 2353.0, 21632.0, 198846.0, 1827861.0, 16802304.0]
    line = straight_line(sizes, [1.72e-3, 2.66e-3, 2.16e-3, 1.46e-3, 11.17e-3, 96.98e-3])
    assert 170e6 < 1 / line.seconds_per_unit < 192e6


def test_neither_part_of_a_line_is_negative_and_one_size_makes_none() -> None:
    line = straight_line([1e3, 1e4, 1e5], [2e-3, 2e-3, 1e-3])
    assert line.seconds_per_unit == 0
    assert line.fixed_seconds == pytest.approx(1e-3 * (0.5 + 0.5 + 1) / (0.25 + 0.25 + 1))
    alike = straight_line([7.0, 1e4, 3e5, 1e9], [1.1e-3] * 4)
    assert (alike.fixed_seconds, alike.units_per_second) == (pytest.approx(1.1e-3), math.inf)
    assert straight_line([1, 2, 3], [1e-6, 3e-6, 5e-6]).fixed_seconds == 0
    with pytest.raises(ValueError, match="two sizes"):
        straight_line([4.0, 4.0], [1.0, 2.0])
