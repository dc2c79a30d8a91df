"""Progress bars of tqdm: steps done and whole seconds since the start; of a training, an evaluation, a checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

LONG_STEP_SECONDS, STRETCH_SECONDS = 3.0, 10.0  # of bars, which have whole seconds
_BAR = re.compile(
    r"(?P<done>\d{1,12})/(?P<all>\d{1,12}) \[(?P<elapsed>[\d:]{1,20})<"
    r"(?:[\d:]+|\?)(?: days?, [\d:]+)?, +[\d.]+(?:s/it|it/s)"
)


class ProgressBars:
    """States of the bars in a log, a series for each number of steps in all; rates are smoothed, and not read."""

    def __init__(self) -> None:
        self._states: dict[int, list[tuple[int, float]]] = {}
        self._followed: Counter[int] = Counter()
        self._last = 0
        self.are_lightnings = False

    def take(self, line: str) -> None:
        """Read the bars in a line."""
        self.are_lightnings |= line.startswith("Epoch ")
        for match in _BAR.finditer(line):
            done, elapsed = int(match["done"]), _clock_seconds(match["elapsed"])
            self._last = int(match["all"])
            states = self._states.setdefault(self._last, [])
            if done > (states[-1][0] if states else 0):
                states.append((done, elapsed))

    def step_is_said(self) -> int | None:
        """Note that a line on a training step follows the last bar; the step that this bar has."""
        states = self._states.get(self._last)
        if not states:
            return None
        self._followed[self._last] += 1
        return states[-1][0]

    def training(self, steps: int | None) -> list[tuple[int, float]]:
        """States of the training's bar: of so many steps, or which most lines on steps follow, or the longest."""
        known = {count: states for count, states in self._states.items() if states}
        if not known:
            return []
        if steps in known:
            return known[steps]
        return known[max(known, key=lambda count: (self._followed[count], known[count][-1][1]))]


def times_of_states(states: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Number and seconds of each step between the first state and the last.

    The steps of ten seconds or more have their mean, but one of three or more its own.
    """
    if len(states) == 1:
        states = [(0, 0.0), *states]
    times: list[tuple[int, float]] = []
    (first, begun), rest = states[0], states[1:]
    previous, before = first, begun
    for place, (done, elapsed) in enumerate(rest):
        alone = elapsed - before >= LONG_STEP_SECONDS
        if alone and before > begun:
            times += mean_times(first, previous, before - begun)
            first, begun = previous, before
        if alone or elapsed - begun >= STRETCH_SECONDS or (place == len(rest) - 1 and elapsed > begun and not times):
            times += mean_times(first, done, elapsed - begun)
            first, begun = done, elapsed
        previous, before = done, elapsed
    return times


def mean_times(first: int, last: int, seconds: float) -> list[tuple[int, float]]:
    """Steps after `first` up to `last`, each with the mean time."""
    return [(each, seconds / (last - first)) for each in range(first + 1, last + 1)]


def has_stall(states: list[tuple[int, float]]) -> bool:
    """Whether a step between two states took far longer than the mean, which times of several steps would hide."""
    if not states:
        return False
    usual = states[-1][1] / states[-1][0]
    steps = [(elapsed - before) / (done - first) for (first, before), (done, elapsed) in pairwise(states)]
    return any(seconds > max(LONG_STEP_SECONDS, 3 * usual) for seconds in steps)


def _clock_seconds(text: str) -> float:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return float(seconds)
