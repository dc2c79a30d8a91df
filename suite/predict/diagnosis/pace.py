"""How long the steps of a log take: the usual one, the spread, a drift, and stalls."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from reference_runs.errors import InputError
from reference_runs.training_logs.training_log import PrintedStep, TrainingLog

WARM_UP = 3  # steps that are left out where there are twice as many: compilation, first batches, asynchronous dispatch
STALL = 1.5  # times the median: a step that takes longer is a stall
MOST_STALLED = 0.25  # of the steps; more are another pace
BEYOND_SPREAD = 0.9  # of the distance of the quartiles: a smaller change is noise
DRIFT = 0.1  # of the median from the first tenth to the last: less is no trend
_STAMPED = "step times are those between the stamps of the lines, with all that happens between two steps"
FEWEST_STALLS = 2  # a single one, of whatever length, is no pace of the run
_BEAT = 0.25  # of the longest stall or pause: shorter ones come in between and have no part in a rhythm
_ENOUGH = 10  # steps to see a trend or a rhythm in
_LEAST_PAUSE_SECONDS = 2.0  # in all: stamps may have whole seconds


class Pauses(msgspec.Struct, frozen=True):
    """Time between the steps, which the framework does not time, by the stamps of its lines.

    Args:
        seconds: of a step, on average.
        rhythm: steps from one pause to the next, if the time lies in a few that are equally far apart.
    """

    seconds: float
    rhythm: int | None


class Pace(msgspec.Struct, frozen=True):
    """Seconds of the steps without the first ones.

    Args:
        seconds: the median.
        low: the first quartile.
        high: the third.
        steps: how many.
        warm_up: how many first ones were left out.
        drift: median of the last third over that of the first, less 1; 0 within the spread; None: too few steps.
        stalls: how many took longer than STALL times the median.
        stalled_seconds: by which stalls make the mean step longer than the median.
        rhythm: steps from stall to stall, where that is always alike.
        pauses: None: the lines have no stamps, or their steps fill the time between them.
    """

    seconds: float
    low: float
    high: float
    steps: int
    warm_up: int = 0
    drift: float | None = None
    stalls: int = 0
    stalled_seconds: float = 0.0
    rhythm: int | None = None
    pauses: Pauses | None = None


def step_seconds(
    log: TrainingLog, *, tokens: float | None, gpus: int | None, micro_batches: int | None
) -> list[PrintedStep]:
    """The log's steps with a time, each with `seconds` of one whole step.

    Where no time is printed it follows, in this order: from the rate of steps, from tokens of a step and their rate,
    from samples and theirs, from stamps of lines: then the log gets a note.

    Args:
        tokens: of a step, over all ranks; None: not known.
        micro_batches: of a step and rank, where the log times single ones.

    Raises:
        InputError: no step has a time, or what it takes to compute one is not known.
    """
    timed, stamped = [], False
    backwards = sum(bool(a.stamp and b.stamp and b.stamp < a.stamp) for a, b in pairwise(log.steps))
    before: PrintedStep | None = None
    for step in log.steps:
        seconds = step.seconds
        if seconds is not None and log.format.of_micro_batch:
            seconds = seconds * (micro_batches or 1)
        if seconds is None:
            seconds = _from_rates(step, tokens, gpus)
        if seconds is None and before is not None:
            seconds = _between(before, step)
            stamped |= seconds is not None
        before = step
        if seconds is not None and 0 < seconds < float("inf"):
            timed.append(PrintedStep(number=step.number, seconds=seconds, stamp=step.stamp))
    if timed:
        log.notes.extend([_STAMPED] if stamped else [])
        log.notes.extend([f"the time runs backwards at {backwards} of {len(log.steps)} steps"] if backwards else [])
        return timed
    what = "the time runs backwards" if backwards else "no step has a time"
    allowed = "a log with times, or --run, --batch, --sequence and --gpus, which make times of rates"
    raise InputError(what, allowed=allowed, where=log.where)


def _from_rates(step: PrintedStep, tokens: float | None, gpus: int | None) -> float | None:
    if rate := step.batches_per_second or step.steps_per_second:
        return 1 / rate
    if tokens and step.tokens_per_second:
        return tokens / step.tokens_per_second
    if tokens and gpus and step.device_tokens_per_second:
        return tokens / gpus / step.device_tokens_per_second
    if step.samples and step.samples_per_second:
        return step.samples / step.samples_per_second
    return None


def _between(before: PrintedStep, step: PrintedStep) -> float | None:
    """Seconds of a step by the stamps of two lines; None: one lacks its stamp or number, or time runs backwards."""
    if before.stamp is None or step.stamp is None or before.number is None or step.number is None:
        return None
    steps = step.number - before.number
    return (step.stamp - before.stamp) / steps if steps > 0 and step.stamp > before.stamp else None


def pace(steps: Sequence[PrintedStep], *, warm_up: int = WARM_UP) -> Pace:
    """The pace of steps with times, without the first `warm_up` where there are twice as many."""
    seconds = [step.seconds for step in steps if step.seconds]
    skipped = min(warm_up, len(seconds) // 2) if len(seconds) > 2 else 0
    kept, kept_steps = seconds[skipped:], list(steps)[skipped:]
    median = statistics.median(kept)
    low, _, high = statistics.quantiles(kept, n=4, method="inclusive") if len(kept) > 1 else (median, median, median)
    slow = [number for number, each in enumerate(kept) if each > STALL * median]
    slow = slow if FEWEST_STALLS <= len(slow) <= MOST_STALLED * len(kept) else []
    ordinary = [each for each in kept if each <= STALL * median]
    lost = statistics.fmean(kept) - statistics.fmean(ordinary) if slow and ordinary else 0.0
    drift = None
    if len(ordinary) >= _ENOUGH:
        third = len(ordinary) // 3
        early, late = statistics.median(ordinary[:third]), statistics.median(ordinary[-third:])
        drift = late / early - 1 if abs(late - early) >= BEYOND_SPREAD * (high - low) else 0.0
    beats = [place for place in slow if kept[place] - median > _BEAT * (max(kept) - median)]
    rhythm = _rhythm(kept_steps, beats)
    return Pace(median, low, high, len(kept), skipped, drift, len(slow), lost, rhythm, _pauses(kept_steps))


def _pauses(steps: Sequence[PrintedStep]) -> Pauses | None:
    pauses, count = list[float](), 0.0
    for before, step in pairwise(steps):
        if not (before.stamp and step.stamp and step.seconds and before.number is not None and step.number is not None):
            return None
        count += step.number - before.number
        pauses.append(step.stamp - before.stamp - (step.number - before.number) * step.seconds)
    whole = sum(pauses)
    if whole < _LEAST_PAUSE_SECONDS or count <= 0:
        return None
    beats = [place + 1 for place, each in enumerate(pauses) if each > _BEAT * max(pauses)]
    return Pauses(whole / count, _rhythm(steps, beats) if len(beats) <= MOST_STALLED * len(pauses) else None)


def _rhythm(steps: Sequence[PrintedStep], slow: Sequence[int]) -> int | None:
    """Steps from stall to stall, where three or more are equally far apart; steps in a row are one stall."""
    numbers = [steps[place].number for place in slow if place - 1 not in slow]
    gaps = {b - a for a, b in pairwise(numbers) if a is not None and b is not None}
    return int(gaps.pop()) if len(gaps) == 1 and len(numbers) > 2 else None  # a rhythm is of three beats
