"""A slice's times: medians and spreads of its samples."""

from __future__ import annotations

import math
import statistics

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from suite.job.slice import SlicePart, SliceStage, SliceTimes


def times(samples: list[float]) -> SliceTimes:
    return SliceTimes(seconds={SlicePart.UPDATE: samples}, updated_parameters=1)


@given(st.lists(st.floats(1e-6, 1e3), min_size=4, max_size=30), st.floats(1e-3, 1e3))
def test_the_spread_has_no_unit_and_the_median_the_samples_own(samples, factor):
    scaled = times([factor * sample for sample in samples])
    spread, other = times(samples).spread(SlicePart.UPDATE), scaled.spread(SlicePart.UPDATE)
    assert spread is not None
    assert other is not None
    assert math.isclose(spread, other, rel_tol=1e-9, abs_tol=1e-12)
    median = scaled.median(SlicePart.UPDATE)
    assert median is not None
    assert math.isclose(median, factor * statistics.median(samples), rel_tol=1e-9)


def test_samples_that_are_equal_have_no_spread_and_few_have_none_that_is_known():
    assert times([2.0] * 4).spread(SlicePart.UPDATE) == 0
    assert times([2.0] * 3).spread(SlicePart.UPDATE) is None
    assert times([]).median(SlicePart.LAYER_FORWARD) is None


def test_the_ends_of_the_model_stand_on_the_first_and_the_last_stage():
    ends = {stage: (stage.has_embedding, stage.has_head) for stage in SliceStage}
    assert ends == {
        SliceStage.FIRST: (True, False),
        SliceStage.MIDDLE: (False, False),
        SliceStage.LAST: (False, True),
        SliceStage.ONLY: (True, True),
    }


def test_times_are_read_as_they_were_written():
    written = times([1.0, 2.0])
    assert msgspec.json.decode(msgspec.json.encode(written), type=SliceTimes) == written
