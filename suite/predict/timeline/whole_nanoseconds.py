"""A rank's step in whole nanoseconds, which Perfetto's clock counts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

from suite.predict.timeline.rank_timeline import StepSpan

NANOSECONDS = 1e9


class WholeNanoseconds:
    """Nanoseconds since the step began at which its spans begin and end.

    Perfetto rounds starts and durations each by itself, and drops a slice that this makes overlap the one before it.
    Here a span that is not hidden ends where the next one begins, and the durations of a term's spans are differences
    of rounded sums: together they are within half a nanosecond of the term.

    Args:
        spans: of a rank; those that are not hidden follow one another from 0 to the end of the step.
    """

    def __init__(self, spans: Sequence[StepSpan]) -> None:
        self._starts: list[float] = []
        self._ticks = [0]
        seconds: defaultdict[str, float] = defaultdict(float)
        given: Counter[str] = Counter()
        for span in sorted((span for span in spans if not span.hidden), key=lambda span: span.start):
            seconds[span.term] += span.seconds
            lasts = round(seconds[span.term] * NANOSECONDS) - given[span.term]
            given[span.term] += lasts
            self._starts.append(span.start)
            self._ticks.append(self._ticks[-1] + lasts)

    def at(self, seconds: float) -> int:
        """The nanosecond of a time: exact where a span begins, between them at most that where the next one begins."""
        number = bisect_right(self._starts, seconds) - 1
        since = round((seconds - self._starts[number]) * NANOSECONDS)
        return min(self._ticks[number] + since, self._ticks[number + 1])
