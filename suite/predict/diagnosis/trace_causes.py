"""Causes that traces show: terms that take more than they should, and the rank that the others wait for."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from reference_runs.layout import Layout
from suite.predict.analytic.step_time import StepTime
from suite.predict.diagnosis.causes import SHARE, SlowCause
from suite.predict.diagnosis.diagnosis import MOST_CAUSES, MeasuredTerm, RunDiagnosis, RunOutcome
from suite.predict.diagnosis.group_axes import group_axis
from suite.predict.diagnosis.trace_terms import Collective, StepTerms, Term

_TOGETHER = 0.1  # of a collective: ranks that are so near each other come together
_NEARLY_ALL, _FEW = 0.95, 3  # of the seconds waited; collectives that one long pause may make up
# Least shares of a step: a step that is as it should be has less of each
_LEAST = {
    Term.INPUT: (SHARE, "more workers, persistent and prefetching ones; cached samples"),
    Term.SYNCHRONISATION: (SHARE, ".item(), .cpu(), nonzero and prints in the step; non_blocking=True copies"),
    Term.HOST: (0.15, "larger micro-batches, torch.compile, CUDA graphs, fused operators; other load on the processor"),
    Term.COPY: (SHARE, "pinned memory and non_blocking=True; no offloading"),
    Term.RECOMPUTATION: (0.1, "no activation checkpointing, or of fewer modules, where memory allows it"),
    Term.OPTIMIZER: (0.3, "fused=True or foreach=True; more tokens a step; a sharded optimizer"),
}
_CONFIRM = "clocks and power limit; sizes and dtypes of the kernels; the model, batch and layout stated"
_LEAST_EXPOSED = 0.1
_LEAST_MEMORY_BOUND = 0.2  # and longer than matrix multiplications and attention
_PREDICTED = {
    "matrix multiplications and attention": ((Term.GEMM, Term.ATTENTION), ("forward", "backward")),
    "recomputation": ((Term.RECOMPUTATION,), ("recomputation",)),
    "memory-bound operators": ((Term.MEMORY_BOUND,), ("operator", "accumulation", "cast")),
    "optimizer": ((Term.OPTIMIZER,), ("optimizer",)),
    "idle, and waiting for the host": ((Term.HOST, Term.SYNCHRONISATION), ("launch",)),
    "input, copies and what is left": ((Term.INPUT, Term.COPY), ("overhead", "layer", "embedding", "head")),
}
_ROWS = {term: name for name, (terms, _) in _PREDICTED.items() for term in terms}
_AXES = {
    "tensor": ("tensor_parallel",),
    "context": ("context_parallel",),
    "expert": ("expert_parallel",),
    "data": ("data_parallel", "tied_embedding"),
    "pipeline": ("pipeline", "bubble"),
}
_ALL_TRAFFIC = "exposed communication and bubble"
_UNKNOWN_SHARE = 0.01  # of a step: if less is exposed in groups of no known axis, traffic is compared axis by axis


class LateRank(NamedTuple):
    """The rank that comes last to its collectives, and by how many seconds of a step the others wait for it."""

    place: int
    seconds: float


def measured_terms(step: StepTerms, predicted: StepTime | None, layout: Layout | None) -> list[MeasuredTerm]:
    """Measured terms, the longest first; with a prediction those that it distinguishes.

    Args:
        layout: of the prediction.
    """
    traffic = _traffic_by_axis(step, layout)
    if predicted is None:
        found = [MeasuredTerm(term, seconds, None) for term, seconds in step.terms.items() if term != Term.COLLECTIVE]
        found += [MeasuredTerm(_traffic_name(axis), seconds, None) for axis, seconds in traffic.items()]
    else:
        found = [
            MeasuredTerm(name, sum(step.terms[term] for term in terms), _sum_of(predicted, fields))
            for name, (terms, fields) in _PREDICTED.items()
        ]
        if traffic.get(None, 0.0) < _UNKNOWN_SHARE * step.seconds:
            for axis, fields in _AXES.items():
                found.append(MeasuredTerm(_traffic_name(axis), traffic.get(axis, 0.0), _sum_of(predicted, fields)))
        else:
            fields = tuple(field for each in _AXES.values() for field in each)
            found.append(MeasuredTerm(_ALL_TRAFFIC, step.terms[Term.COLLECTIVE], _sum_of(predicted, fields)))
    kept = [each for each in found if each.seconds or each.predicted_seconds]
    return sorted(kept, key=lambda each: -each.seconds)


def predicted_terms(predicted: StepTime) -> dict[str, float]:
    """The predicted seconds under the names of `measured_terms`, without those that are 0."""
    rows = {name: fields for name, (_, fields) in _PREDICTED.items()}
    rows |= {_traffic_name(axis): fields for axis, fields in _AXES.items()}
    return {name: seconds for name, fields in rows.items() if (seconds := _sum_of(predicted, fields))}


def _sum_of(predicted: StepTime, fields: Sequence[str]) -> float:
    return float(sum(getattr(predicted, f"{field}_seconds") for field in fields))


def _traffic_name(axis: str | None) -> str:
    if axis is None:
        return str(Term.COLLECTIVE)
    return f"exposed {axis}-parallel communication{' and bubble' if axis == 'pipeline' else ''}"


def _traffic_by_axis(step: StepTerms, layout: Layout | None) -> dict[str | None, float]:
    """Exposed seconds by axis; None: of groups that no axis is known of."""
    found: dict[str | None, float] = {}
    for each in step.collectives:
        axis = _axis(each, layout)
        found[axis] = found.get(axis, 0.0) + each.exposed_seconds
    return found


def _axis(collective: Collective, layout: Layout | None) -> str | None:
    return group_axis(collective.group, collective.ranks, collective.operation, layout)


def slow_rank(arrivals: Sequence[Mapping[str, Sequence[float]]], steps: int) -> LateRank | None:
    """The rank that is last in far more collectives than by chance, if that costs the others time; None: no rank is.

    All ranks leave a collective together, so who comes last is in it for the shortest. By how much less than the median
    of the other ranks, summed over the collectives in which a rank is last, less what other ranks so cost. How often it
    is last counts among those that cost nearly all of it: of the others chance decides who is.

    Args:
        arrivals: of each rank the seconds of its collectives in order, by group.
    """
    late = dict.fromkeys(range(len(arrivals)), 0.0)
    waits: list[tuple[float, int]] = []
    for key in dict.fromkeys(key for each in arrivals for key in each):
        members = [place for place, each in enumerate(arrivals) if key in each]
        if len(members) < 2 or len({len(arrivals[place][key]) for place in members}) > 1:
            continue
        for durations in zip(*(arrivals[place][key] for place in members), strict=True):
            least = min(range(len(members)), key=durations.__getitem__)
            others = [seconds for index, seconds in enumerate(durations) if index != least]
            waited = statistics.median(others) - durations[least]
            late[members[least]] += waited
            if waited > _TOGETHER * durations[least]:
                waits.append((waited, members[least]))
    last = Counter(place for _, place in _costly(waits))
    place = max(late, key=late.__getitem__)
    net = late[place] - (sum(late.values()) - late[place]) / max(1, len(arrivals) - 1)
    often = (1 + 1 / len(arrivals)) / 2  # halfway between chance and always
    return LateRank(place, net / steps) if last and last[place] >= often * last.total() else None


def _costly(waits: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    """The longest waits, those that make nearly all of their sum; all, where that is so few that chance may be it."""
    ordered = sorted(waits, reverse=True)
    sums = list(accumulate(seconds for seconds, _ in ordered))
    count = 1 + sum(each < _NEARLY_ALL * sums[-1] for each in sums)
    return ordered[:count] if count >= _FEW else ordered


def late_rank(steps: Sequence[StepTerms]) -> LateRank | None:
    """The slow rank of several traces; None: the others wait for it for less than a twentieth of a step."""
    slow = slow_rank([each.arrivals for each in steps], len(steps[0].steps))
    return None if slow is None or slow.seconds < SHARE * steps[0].seconds else slow


def traced(
    answer: RunDiagnosis,
    steps: Sequence[StepTerms],
    slow: LateRank | None,
    predicted: StepTime | None,
    layout: Layout | None = None,
) -> RunDiagnosis:
    """A diagnosis with what traces show: the terms of a step, of the slow rank's or of the first, and their causes.

    Args:
        answer: of the same step, without its traces.
        layout: of the prediction.
    """
    shown = steps[slow.place if slow else 0]
    terms = measured_terms(shown, predicted, layout)
    found = list(_of_terms(shown, layout))
    if answer.outcome is RunOutcome.SLOW:
        rows = {row for row, _ in found}
        rows |= {_ALL_TRAFFIC for row in rows if row.startswith("exposed")}
        found += [each for each in _exceeding(terms, shown.seconds) if each[0] not in rows]
    causes = sorted((cause for _, cause in found), key=lambda cause: -(cause.seconds or 0.0))
    if slow is not None:
        causes.insert(0, late_cause(steps, slow))
    notes = [*answer.notes, *shown.notes]
    if len(steps) > 1:
        notes.append(f"terms are those of {rank_name(steps, slow.place if slow else 0)}, of {len(steps)} traces")
    return msgspec.structs.replace(answer, causes=causes[:MOST_CAUSES], measured=terms, notes=notes)


def late_cause(steps: Sequence[StepTerms], late: LateRank) -> SlowCause:
    """The slow rank as a cause, with the term that it takes longer for."""
    words = f"{rank_name(steps, late.place)} comes last to its collectives, and the others wait for it"
    confirm = "its clocks, temperature, processor and links; `accept` on its node"
    return SlowCause(f"{words}{_longer_term(steps, late.place)}", late.seconds, confirm, is_seen=True)


def longer_terms(here: StepTerms, other: StepTerms) -> list[SlowCause]:
    """Terms of a step that take longer than those of another run, the longest excess first."""
    excess = {term: seconds - other.terms[term] for term, seconds in here.terms.items()}
    return [
        SlowCause(
            f"{term}: {here.terms[term]:.3g} s of a step, there {other.terms[term]:.3g} s",
            excess[term],
            _LEAST[term][1] if term in _LEAST else _CONFIRM,
            is_seen=True,
        )
        for term in sorted(excess, key=lambda term: -excess[term])
        if excess[term] > SHARE * other.seconds
    ]


def rank_name(steps: Sequence[StepTerms], place: int) -> str:
    """Rank in words, or its file where its number is not known."""
    step = steps[place]
    return step.where if step.rank is None else f"rank {step.rank}"


def _longer_term(steps: Sequence[StepTerms], place: int) -> str:
    """Words for the term in which a rank exceeds the others most."""
    others = [each for index, each in enumerate(steps) if index != place]
    excess = {
        term: seconds - statistics.median(each.terms[term] for each in others)
        for term, seconds in steps[place].terms.items()
        if term is not Term.COLLECTIVE
    }
    longest = max(excess, key=excess.__getitem__)
    if excess[longest] < SHARE * steps[place].seconds:
        return ""
    return f"; {longest}: {excess[longest]:.3g} s more than theirs"


def _of_terms(step: StepTerms, layout: Layout | None) -> Iterator[tuple[str, SlowCause]]:
    """Causes, each with the name of its term beside the predicted one."""
    for term, (least, confirm) in _LEAST.items():
        seconds = step.terms[term]
        if seconds > least * step.seconds:
            yield _ROWS[term], SlowCause(f"{term}{_how_often(step, term)}", seconds, confirm, is_seen=True)
    for each in step.collectives:
        if each.exposed_seconds > _LEAST_EXPOSED * step.seconds:
            group = f" of group {each.group}" if each.group else ""
            axis = _axis(each, layout)
            parallel = f"{axis}-parallel " if axis else ""
            words = f"exposed {parallel}{each.operation}{group}: of {each.seconds:.3g} s nothing hides this"
            confirm = "traces of the other ranks (does one come late?), overlap options, nccl-tests"
            yield _traffic_name(axis), SlowCause(words, each.exposed_seconds, confirm, is_seen=True)
    seconds = step.terms[Term.MEMORY_BOUND]
    if seconds > max(step.terms[Term.GEMM] + step.terms[Term.ATTENTION], _LEAST_MEMORY_BOUND * step.seconds):
        words = "memory-bound operators take longer than matrix multiplications and attention"
        confirm = "torch.compile, fused norms, losses and attention; softmax kernels: attention is not fused"
        yield _ROWS[Term.MEMORY_BOUND], SlowCause(words, seconds, confirm, is_seen=True)


def _how_often(step: StepTerms, term: Term) -> str:
    if term is Term.SYNCHRONISATION:
        return f", {max(1, round(step.waits))} x a step"
    if term is Term.HOST and step.kernels:
        return f", which launches {step.kernels:,.0f} kernels a step"
    return ": Python, dispatch and other work between operators" if term is Term.HOST else ""


def _exceeding(terms: Sequence[MeasuredTerm], seconds: float) -> Iterator[tuple[str, SlowCause]]:
    """Terms that take longer than predicted."""
    for each in terms:
        excess = each.seconds - (each.predicted_seconds or 0.0)
        if each.predicted_seconds is not None and excess > SHARE * seconds:
            words = f"{each.name}: {each.seconds:.3g} s of a step, predicted {each.predicted_seconds:.3g} s"
            yield each.name, SlowCause(words, excess, _CONFIRM, is_seen=True)
