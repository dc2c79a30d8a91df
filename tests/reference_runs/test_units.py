from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.units import UNITS, in_base_unit, printed, units_of


@pytest.mark.parametrize(
    ("value", "unit", "base", "expected"),
    [
        (25, "MiB", "byte", 26_214_400),
        (59, "GB", "byte", 59_000_000_000),
        (100, "Gbit/s", "byte/s", 12_500_000_000),
        (149.02, "Tflop/s", "flop/s", 149.02e12),
        (1_082_990, "accelerator h", "accelerator s", 3_898_764_000),
        (118, "day", "s", 10_195_200),
        (2048, "sample", "sample", 2048),
    ],
)
def test_published_units_convert_to_base_units(value: float, unit: str, base: str, expected: float) -> None:
    assert in_base_unit(value, unit, base) == expected
    assert type(in_base_unit(value, unit, base)) is type(expected)


@pytest.mark.parametrize("prefix", range(1, 6))
def test_decimal_prefixes_are_powers_of_1000_and_binary_ones_of_1024(prefix: int) -> None:
    letter = "kMGTP"[prefix - 1]
    for unit, base in (("B", "byte"), ("B/s", "byte/s"), ("flop", "flop"), ("flop/s", "flop/s")):
        assert UNITS[f"{letter}{unit}"] == (base, 1000**prefix)
    assert Fraction(UNITS[f"{letter}bit/s"][1]) == Fraction(1000**prefix, 8)
    if letter != "P":
        assert UNITS[f"{letter.upper()}iB"] == ("byte", 1024**prefix)


@given(st.sampled_from(sorted(UNITS)), st.sampled_from(sorted({base for base, _ in UNITS.values()})))
def test_only_units_of_the_same_dimension_convert(unit: str, base: str) -> None:
    if UNITS[unit][0] == base:
        assert in_base_unit(1.5, unit, base) == pytest.approx(1.5 * UNITS[unit][1], rel=1e-15)
        return
    with pytest.raises(ValueError, match="is a unit of") as refusal:
        in_base_unit(1, unit, base)
    assert all(allowed in str(refusal.value) for allowed in units_of(base))


def test_an_unknown_unit_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match="'furlong' is an unknown unit; allowed: byte, "):
        in_base_unit(1, "furlong", "byte")


# up to 10^4, products are exact in a float too: 125e12 (Pbit/s) has 35 significant bits and 10^4 has 14
@given(st.integers(0, 10**4), st.sampled_from(sorted(UNITS)))
def test_an_integer_stays_one_exactly_where_the_product_is_whole(value: int, unit: str) -> None:
    base, factor = UNITS[unit]
    product = in_base_unit(value, unit, base)
    # ms is the one unit whose factor, 1/1000, binary fractions cannot hold
    if unit != "ms":
        assert product == Fraction(factor) * value
        assert isinstance(product, int) == ((Fraction(factor) * value).denominator == 1)


def test_the_base_unit_is_listed_first() -> None:
    for base, _ in UNITS.values():
        assert units_of(base)[0] == base


@given(st.integers(-(10**18), 10**18))
def test_counts_print_in_full(count: int) -> None:
    assert int(printed(count, "1").replace(",", "")) == count


@given(st.floats(1e3, 1e17), st.sampled_from(["byte/s", "flop/s", "flop"]))
def test_rates_print_with_a_prefix_to_four_digits(value: float, unit: str) -> None:
    number, _, prefix = printed(value, unit).partition(" ")
    shown = float(number.replace(",", "")) * 1000 ** " kMGTP".index(prefix or " ")
    # four digits: half a unit of the fourth, relative to a leading digit of at least 1
    assert math.isclose(shown, value, rel_tol=0.5e-3)
