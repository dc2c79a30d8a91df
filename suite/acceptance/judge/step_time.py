"""Check 8: the step time of a miniature beside its prediction, the term it is late by, and the processors' pace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from suite.acceptance.check_table import CHECKS, PACE, STEP_TIME
from suite.acceptance.evidence import Launched
from suite.acceptance.findings import Finding, Verdict
from suite.acceptance.judge.attribution import slow_part
from suite.acceptance.judge.expected_rates import UNKNOWN_MODEL, Expected, outlier_words
from suite.acceptance.judge.noninferiority import FEWEST, Look, launches_missing, look
from suite.acceptance.judge.rates import against
from suite.acceptance.judge.step_time_margin import MARGIN, WIDEST, WITHOUT_HISTORY, Reference, reference
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.metrics.figures import StepTerm

_WORST_FIRST = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.WARN, Verdict.PASS)


def step_ratios(launches: Sequence[Launched]) -> list[float]:
    """Measured over predicted seconds of every launch that has both."""
    return [
        one.step_seconds / one.predicted_seconds
        for one in launches
        if one.status is Status.OK and one.step_seconds and one.predicted_seconds
    ]


def step_references(launches: Sequence[Launched], history: History) -> list[Reference]:
    """What a miniature's step time is held to: this node's accepted batteries and its siblings', each by itself."""
    name = _compared(launches)
    found = [
        reference(values, spreads, whose, terms)
        for values, spreads, terms, whose in zip(
            history.of(STEP_TIME, name),
            history.spreads_of(STEP_TIME, name),
            history.terms_of(STEP_TIME, name),
            ("accepted batteries of this node", "siblings in the fleet"),
            strict=True,
        )
        if values
    ]
    return found or [WITHOUT_HISTORY]


def step_launches_missing(ratios: Sequence[float], references: Sequence[Reference], looks: Sequence[int]) -> int:
    """Launches up to the next look that some reference still needs; 0 where one of them rejects already."""
    of_bias = [([ratio / held_to.bias for ratio in ratios], held_to.margin) for held_to in references]
    if any(look(values, margin=margin, looks=looks).verdict is Verdict.FAIL for values, margin in of_bias):
        return 0
    return max(launches_missing(values, margin=margin, looks=looks) for values, margin in of_bias)


def _compared(launches: Sequence[Launched]) -> str:
    """Names the ratio among batteries: predictions from as many points, whose interpolation errs alike."""
    points = max((one.points for one in launches), default=0)
    run = launches[0].run if launches else ""
    return f"{run}, predicted from {points} points" if points else run


def step_time_finding(
    run: str, launches: Sequence[Launched], history: History, looks: Sequence[int], rates: Sequence[Finding]
) -> Finding:
    """Check 8 of one miniature, beside this node's past and its siblings: the worse verdict is reported.

    Not run with fewer than 3 launches that have a prediction. As an outlier among ten siblings or more it warns.
    """
    ratios = step_ratios(launches)
    references = step_references(launches, history)
    measured = statistics.median(one.step_seconds or 0.0 for one in launches)
    if len(ratios) < FEWEST:
        why = f"{len(ratios)} launches with a prediction, {looks[0]} needed"
        missing = next((one.message for one in launches if one.message), "")
        return Finding(
            check=STEP_TIME,
            subject=run,
            verdict=Verdict.NOT_RUN,
            evidence="; ".join(part for part in (f"{measured:.4g} s", why, missing) if part),
            source=references[0].source,
        )
    against_each = [(*_seen(ratios, held_to, looks), held_to) for held_to in references]
    verdict, seen, held_to = min(against_each, key=lambda one: (_WORST_FIRST.index(one[0]), _room(one[1], one[2])))
    others = [f"{beside.ratio:.3f} of {other.source}" for _, beside, other in against_each if other is not held_to]
    ratio = math.exp(statistics.fmean(math.log(one) for one in ratios))
    outlier = outlier_words(CHECKS[STEP_TIME], ratio, history.of(STEP_TIME, _compared(launches))[1])
    verdict = Verdict.WARN if outlier and verdict is Verdict.PASS else verdict
    term, seconds = largest_deviation(launches, held_to.usual)
    part, chosen = ("", "") if verdict is Verdict.PASS else slow_part(term, launches, rates, held_to.usual)
    words = [
        f"{measured:.4g} s",
        f"{seen.launches} launches, spread {seen.spread:.1%}, 1-sided bounds {seen.low:.3f} to {seen.high:.3f}",
        f"most in {term.value} {1e3 * seconds:+.1f} ms" + (" beyond the usual" if held_to.usual else ""),
        chosen,
        *others,
        outlier,
        "more launches are needed" if verdict is Verdict.INCONCLUSIVE else "",
    ]
    return Finding(
        check=STEP_TIME,
        subject=run,
        verdict=verdict,
        measured=ratio,
        expected=held_to.bias,
        unit="of the prediction",
        ratio=seen.ratio,
        warn=1 + held_to.margin / 2,
        fail=1 + held_to.margin,
        source=held_to.source,
        part=part,
        evidence="; ".join(word for word in words if word),
        least_detectable=seen.least_detectable,
        spread=seen.spread,
        terms=shares_beyond(launches),
        siblings=_compared(launches),
    )


def _seen(ratios: Sequence[float], held_to: Reference, looks: Sequence[int]) -> tuple[Verdict, Look]:
    """The verdict beside one reference, and what it rests on.

    A step that passes warns where half of the margin may be used up, or the reference itself has crept away from the
    prediction.
    """
    seen = look([ratio / held_to.bias for ratio in ratios], margin=held_to.margin, looks=looks)
    if seen.verdict is Verdict.PASS and held_to is not WITHOUT_HISTORY:
        crept = seen.high * held_to.bias > 1 + WIDEST
        return Verdict.WARN if crept or seen.high > 1 + held_to.margin / 2 else seen.verdict, seen
    return seen.verdict, seen


def _room(seen: Look, held_to: Reference) -> float:
    """Logarithm of what is left to the margin."""
    return math.log((1 + held_to.margin) / seen.ratio)


def pace_findings(run: str, launches: Sequence[Launched], history: History) -> list[Finding]:
    """Whether the processors kept, while steps were timed, the speed that the micro-measurements saw.

    1 / pace is judged as a rate is, against the micro-measurements and against this node's past. It excuses no step
    time: it says of a late step whether the node slowed down under load.
    """
    speeds = [1 / one.pace for one in launches if one.pace]
    if not speeds:
        return []
    before = Expected(value=1.0, source="this battery's micro-measurements", warn=1 / (1 + MARGIN), fail=UNKNOWN_MODEL)
    part = "host: processors slower than in the micro-measurements"
    words = f"{len(speeds)} launches, {min(speeds):.3f} to {max(speeds):.3f}"
    return [against(PACE, f"{run}, pace", statistics.median(speeds), history, part, [before], words)]


def deviations(launch: Launched) -> dict[StepTerm, float]:
    """Measured less predicted seconds of each term that both have."""
    return {
        StepTerm(term): seconds - launch.predicted_terms[term]
        for term, seconds in launch.measured_terms.items()
        if term in launch.predicted_terms
    }


def median_deviations(launches: Sequence[Launched]) -> dict[StepTerm, float]:
    """Seconds by which each term exceeds its prediction, the median of the launches."""
    of_term: dict[StepTerm, list[float]] = {}
    for launch in launches:
        for term, seconds in deviations(launch).items():
            of_term.setdefault(term, []).append(seconds)
    return {term: statistics.median(values) for term, values in of_term.items()}


def shares_beyond(launches: Sequence[Launched]) -> dict[str, float]:
    """What each term measured beyond its prediction, as share of the predicted step; the median of the launches.

    A share of the step and not of the term, so that a term of which nothing was predicted has one too.
    """
    of_term: dict[str, list[float]] = {}
    for launch in launches:
        if launch.predicted_seconds:
            for term, seconds in deviations(launch).items():
                of_term.setdefault(term.value, []).append(seconds / launch.predicted_seconds)
    return {term: statistics.median(values) for term, values in of_term.items()}


def largest_deviation(launches: Sequence[Launched], usual: Mapping[str, float]) -> tuple[StepTerm, float]:
    """The term with the largest median excess over its prediction and what is usual beyond it; the excess in seconds.

    Args:
        usual: see `Reference`.
    """
    predicted = [one.predicted_seconds for one in launches if one.predicted_seconds]
    step = statistics.median(predicted) if predicted else 0.0
    late = {StepTerm(term): step * (share - usual.get(term, 0.0)) for term, share in shares_beyond(launches).items()}
    return max(late.items(), key=lambda item: item[1], default=(StepTerm.UNEXPLAINED, 0.0))
