from __future__ import annotations

import math

import pytest

from reference_runs.machine_model import fit_scores
from reference_runs.published import load_table
from reference_runs.published_tables import shipped_tables
from suite.predict.analytic.eager_modules import NO_KEEPING
from suite.predict.machine_model.intervals import peak_error
from suite.predict.validation.measured_peaks import MeasuredPeak, measured_peaks, most_excess, peak_coverage


@pytest.fixture(scope="module")
def peaks() -> list[MeasuredPeak]:
    return [peak for path in shipped_tables() for peak in measured_peaks(load_table(path))]


def test_four_of_five_excesses_are_within_the_most() -> None:
    assert most_excess([MeasuredPeak(8, step / 10) for step in range(11)]) == pytest.approx(0.8)


def test_coverage_is_of_intervals_that_a_number_of_accelerators_had_no_part_in() -> None:
    alike = [MeasuredPeak(number, 0.1) for number in (8, 16, 32)]
    assert peak_coverage(alike) == 100
    assert peak_coverage([*alike, MeasuredPeak(64, 0.2)]) == 75
    assert peak_coverage([*alike, MeasuredPeak(64, -0.1)]) == 75  # no peak is below its tensors


def test_stored_intervals_are_those_of_the_528_published_peaks(peaks: list[MeasuredPeak]) -> None:
    scores = fit_scores()
    assert len(peaks) == 528
    assert scores.peak_excess == pytest.approx(most_excess(peaks), rel=1e-3)
    assert scores.peak_coverage == pytest.approx(peak_coverage(peaks), rel=1e-3)


def test_four_of_five_published_peaks_are_inside_their_interval_and_none_is_below_it(peaks: list[MeasuredPeak]) -> None:
    least, most = peak_error(NO_KEEPING).interval(1.0)
    inside = [least <= math.exp(each.excess) <= most for each in peaks]
    assert 0.79 < sum(inside) / len(inside) < 0.81
    assert all(each.excess >= 0 for each in peaks)
    assert 75 <= peak_coverage(peaks) <= 88
