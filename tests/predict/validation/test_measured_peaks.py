from __future__ import annotations

import math

import pytest
from scipy.stats import t as student

from reference_runs.machine_model import edition_files, editions, fit_scores
from suite.commands.refit import launched_peaks, published_peaks
from suite.predict.analytic.memory_uncertainty import NORMAL_80, PeakKind
from suite.predict.validation.measured_peaks import MeasuredPeak, calibrated, inside, peak_coverage


@pytest.fixture(scope="module")
def peaks() -> list[MeasuredPeak]:
    return published_peaks()


def made(kind: PeakKind, *excesses: float, first: int = 8) -> list[MeasuredPeak]:
    """Peaks with such excesses, each on twice as many accelerators as the one before."""
    return [MeasuredPeak(kind, first * 2**number, excess) for number, excess in enumerate(excesses)]


def test_stored_uncertainties_are_those_of_the_546_published_peaks_and_5_launches(peaks: list[MeasuredPeak]) -> None:
    launched = launched_peaks()
    assert (len(peaks), len(launched)) == (546, 5)
    found = calibrated([*peaks, *launched])
    for name in editions():
        scores = fit_scores(edition_files(None if name == editions()[-1] else name).scores)
        assert set(scores.peaks) == set(found) == {kind.value for kind in PeakKind}
        for kind, stored in scores.peaks.items():
            assert stored.rows == found[kind].rows, kind
            assert stored.spread == pytest.approx(found[kind].spread, rel=1e-3), kind
        assert scores.peak_coverage == pytest.approx(peak_coverage(peaks), rel=1e-3)


def test_80_percent_intervals_hold_75_to_88_percent_of_published_peaks(peaks: list[MeasuredPeak]) -> None:
    assert len(peaks) >= 40
    assert 75 <= 100 * inside(peaks) / len(peaks) <= 88
    assert 75 <= peak_coverage(peaks) <= 88


@pytest.mark.parametrize("rows", [5, 6, 10, 20, 100])
def test_few_rows_widen_the_interval_as_student_s_t_does_and_at_most_3_percent_more(rows: int) -> None:
    peaks = [MeasuredPeak(PeakKind.TORCHTITAN, 8, 0.1 * (-1) ** number) for number in range(rows)]
    spread = calibrated(peaks)["torchtitan"].spread
    wider = NORMAL_80 * spread / 0.1
    assert 1 <= wider / (student.ppf(0.9, rows) / NORMAL_80) < 1.03


def test_a_kind_that_nobody_measured_has_the_spread_of_all_formulas_which_weigh_alike() -> None:
    many = made(PeakKind.NANOTRON, 0.3, 0.4, 0.35, 0.3, 0.4)
    few, launched = made(PeakKind.FORMULA, 0.1), made(PeakKind.WALKED, 0.01)
    mean_square = sum(each.excess**2 for each in many) / len(many)
    found = calibrated([*many, *few, *launched])
    for kind in ("formula", "torchtitan", "walked"):
        assert found[kind].spread == pytest.approx(math.sqrt((mean_square + 0.1**2) / 2))
    assert [found[kind].rows for kind in ("formula", "torchtitan", "walked")] == [1, 0, 1]


def test_coverage_is_of_intervals_that_a_number_of_accelerators_had_no_part_in() -> None:
    alike = made(PeakKind.NANOTRON, *(6 * (0.29, 0.31)))
    assert peak_coverage(alike) == 100
    assert peak_coverage([*alike, *made(PeakKind.NANOTRON, 0.6, first=2**20)]) == pytest.approx(100 * 12 / 13)
