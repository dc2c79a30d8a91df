"""Check 8: step time of a miniature against its prediction, the part that makes it late, and CPU speed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from suite.acceptance.check_table import CHECKS, CPU_SPEED, MATRIX, MEMORY, STEP_TIME
from suite.acceptance.evidence import MiniatureLaunch
from suite.acceptance.findings import joined_evidence
from suite.acceptance.judge.expected_rates import SPREAD_UNKNOWN, ExpectedRate, outlier_words, rate_finding
from suite.acceptance.judge.noninferiority import FEWEST, Look, launches_missing, look
from suite.acceptance.judge.step_time_margin import MARGIN, WIDEST, WITHOUT_HISTORY, Reference, reference
from suite.acceptance.past_batteries import NODE_PAST, OTHER_NODES, History, measured_values
from suite.job.events import Status
from suite.machine import cpu_speed
from suite.metrics.figures import StepTerm
from suite.records.battery import WORST_FIRST, CheckFinding, CheckVerdict

PART_OF_TERM = {
    StepTerm.DATA_LOADING: "host (data loading)",
    StepTerm.HOST_DEVICE_COPY: "host-device link",
    StepTerm.EXPOSED_COMMUNICATION: "links",
    StepTerm.BUBBLE: "pipeline: a stage waits",
    StepTerm.OPTIMIZER: "memory bandwidth (optimizer)",
    StepTerm.OVERHEAD: "host (dispatch)",
    StepTerm.UNEXPLAINED: "in no term",
}
PRODUCT, ELEMENTWISE, MEMORY_BOUND = cpu_speed.PRODUCT, cpu_speed.ELEMENTWISE, cpu_speed.MEMORY
# by the set of reference kernels that slowed down about equally, and most; products and memory together name no part
PART_OF_SLOW_KERNELS = {
    frozenset({PRODUCT}): "matrix rate",
    frozenset({ELEMENTWISE}): "caches",
    frozenset({MEMORY_BOUND}): "memory bandwidth",
    frozenset({ELEMENTWISE, MEMORY_BOUND}): "caches and memory",
    frozenset({PRODUCT, ELEMENTWISE}): "processors' speed",
    frozenset({PRODUCT, ELEMENTWISE, MEMORY_BOUND}): "processors' speed",
}
OF_CPU_SPEED = "CPU speed"  # end of that finding's subject
STANDS_OUT = 1.05  # slowdown from which a kernel counts, also against the others: where the check of CPU speed warns
EXPLAINS = 0.5  # of the logarithm of the term's lateness, at least


def step_ratios(launches: Sequence[MiniatureLaunch]) -> list[float]:
    """Measured over predicted seconds of every launch that has both."""
    return [
        launch.step_seconds / launch.predicted_seconds
        for launch in launches
        if launch.status is Status.OK and launch.step_seconds and launch.predicted_seconds
    ]


def at_cpu_speed(launches: Sequence[MiniatureLaunch]) -> list[MiniatureLaunch]:
    """The launches with the steps that they had made if no reference kernel had become slower meanwhile.

    The slowest kernel counts: a step is late by it at most, as far as processors and memory are why.
    """
    return [
        msgspec.structs.replace(launch, step_seconds=launch.step_seconds / max(1.0, *slowdowns))
        if launch.step_seconds and (slowdowns := [*launch.cpu_slowdowns.values(), launch.cpu_slowdown or 1.0])
        else launch
        for launch in launches
    ]


def step_references(launches: Sequence[MiniatureLaunch], history: History) -> list[Reference]:
    """References of a miniature's step time: accepted batteries of this node, and other nodes of the fleet."""
    past, fleet = history.of(STEP_TIME, _compared_as(launches))
    references = [
        reference(
            measured_values(findings),
            [finding.spread for finding in findings if finding.spread is not None],
            whose,
            [finding.terms for finding in findings if finding.terms],
        )
        for findings, whose in ((past, NODE_PAST), (fleet, OTHER_NODES))
        if findings
    ]
    return references or [WITHOUT_HISTORY]


def step_launches_missing(ratios: Sequence[float], references: Sequence[Reference], looks: Sequence[int]) -> int:
    """Launches up to the next look that some reference still needs; 0 where one of them already rejects."""
    tests = [([ratio / reference.bias for ratio in ratios], reference.margin) for reference in references]
    if any(look(values, margin=margin, looks=looks).verdict is CheckVerdict.FAIL for values, margin in tests):
        return 0
    return max(launches_missing(values, margin=margin, looks=looks) for values, margin in tests)


def _compared_as(launches: Sequence[MiniatureLaunch]) -> str:
    """Name of the ratio in other batteries: only predictions from as many points have the same interpolation error."""
    points = max((launch.points for launch in launches), default=0)
    run = launches[0].run if launches else ""
    return f"{run}, predicted from {points} points" if points else run


class _ReferenceVerdict(NamedTuple):
    """The verdict against one reference, and the look that it rests on."""

    verdict: CheckVerdict
    look: Look
    reference: Reference

    @property
    def severity(self) -> tuple[int, float]:
        """Smallest for the worst verdict, and among equal ones for the least distance to the margin."""
        distance = math.log((1 + self.reference.margin) / self.look.ratio)
        return WORST_FIRST.index(self.verdict), distance


def _comparison(ratios: Sequence[float], reference: Reference, looks: Sequence[int]) -> _ReferenceVerdict:
    """A step that passes warns where it may use up half of the margin, or where the reference itself has drifted."""
    result = look([ratio / reference.bias for ratio in ratios], margin=reference.margin, looks=looks)
    verdict = result.verdict
    if verdict is CheckVerdict.PASS and reference is not WITHOUT_HISTORY:
        drifted = result.high * reference.bias > 1 + WIDEST
        verdict = CheckVerdict.WARN if drifted or result.high > 1 + reference.margin / 2 else verdict
    return _ReferenceVerdict(verdict, result, reference)


def step_time_finding(
    run: str, launches: Sequence[MiniatureLaunch], history: History, looks: Sequence[int], rates: Sequence[CheckFinding]
) -> CheckFinding:
    """Check 8 of one miniature against this node's past and other nodes of the fleet: the worse verdict is reported.

    Not run with fewer than 3 launches that have a prediction. An outlier among ten or more other nodes warns.
    """
    ratios = step_ratios(launches)
    references = step_references(launches, history)
    seconds = f"{statistics.median(launch.step_seconds or 0.0 for launch in launches):.4g} s"
    if len(ratios) < FEWEST:
        few = f"{len(ratios)} launches with a prediction, {looks[0]} needed"
        why = next((launch.message for launch in launches if launch.message), "")
        return CheckFinding(
            check=STEP_TIME,
            subject=run,
            verdict=CheckVerdict.NOT_RUN,
            evidence=joined_evidence(seconds, few, why),
            source=references[0].source,
        )
    comparisons = [_comparison(ratios, reference, looks) for reference in references]
    worst = min(comparisons, key=lambda comparison: comparison.severity)
    verdict, result, held_to = worst
    ratio = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    _, fleet = history.of(STEP_TIME, _compared_as(launches))
    outlier = outlier_words(CHECKS[STEP_TIME], ratio, measured_values(fleet))
    verdict = CheckVerdict.WARN if outlier and verdict is CheckVerdict.PASS else verdict
    term, late_seconds = largest_deviation(launches, held_to.usual)
    part, why_part = ("", "") if verdict is CheckVerdict.PASS else slow_part(term, launches, rates, held_to.usual)
    lateness = f"{1e3 * abs(late_seconds):.1f} ms {'longer' if late_seconds >= 0 else 'shorter'}"
    bounds = f"1-sided bounds {result.low:.3f} to {result.high:.3f}"
    return CheckFinding(
        check=STEP_TIME,
        subject=run,
        verdict=verdict,
        measured=ratio,
        expected=held_to.bias,
        unit="of the prediction",
        ratio=result.ratio,
        warn=1 + held_to.margin / 2,
        fail=1 + held_to.margin,
        source=held_to.source,
        part=part,
        evidence=joined_evidence(
            seconds,
            f"{result.launches} launches, spread {result.spread:.1%}, {bounds}",
            f"most in {term.value}, {lateness} than {'usual' if held_to.usual else 'predicted'}",
            why_part,
            *(f"{other.look.ratio:.3f} of {other.reference.source}" for other in comparisons if other is not worst),
            outlier,
            "more launches are needed" if verdict is CheckVerdict.INCONCLUSIVE else "",
        ),
        least_detectable=result.least_detectable,
        spread=result.spread,
        terms={term.value: share for term, share in excess(launches, as_shares=True).items()},
        compared_as=_compared_as(launches),
    )


def cpu_speed_findings(run: str, launches: Sequence[MiniatureLaunch], history: History) -> list[CheckFinding]:
    """Whether the processors kept, while steps were timed, their speed of the micro-measurements.

    1 / slowdown is judged as a rate, against the micro-measurements and this node's past. It excuses no step time: it
    says whether the node of a late step slowed down under load.
    """
    speeds = [1 / launch.cpu_slowdown for launch in launches if launch.cpu_slowdown]
    if not speeds:
        return []
    before = "this battery's micro-measurements"
    return [
        rate_finding(
            CPU_SPEED,
            f"{run}, {OF_CPU_SPEED}",
            statistics.median(speeds),
            history,
            "host: processors slower than in the micro-measurements",
            [ExpectedRate(value=1.0, source=before, warn=1 / (1 + MARGIN), fail=SPREAD_UNKNOWN)],
            f"{len(speeds)} launches, {min(speeds):.3f} to {max(speeds):.3f}",
            compared_as=f"{run}, cpu_slowdown",
        )
    ]


def excess(launches: Sequence[MiniatureLaunch], *, as_shares: bool) -> dict[StepTerm, float]:
    """By term, measured less predicted seconds, or their share of the predicted step; the median of the launches.

    As share of the step, because a term may have a prediction of 0.
    """
    collected: dict[str, list[float]] = {}
    for launch in launches:
        unit = launch.predicted_seconds if as_shares else 1.0
        if not unit:
            continue
        for term in launch.measured_terms.keys() & launch.predicted_terms.keys():
            seconds = launch.measured_terms[term] - launch.predicted_terms[term]
            collected.setdefault(term, []).append(seconds / unit)
    return {term: statistics.median(collected[term.value]) for term in StepTerm if term.value in collected}


def largest_deviation(launches: Sequence[MiniatureLaunch], usual: Mapping[str, float]) -> tuple[StepTerm, float]:
    """The term with the largest median excess over its prediction and what is usual beyond it; the excess in seconds.

    Args:
        usual: see `Reference`.
    """
    predicted = [launch.predicted_seconds for launch in launches if launch.predicted_seconds]
    step = statistics.median(predicted) if predicted else 0.0
    shares = excess(launches, as_shares=True)
    seconds = {term: step * (share - usual.get(term.value, 0.0)) for term, share in shares.items()}
    return max(seconds.items(), key=lambda item: item[1], default=(StepTerm.UNEXPLAINED, 0.0))


def slow_part(
    term: StepTerm, launches: Sequence[MiniatureLaunch], rates: Sequence[CheckFinding], usual: Mapping[str, float]
) -> tuple[str, str]:
    """The part at fault, and the evidence that chose it; no evidence where the term alone names the part.

    Forward and backward passes are matrix products and operators bound by memory. What decides, in this order:
        CPU speed  slowdown of the reference kernels (products and element-wise work in the caches, work in memory)
                   between the timed steps, against the micro-measurements: the slowest kernels name the part
                   (`PART_OF_SLOW_KERNELS`), if they explain half of the term's own lateness, in logarithms
        rates      verdicts of checks 1 and 3: the bad one where the other is good
    Otherwise both parts are named.

    Args:
        usual: by term, what it usually takes beyond its prediction, as share of the predicted step.
    """
    if term in PART_OF_TERM:
        return PART_OF_TERM[term], ""
    slowdowns = _kernel_slowdowns(launches)
    speed = ""
    if slowdowns:
        speed = (
            f"in the caches, products took {slowdowns[PRODUCT]:.2f} times as long as before, element-wise work "
            f"{slowdowns[ELEMENTWISE]:.2f}; in memory {slowdowns[MEMORY_BOUND]:.2f}"
        )
        slowest = max(slowdowns.values())
        explaining = math.exp(EXPLAINS * math.log(max(1.0, _lateness(term, launches, usual))))
        slow_kernels = frozenset(kind for kind, times in slowdowns.items() if STANDS_OUT * times > slowest)
        part = PART_OF_SLOW_KERNELS.get(slow_kernels)
        if part and slowest >= max(STANDS_OUT, explaining):
            return f"{part} ({term.value})", speed
    bad = {finding.check: finding for finding in rates if finding.verdict in (CheckVerdict.WARN, CheckVerdict.FAIL)}
    if (MATRIX in bad) == (MEMORY in bad):
        return f"matrix rate or memory bandwidth ({term.value})", speed
    finding = bad[MATRIX if MATRIX in bad else MEMORY]
    part = "matrix rate" if finding.check == MATRIX else "memory bandwidth"
    rate = f"check {finding.check}, {finding.subject}: {finding.ratio or 0.0:.3f} of expected"
    return f"{part} ({term.value})", joined_evidence(speed, rate)


def _kernel_slowdowns(launches: Sequence[MiniatureLaunch]) -> dict[str, float]:
    """Slowdown of each reference kernel, the median of the launches; empty where no launch has one."""
    measured = [launch.cpu_slowdowns for launch in launches if launch.cpu_slowdowns]
    if not measured:
        return {}
    return {kind: statistics.median(of[kind] for of in measured) for kind in (PRODUCT, ELEMENTWISE, MEMORY_BOUND)}


def _lateness(term: StepTerm, launches: Sequence[MiniatureLaunch], usual: Mapping[str, float]) -> float:
    """Measured over usual seconds of the term, the median of the launches: predicted, and what is usual beyond that."""
    ratios = []
    for launch in launches:
        measured = launch.measured_terms.get(term.value, 0.0)
        predicted = launch.predicted_terms.get(term.value, 0.0)
        usual_seconds = predicted + usual.get(term.value, 0.0) * (launch.predicted_seconds or 0.0)
        if measured > 0 and predicted > 0 and usual_seconds > 0:
            ratios.append(measured / usual_seconds)
    return statistics.median(ratios) if ratios else 1.0
