"""The diagnosis of a launch of this suite, from its record: terms of the step are measured there, rank by rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from reference_runs.errors import InputError
from reference_runs.training_logs.training_log import PrintedStep
from suite.job.events import StepKind
from suite.metrics.figures import Figure, Quantity, StepTerm
from suite.predict.diagnosis.causes import SHARE, SlowCause
from suite.predict.diagnosis.diagnosis import MOST_CAUSES, MeasuredTerm, RunDiagnosis, RunOutcome
from suite.predict.diagnosis.pace import pace
from suite.records.record import End, Record

TOLERANCE = 0.15  # of a predicted step time, as `reproduce` prints it
_CONFIRM = {
    StepTerm.DATA_LOADING: "the corpus, its cache, and what else reads this disk",
    StepTerm.HOST_DEVICE_COPY: "PCIe links (`accept`), pinned memory",
    StepTerm.FORWARD: "clocks, temperature, other load; `calibrate` again, then `reproduce`",
    StepTerm.BACKWARD: "clocks, temperature, other load; `calibrate` again, then `reproduce`",
    StepTerm.EXPOSED_COMMUNICATION: "links (`accept`), a slow rank, NCCL_DEBUG=INFO",
    StepTerm.BUBBLE: "more micro-batches, interleaved stages",
    StepTerm.OPTIMIZER: "memory bandwidth (`accept`), a fused update",
    StepTerm.OVERHEAD: "other load on the host, CPU pinning, --compile",
}


def diagnosed_launch(record: Record) -> RunDiagnosis:
    """The diagnosis of a launch.

    Raises:
        InputError: it did not end, or no step of it was timed.
    """
    end = record.end
    if end is None:
        raise InputError("the launch has not ended", got=record.status, where=record.path)
    timed = timed_steps(record)
    if not timed:
        raise InputError("no step was timed", got=end.message or end.status.value, where=record.path)
    measured, predicted = _terms(end.figures), _terms(end.predicted)
    usual = pace(timed)
    expected = predicted.get("")
    causes = sorted(_causes(end, usual.seconds), key=lambda cause: -(cause.seconds or 0.0))
    outcome, interval = RunOutcome.NOT_PREDICTED, None
    if expected is not None:
        interval = (expected * (1 - TOLERANCE), expected * (1 + TOLERANCE))
        slow = usual.seconds > interval[1]
        outcome = RunOutcome.SLOW if slow else RunOutcome.EXPECTED
        outcome = RunOutcome.FAST if usual.seconds < interval[0] else outcome
    terms = [MeasuredTerm(term, seconds, predicted.get(term)) for term, seconds in measured.items() if term and seconds]
    return RunDiagnosis(
        outcome=outcome,
        pace=usual,
        counted=[],
        causes=causes[:MOST_CAUSES] if outcome in (RunOutcome.SLOW, RunOutcome.NOT_PREDICTED) else [],
        notes=[],
        predicted_seconds=expected,
        interval=interval,
        measured=sorted(terms, key=lambda term: -term.seconds),
    )


def timed_steps(record: Record) -> list[PrintedStep]:
    """Timed steps of a launch, each as long as its slowest rank took."""
    slowest: dict[int, float] = {}
    for rank in record.end.ranks if record.end else ():
        for step in rank.steps:
            if step.kind is StepKind.TIMED:
                slowest[step.step] = max(slowest.get(step.step, 0.0), step.seconds)
    return [PrintedStep(number=float(number), seconds=slowest[number]) for number in sorted(slowest)]


def _terms(figures: list[Figure], rank: int | None = None) -> dict[str, float]:
    """Seconds of the step's terms, and of all under no name."""
    wanted = [figure for figure in figures if figure.quantity is Quantity.STEP_SECONDS and figure.rank == rank]
    return {figure.term or "": float(figure.value) for figure in wanted}


def _causes(end: End, seconds: float) -> Iterator[SlowCause]:
    """Terms that take longer than predicted, a rank that computes longer than the others, and other load."""
    measured, predicted = _terms(end.figures), _terms(end.predicted)
    for term, confirm in _CONFIRM.items():
        excess = measured.get(term, 0.0) - predicted.get(term, measured.get(term, 0.0))
        if excess > SHARE * seconds:
            words = f"{term} takes {measured[term]:.3g} s, predicted {predicted[term]:.3g} s"
            yield SlowCause(words, excess, confirm, is_seen=True)
    computing = {rank.rank: _computing(_terms(end.figures, rank.rank)) for rank in end.ranks}
    if len(computing) > 1:
        slowest = max(computing, key=lambda rank: computing[rank])
        late = computing[slowest] - statistics.median(computing.values())
        if late > SHARE * seconds:
            words = f"rank {slowest} computes {late:.3g} s longer than the median rank: the others wait for it"
            yield SlowCause(words, late, "its clocks and temperature; `accept` its node", is_seen=True)
    for share, who in ((end.others_share, "other processes"), (end.steal_share, "other guests of the host")):
        if share is not None and share > SHARE:
            words = f"{who} took {share:.0%} of the processors while steps were timed"
            yield SlowCause(words, share * seconds, "top, and the launch again without them", is_seen=True)


def _computing(terms: dict[str, float]) -> float:
    return sum(terms.get(term, 0.0) for term in (StepTerm.FORWARD, StepTerm.BACKWARD, StepTerm.OPTIMIZER))
