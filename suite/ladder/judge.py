"""Judges a rung's promises by its measurement: memory, losses, gain; and finds gains that do not add up."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from suite.ladder.measurement import RungMeasurement, RungPrediction
from suite.ladder.rung import Promise, Rung, Track
from suite.metrics.difference_words import Direction, difference_in_words
from suite.metrics.launch_statistics import moderated_deviation

PEAK_TOLERANCE = 0.05
GPU_GAIN_TOLERANCE = 0.15
ORDER_OF_SIZE = math.sqrt(10)  # factor up to which a gain has the predicted order: the same power of ten, rounded
# Standard deviation over mean of the median step between launches of one rung, before any were seen: 7 rungs launched
# twice, an hour apart (2 cores of an AMD EPYC, shared; 2026-11-22)
LAUNCH_VARIATION = 0.05
# Assumed, for want of a GPU to measure on: kernels on a device that nobody shares, whose clock follows its temperature.
# If it is too high, single launches show fewer gains; if too low, they judge too much. Repeated launches measure it
GPU_LAUNCH_VARIATION = 0.01
ASSUMED_LAUNCHES = 2  # degrees of freedom of that assumption: it counts as much as three launches
UNORDERED = "training is not deterministic there"
NONE_PREDICTED = "predicted none, measured more than noise"
# of the peak: predictions of single peaks are that good (tolerance of `peak_bytes`, docs/predictions.md), and no better
LEAST_MEMORY_GAIN = 0.01


class Mark(enum.StrEnum):
    """Verdict on one promise."""

    PASS = "pass"
    FAIL = "fail"
    SHOWN = "shown"
    INCONCLUSIVE = "inconclusive"


class PromiseCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of a rung: which, whether it was kept, and in words what was measured."""

    name: str
    mark: Mark
    says: str


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the peak, or seconds a token, that a rung takes off; negative where it adds.

    Args:
        predicted: None where it is not.
        noise: below which a difference says nothing.
    """

    predicted: float | None
    measured: float
    noise: float

    @property
    def is_lost(self) -> bool:
        """Whether a predicted gain did not come: with all noise in its favour it is less than the order of size."""
        if self.predicted is None or self.predicted <= self.noise:
            return False
        return self.measured + self.noise < self.predicted / ORDER_OF_SIZE


def cost(track: Track, measurement: RungMeasurement) -> float:
    """Cost that a track reduces: bytes of the peak, or seconds a token."""
    return measurement.peak_bytes if track is Track.MEMORY else measurement.token_seconds


def expected_cost(track: Track, prediction: RungPrediction, *, tokens: int) -> float | None:
    """The same as predicted."""
    if track is Track.MEMORY:
        return prediction.peak_bytes
    return None if prediction.step_seconds is None else prediction.step_seconds / tokens


def noise(track: Track, measurements: Sequence[RungMeasurement], *, gpu: bool) -> float:
    """Difference that measurements have without a reason.

    Bytes: 1 % of the larger peak. Seconds a token, of n launches with s half the spread of their steps, t the median
    one, and v the variation between launches: the root of the sum of squares of s and of t v / sqrt(n), of every
    measurement.
    """
    if track is Track.MEMORY:
        return LEAST_MEMORY_GAIN * max(measurement.peak_bytes for measurement in measurements)
    assumed = GPU_LAUNCH_VARIATION if gpu else LAUNCH_VARIATION
    parts: list[float] = []
    for measurement in measurements:
        between = launch_variation(measurement.launch_seconds, assumed=assumed) * measurement.token_seconds
        parts += [measurement.spread_seconds / measurement.tokens, between / math.sqrt(measurement.launches)]
    return math.hypot(*parts)


def launch_variation(seconds: Sequence[float], *, assumed: float) -> float:
    """Standard deviation of the logarithm of what launches of one rung take.

    One launch has the assumed one; nine have four fifths of their own variance. That the prior has 2 degrees of freedom
    is our choice.
    """
    return moderated_deviation(seconds, prior_variance=assumed**2, degrees=ASSUMED_LAUNCHES)


def gain(
    track: Track,
    *,
    below: tuple[RungPrediction, RungMeasurement],
    here: tuple[RungPrediction, RungMeasurement],
    gpu: bool = False,
) -> Gain:
    """Gain of a rung over the one below it."""
    before, after = (
        expected_cost(track, prediction, tokens=measurement.tokens) for prediction, measurement in (below, here)
    )
    return Gain(
        predicted=None if before is None or after is None else before - after,
        measured=cost(track, below[1]) - cost(track, here[1]),
        noise=noise(track, [below[1], here[1]], gpu=gpu),
    )


def peak_check(prediction: RungPrediction, measurement: RungMeasurement) -> PromiseCheck:
    """Whether the predicted peak is within 5 % of the measured one; and what a rank that is not judged has."""
    if prediction.peak_bytes is None:
        return PromiseCheck(name="peak", mark=Mark.SHOWN, says="the peak is not predicted")
    error = prediction.peak_bytes / measurement.peak_bytes - 1
    mark = Mark.PASS if abs(error) <= PEAK_TOLERANCE else Mark.FAIL
    apart = difference_in_words(measurement.peak_bytes, prediction.peak_bytes, Direction.AMOUNT, than="predicted")
    others = ""
    if abs(prediction.peak_bytes / measurement.largest_peak_bytes - 1) > PEAK_TOLERANCE >= abs(error):
        more = difference_in_words(
            measurement.largest_peak_bytes, measurement.peak_bytes, Direction.AMOUNT, than="that"
        )
        others = f" on the median rank; one has {more}, gloo's messages perhaps: not judged"
    return PromiseCheck(name="peak", mark=mark, says=f"{apart}{others}")


def repeats_check(measurement: RungMeasurement, *, gpu: bool) -> PromiseCheck | None:
    """Reports that launches of one seed have different losses; None where they have the same.

    On a GPU that fails nothing: sums are added in any order there, and runs do not ask for deterministic algorithms.
    """
    if not measurement.repeats_differ:
        return None
    says = "launches of one seed have different losses"
    if gpu:
        return PromiseCheck(name="repeats", mark=Mark.SHOWN, says=f"{says}: {UNORDERED}")
    return PromiseCheck(name="repeats", mark=Mark.FAIL, says=says)


def loss_check(
    rung: Rung, measurement: RungMeasurement, below: RungMeasurement, *, rounding: float = 0.0
) -> PromiseCheck:
    """Whether the losses are what the rung promises, compared with those of the rung below.

    Args:
        rounding: up to which losses that are promised to be equal may differ, relative: 0 where training is
            deterministic, see `suite.ladder.rung.rounding_of` for the others.
    """
    if rung.promise is Promise.CHANGED:
        return PromiseCheck(name="loss", mark=Mark.SHOWN, says=f"changed: {rung.loss}")
    pairs = list(zip(measurement.losses, below.losses, strict=True))
    most = max(_relative_difference(ours, theirs) for ours, theirs in pairs)
    if rung.promise is Promise.EQUAL:
        unlike = sum(ours != theirs for ours, theirs in pairs)
        says = "equal" if not unlike else f"{unlike} of {len(pairs)} steps differ, by up to {most:.1e}"
        if unlike and rounding:
            says += f", of {rounding:.1e}: {UNORDERED}"
        return PromiseCheck(name="loss", mark=Mark.FAIL if most > rounding else Mark.PASS, says=says)
    mark = Mark.PASS if most <= rung.bound else Mark.FAIL
    return PromiseCheck(name="loss", mark=mark, says=f"within {most:.1e} of {rung.bound:.1e}")


def _relative_difference(value: float, of: float) -> float:
    if value == of:
        return 0.0
    return abs(value / of - 1) if of else math.inf


def gain_check(gain: Gain, *, gpu: bool, ablated: bool, unknown: str = "") -> PromiseCheck:
    """Whether a gain has the predicted sign and order of size; on a GPU, whether it is within 15 %.

    Every measured value up to noise away from the measured one counts: the gain is as predicted where one of them is.

    Args:
        ablated: whether the rung's optimisation was left out on purpose: what then fails is noticed, and what does not
            is inconclusive.
        unknown: why nothing is predicted.
    """
    check = _gain_check(gain, gpu=gpu, unknown=unknown)
    if not ablated:
        return check
    if check.mark is Mark.FAIL:
        return PromiseCheck(name="gain", mark=Mark.FAIL, says=f"{check.says}: ablated")
    why = "its gain is within noise, cannot be seen; --repeat"
    if gain.predicted is None:
        why = f"its gain is {check.says}"
    elif check.mark is Mark.PASS:
        why = f"its gain came all the same, {check.says}"
    return PromiseCheck(name="gain", mark=Mark.INCONCLUSIVE, says=f"ablated: {why}")


def _gain_check(gain: Gain, *, gpu: bool, unknown: str) -> PromiseCheck:
    """The first rule that holds."""
    predicted, measured, noise = gain.predicted, gain.measured, gain.noise
    if predicted is None:
        return PromiseCheck(name="gain", mark=Mark.SHOWN, says=f"not predicted: {unknown}")
    least, most = (1 - GPU_GAIN_TOLERANCE, 1 + GPU_GAIN_TOLERANCE) if gpu else (1 / ORDER_OF_SIZE, ORDER_OF_SIZE)
    low, ratio, high = sorted((measured + n) / predicted if predicted else math.inf for n in (-noise, 0.0, noise))
    outside = high < least or low > most
    share = f"{ratio:.2f} of the predicted"
    rules = (
        (gain.is_lost, Mark.FAIL, "gain lost"),
        (max(abs(predicted), abs(measured)) <= noise, Mark.SHOWN, "none, within noise"),
        (outside and abs(predicted) <= noise, Mark.FAIL, NONE_PREDICTED),
        (outside, Mark.FAIL, share if ratio > 0 else "the opposite of the predicted"),
        (abs(measured) <= noise, Mark.SHOWN, f"{share}, within noise: --repeat decides"),
        (True, Mark.PASS, share),
    )
    mark, says = next((mark, says) for holds, mark, says in rules if holds)
    return PromiseCheck(name="gain", mark=mark, says=says)


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """The worth of a rung at the top of its track, compared with its gain over the rung below it.

    Args:
        in_track: its gain over the rung below it; at_top: what the top loses without it.
    """

    rung: str
    in_track: float
    at_top: float
    noise: float

    @property
    def within_noise(self) -> bool:
        """Whether neither is more than noise, so that nothing can be said of them."""
        return max(abs(self.in_track), abs(self.at_top)) <= self.noise

    @property
    def adds_up(self) -> bool:
        """Whether one is more than noise, and both are the same but for noise."""
        return not self.within_noise and abs(self.in_track - self.at_top) <= self.noise

    @property
    def says(self) -> str:
        """Both together, in words."""
        if self.within_noise:
            return "within noise"
        if self.adds_up:
            return "adds up"
        return f"interacts: worth {'more' if self.at_top > self.in_track else 'less'} at the top"
