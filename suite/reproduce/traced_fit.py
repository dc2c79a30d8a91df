"""Which layouts of data-parallel ranks hold a traced model, with how large micro-batches, and which is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from suite.job.trace_job import StepTrace, TraceJob
from suite.predict.traced_run.prediction import TracedPrediction, traced_prediction
from suite.reproduce.traced import traced

LARGEST_MICRO_BATCH = 2**12
MOST_RANKS = 2**12
USUAL_NODE = 8  # accelerators, where the network between nodes is not known

Tracer = Callable[[Sequence[TraceJob]], list[StepTrace]]
Size = int | Fraction


class TracedQuestion(NamedTuple):
    """A question of whether a traced model fits.

    Args:
        layouts: a step of one micro-batch of one sample in each layout, of the same model and number of ranks.
        on: accelerator.
        batch: samples of a step, over all ranks; None: a micro-batch of each rank.
        micro_batch: samples that each micro-batch has; None: the largest that fit are searched.
        sharded: the layout that may have more ranks where none fits; None: none may.
    """

    layouts: tuple[TraceJob, ...]
    on: str
    network_bytes_per_second: float | None
    batch: int | None = None
    micro_batch: int | None = None
    sharded: TraceJob | None = None

    @property
    def ranks(self) -> int:
        """Accelerators."""
        return self.layouts[0].ranks


class TracedFit(NamedTuple):
    """Whether a traced model fits.

    Args:
        steps: every step on the question's own accelerators that was traced for it.
        fastest: of those that fit, by tokens a second; None: none fits.
        smallest: of the least peak.
        largest: of the largest micro-batch that fits; None where none does, or one was asked for.
        enough: on the fewest accelerators that would do; None: it fits as it is, or no number does.
        traces: how many steps were traced.
    """

    question: TracedQuestion
    steps: tuple[TracedPrediction, ...]
    fastest: TracedPrediction | None
    smallest: TracedPrediction
    largest: TracedPrediction | None
    enough: TracedPrediction | None
    traces: int

    @property
    def of_layouts(self) -> list[TracedPrediction]:
        """A step of each layout: its fastest that fits, or its smallest."""
        found: dict[TraceJob, TracedPrediction] = {}
        for step in self.steps:
            layout = _layout(step.job)
            found[layout] = max(found.get(layout, step), step, key=_preferred)
        return list(found.values())


def fits(step: TracedPrediction) -> bool:
    """Whether a step fits into the usable memory."""
    return step.trace.peak_bytes <= step.room


class Bracket:
    """The largest of some sizes whose peak is within a limit, found by as few traces as bounds allow.

    Every tensor has a + b m bytes in micro-batches of m samples, and the peak is the largest of their sums over the
    moments of a step: convex, and linear in pieces. So the line through two peaks is below the peak outside of them,
    and above it between them. A size is proposed until one is within the limit, and the next larger one is not:
    because it was traced, or because the line through two smaller ones is beyond the limit there. With the inverse of
    a number of ranks for m the same holds of shards.

    Args:
        sizes: that are allowed, ascending.
        limit: bytes.
        peaks: bytes by size, of those that were traced; more may be put in.
    """

    def __init__(self, sizes: Sequence[Size], limit: float, peaks: Mapping[Size, int]) -> None:
        self._sizes = sizes
        self._limit = limit
        self.peaks = dict(peaks)

    @property
    def largest(self) -> Size | None:
        """The largest size that was traced and is within the limit."""
        return max((size for size, peak in self.peaks.items() if peak <= self._limit), default=None)

    def proposed(self) -> Size | None:
        """The size to trace next; None: `largest` is the answer."""
        low = self.largest
        if low is None:
            return None
        high = min((size for size, peak in self.peaks.items() if peak > self._limit), default=None)
        left = [size for size in self._sizes if size > low and (high is None or size < high)]
        below = max((size for size in self.peaks if size < low), default=None)
        if below is not None:
            left = [size for size in left if self._line(below, low, size) <= self._limit]
        if not left:
            return None
        if high is None:
            return left[0] if below is None else left[-1]
        certain = [size for size in left if self._line(low, high, size) <= self._limit]
        return certain[-1] if certain else left[0]

    def _line(self, one: Size, other: Size, size: Size) -> Fraction:
        slope = Fraction(self.peaks[other] - self.peaks[one]) / (other - one)
        return self.peaks[one] + slope * (size - one)


def traced_fit(question: TracedQuestion, tracer: Tracer = traced) -> TracedFit:
    """All that the question of whether a traced model fits is asked for.

    Raises:
        InputError: a model cannot be traced, or no such accelerator.
        TraceError: a trace ended without an answer.
    """
    search = _TraceSearch(question, tracer)
    search.grow(question.layouts, doubling=question.batch is None)
    largest = search.largest()
    if largest is not None and question.batch is None:
        search.grow([each for each in question.layouts if _layout(each) == _layout(largest.job)], doubling=False)
        largest = search.largest()
    steps = tuple(search.found.values())
    fitting = [step for step in steps if fits(step)]
    enough = None if fitting else search.enough()
    return TracedFit(
        question=question,
        steps=steps,
        fastest=max(fitting, key=_preferred, default=None),
        smallest=min(steps, key=lambda step: step.trace.peak_bytes),
        largest=None if question.micro_batch else largest,
        enough=enough,
        traces=search.traces,
    )


class _TraceSearch:
    """Traces that were made, and which are made next."""

    def __init__(self, question: TracedQuestion, tracer: Tracer) -> None:
        self._question = question
        self._tracer = tracer
        self._brackets: dict[TraceJob, Bracket] = {}
        self.found: dict[TraceJob, TracedPrediction] = {}
        self.traces = 0

    def largest(self) -> TracedPrediction | None:
        """The step of the largest micro-batch that fits; of several the one of the least peak."""
        fitting = [step for step in self.found.values() if fits(step)]
        return max(fitting, key=lambda step: (step.job.micro_batch, -step.trace.peak_bytes), default=None)

    def grow(self, layouts: Sequence[TraceJob], *, doubling: bool) -> None:
        """Trace each layout until the largest micro-batch that fits is known: those of all layouts side by side."""
        sizes = self._sizes(doubling=doubling)
        self._trace(self._sized(layout, sizes[0]) for layout in layouts)
        brackets = {}
        for layout in layouts:
            of_layout = [step for job, step in self.found.items() if _layout(job) == _layout(layout)]
            peaks: dict[Size, int] = {step.job.micro_batch: step.trace.peak_bytes for step in of_layout}
            brackets[layout] = Bracket(sizes, of_layout[0].room, peaks)
        while True:
            proposed = {layout: bracket.proposed() for layout, bracket in brackets.items()}
            jobs = {layout: self._sized(layout, int(size)) for layout, size in proposed.items() if size is not None}
            if not jobs:
                return
            self._trace(jobs.values())
            for layout, job in jobs.items():
                brackets[layout].peaks[job.micro_batch] = self.found[job].trace.peak_bytes

    def enough(self) -> TracedPrediction | None:
        """The sharded layout on the fewest accelerators that hold it; None: no number up to MOST_RANKS does."""
        question = self._question
        if question.sharded is None:
            return None
        size = self._sizes(doubling=True)[0]
        known = next(iter(self.found.values()))
        node = known.machine.machine.accelerators_per_node if known.machine.machine else USUAL_NODE
        numbers = [
            number for number in range(question.ranks + 1, MOST_RANKS + 1) if number <= node or not number % node
        ]
        if question.batch is not None:
            numbers = [number for number in numbers if question.batch % (number * size) == 0]
        if not numbers:
            return None

        def step(ranks: int) -> TracedPrediction:
            job = msgspec.structs.replace(self._sized(question.sharded or known.job, size), ranks=ranks)
            return self._predicted([job])[0]

        steps = {number: step(number) for number in {numbers[0], numbers[-1]}}
        peaks: dict[Size, int] = {Fraction(1, number): found.trace.peak_bytes for number, found in steps.items()}
        bracket = Bracket([Fraction(1, number) for number in reversed(numbers)], known.room, peaks)
        while (proposed := bracket.proposed()) is not None:
            number = Fraction(proposed).denominator
            steps[number] = step(number)
            bracket.peaks[proposed] = steps[number].trace.peak_bytes
        return None if bracket.largest is None else steps[Fraction(bracket.largest).denominator]

    def _sizes(self, *, doubling: bool) -> list[int]:
        """Micro-batches that are allowed."""
        question = self._question
        if question.micro_batch is not None:
            return [question.micro_batch]
        if question.batch is not None:
            of_rank = question.batch // question.ranks
            return [size for size in range(1, min(of_rank, LARGEST_MICRO_BATCH) + 1) if of_rank % size == 0]
        powers = [2**power for power in range(LARGEST_MICRO_BATCH.bit_length())]
        return powers if doubling else list(range(1, LARGEST_MICRO_BATCH + 1))

    def _sized(self, layout: TraceJob, size: int) -> TraceJob:
        batch = self._question.batch
        number = layout.micro_batches if batch is None else batch // (layout.ranks * size)
        return msgspec.structs.replace(layout, micro_batch=size, micro_batches=number)

    def _trace(self, jobs: Iterable[TraceJob]) -> None:
        new = [job for job in jobs if job not in self.found]
        self.found |= dict(zip(new, self._predicted(new), strict=True))

    def _predicted(self, jobs: Sequence[TraceJob]) -> list[TracedPrediction]:
        question = self._question
        self.traces += len(jobs)
        return [
            traced_prediction(job, trace, on=question.on, network_bytes_per_second=question.network_bytes_per_second)
            for job, trace in zip(jobs, self._tracer(jobs), strict=True)
        ]


def _layout(job: TraceJob) -> TraceJob:
    """The job without the micro-batches, which every layout leaves open."""
    return msgspec.structs.replace(job, micro_batch=1, micro_batches=1)


def _preferred(step: TracedPrediction) -> tuple[bool, float, int]:
    """Order of steps: those that fit, by tokens a second; the others by their peak."""
    rate = step.tokens_per_second or 0.0 if fits(step) else 0.0
    return fits(step), rate, -step.trace.peak_bytes
