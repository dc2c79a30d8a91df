"""Differences in words: the direction is that of the quantity, the percentage that of the reference."""

from __future__ import annotations

import math

from suite.metrics.difference_words import Direction, difference_in_words, direction, direction_of
from suite.metrics.figures import Quantity


def test_the_direction_of_a_difference_is_the_direction_that_people_name():
    expected = {
        (1.07, 1.0, Quantity.STEP_SECONDS): "7.0 % slower than expected",
        (0.93, 1.0, Quantity.STEP_SECONDS): "7.0 % faster than expected",
        (0.93, 1.0, Quantity.TOKENS_PER_SECOND): "7.0 % slower than expected",
        (1.07, 1.0, Quantity.MODEL_FLOP_PER_SECOND): "7.0 % faster than expected",
        (112, 100, Quantity.PEAK_BYTES): "12.0 % more than expected",
        (88, 100, Quantity.HARDWARE_FLOP): "12.0 % less than expected",
        (4, 3, Quantity.MESSAGES): "33.3 % more than expected",
        (5.05, 5.0, Quantity.FIRST_LOSS): "1.0 % higher than expected",
        (0.24, 0.48, Quantity.MFU): "50.0 % lower than expected",
        (3000.0, 1.0, Quantity.STEP_SECONDS): "299,900.0 % slower than expected",
    }
    assert {of: difference_in_words(*of[:2], direction_of(of[2]), than="expected") for of in expected} == expected


def test_what_rounds_to_nothing_is_as_expected_and_a_reference_of_0_has_no_percentage():
    assert difference_in_words(1.0004, 1.0, Direction.TIME, than="expected") == "as expected"
    assert difference_in_words(0.9996, 1.0, Direction.RATE) == "under 0.1 % slower"
    assert difference_in_words(1.0, 1.0, Direction.RATE) == "equal"
    assert difference_in_words(0.9994, 1.0, Direction.RATE) == "0.1 % slower"
    assert difference_in_words(0, 0, Direction.AMOUNT, than="expected") == "as expected"
    assert difference_in_words(3, 0, Direction.AMOUNT, than="expected") == "more than expected"
    assert difference_in_words(math.nan, 1.0, Direction.TIME) == "not comparable"
    assert direction(2, 2, Direction.TIME) == "equal"


def test_every_quantity_has_the_scale_of_its_kind():
    by_scale = {scale: {q for q in Quantity if direction_of(q) is scale} for scale in Direction}
    assert by_scale[Direction.TIME] == {
        Quantity.STEP_SECONDS,
        Quantity.STEP_SECONDS_AT_CPU_SPEED,
        Quantity.TRAINING_SECONDS,
    }
    assert by_scale[Direction.RATE] == {quantity for quantity in Quantity if quantity.endswith("per_second")}
    assert by_scale[Direction.LEVEL] == {
        *(Quantity.BUBBLE_FRACTION, Quantity.CPU_SLOWDOWN, Quantity.MFU, Quantity.HFU),
        *(Quantity.FIRST_LOSS, Quantity.COST),
    }
