"""Uncertainty of a predicted peak by kind of stack: its 80 % interval, and the probability that it fits.

The logarithm of measured over predicted peak is taken as normal. `refit` calibrates it from published peaks and
recorded launches (suite/predict/validation/measured_peaks.py) and stores it in reference_runs/fit_scores.toml.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from reference_runs.machine_model import fit_scores
from reference_runs.stack import Keeping, Modules

NORMAL_80 = 1.2816  # standard deviations that the middle 80 % of a normal distribution reach
BELOW_75 = 0.6745  # standard deviations above the mean, below which 75 % of a normal distribution lie
FITS_FROM, NOT_BELOW = 0.75, 0.5  # a peak fits from the first probability on, and does not below the second


class PeakKind(enum.StrEnum):
    """Kind of stack that shares an uncertainty of the peak.

    walked: the step is walked through or traced, so that every tensor is known.
    nanotron, torchtitan: formulas of software that published tables measured.
    formula: formulas of all other software.
    """

    WALKED = "walked"
    NANOTRON = "nanotron"
    TORCHTITAN = "torchtitan"
    FORMULA = "formula"


class MemoryVerdict(enum.StrEnum):
    """Whether a peak fits: with a probability of 75 % at least, of 50 % at least, or of less."""

    FITS = "fits"
    LIKELY = "likely to fit"
    NOT = "does not fit"


class Fitting(NamedTuple):
    """Whether a peak fits into the usable memory, as a probability."""

    probability: float

    @property
    def verdict(self) -> MemoryVerdict:
        """The verdict by the thresholds `FITS_FROM` and `NOT_BELOW`."""
        if self.probability >= FITS_FROM:
            return MemoryVerdict.FITS
        return MemoryVerdict.LIKELY if self.probability >= NOT_BELOW else MemoryVerdict.NOT

    @property
    def percent(self) -> str:
        """The probability in whole percent: "87 %", "over 99 %"."""
        percent = 100 * self.probability
        if not 0.5 <= percent <= 99.5:
            return "over 99 %" if percent > 50 else "under 1 %"
        return f"{percent:.0f} %"

    @property
    def words(self) -> str:
        """The verdict with its probability: "fits (87 % likely)", "63 % likely to fit"."""
        if self.verdict is MemoryVerdict.LIKELY:
            return f"{self.percent} {self.verdict}"
        return f"{self.verdict} ({self.percent} likely{'' if self.verdict is MemoryVerdict.FITS else ' to'})"


class PeakUncertainty(NamedTuple):
    """Distribution of measured peaks around the predicted one.

    Args:
        spread: standard deviation of the logarithm of measured over predicted peak.
    """

    spread: float

    def interval(self, peak: float) -> tuple[float, float]:
        """Least and most bytes of 80 % of the measured peaks where so many are predicted."""
        factor = math.exp(NORMAL_80 * self.spread)
        return peak / factor, peak * factor

    def fitting(self, peak: float, usable: float) -> Fitting:
        """Whether a predicted peak of so many bytes fits into so many usable ones; into none it does not."""
        if usable <= 0:
            return Fitting(0.0)
        return Fitting(math.erfc(math.log(peak / usable) / (math.sqrt(2) * self.spread)) / 2)

    def room(self, usable: float) -> float:
        """Bytes of the largest predicted peak that fits into so many usable ones."""
        return usable * math.exp(-BELOW_75 * self.spread)


def peak_kind(keeping: Keeping) -> PeakKind:
    """The kind of a stack, by how it executes modules."""
    if keeping.walked:
        return PeakKind.WALKED
    if keeping.titan:
        return PeakKind.TORCHTITAN
    return PeakKind.NANOTRON if keeping.modules is Modules.NANOTRON else PeakKind.FORMULA


def peak_uncertainty(kind: PeakKind) -> PeakUncertainty:
    """The calibrated uncertainty of a kind, from the chosen edition."""
    return PeakUncertainty(fit_scores().peaks[kind].spread)
