"""The search among layouts whose memory is known by a walk through the step alone, which takes 10 to 500 ms each.

A formula says which layouts are worth it, a walk through few layers which have no room. The fastest of the others are
walked through until enough fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from reference_runs.run import Workload
from suite.predict.plan.question import Question
from suite.predict.recorded_run.sweep import layout_peak, least_layout_peak

WORTH_IT = 0.7  # of the formula's peak: what is walked through holds more (tests/predict/plan/test_walked_search.py)
MOST_WALKS = 400  # layouts, of a search
_LEAST = 8  # layouts by the formula, of the question which needs least memory


class Walks:
    """Walks through layouts of a question, and remembers which have no room.

    Attributes:
        fitting: layouts that fit; `refused` those that do not. Those that are not executed count as neither.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._too_large: dict[Layout, float] = {}
        self.fitting = self.refused = 0

    def those_that_fit(self, layouts: Iterable[Layout]) -> Iterator[Layout]:
        """Layouts that fit, in their order, until `MOST_WALKS` had been looked at."""
        for layout in layouts:
            if self._fits(layout):
                yield layout
            if self.fitting + self.refused >= MOST_WALKS:
                return

    def least(self, layouts: Iterable[Layout]) -> Layout | None:
        """The layout of the least peak, of the first `_LEAST` that are executed."""
        question = self._question
        executed = ((self._least_peak(layout), number, layout) for number, layout in enumerate(layouts))
        known = islice((each for each in executed if each[0] is not None), _LEAST)
        by_bound = sorted(known, key=lambda each: (each[0] or 0, each[1]))
        best: tuple[float, Layout] | None = None
        for bound, _, layout in by_bound:
            if best is not None and (bound or 0) >= best[0]:
                break
            peak = layout_peak(self._workload(layout), question.machine)
            if best is None or peak < best[0]:
                best = peak, layout
        return best[1] if best else None

    def _fits(self, layout: Layout) -> bool:
        """Whether the layout has room; not walked through where a smaller micro-batch had none."""
        alike, room = msgspec.structs.replace(layout, micro_batch=1), self._question.memory_bytes
        if layout.micro_batch < self._too_large.get(alike, float("inf")):
            bound = self._least_peak(layout)
            if bound is None:
                return False
            if bound <= room and layout_peak(self._workload(layout), self._question.machine) <= room:
                self.fitting += 1
                return True
            self._too_large[alike] = layout.micro_batch
        self.refused += 1
        return False

    def _least_peak(self, layout: Layout) -> float | None:
        """Bytes that the layout's peak has at least; None where it is not executed."""
        try:
            return least_layout_peak(self._workload(layout), self._question.machine)
        except InputError:
            return None

    def _workload(self, layout: Layout) -> Workload:
        return Workload(self._question.architecture, self._question.recipe, layout)
