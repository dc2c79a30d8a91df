"""Check 8: the step time of a miniature beside its prediction, the term it is late by, and the processors' pace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from suite.acceptance.checks import PACE, STEP_TIME
from suite.acceptance.evidence import Launched
from suite.acceptance.expectations import UNKNOWN_MODEL, Expected
from suite.acceptance.history import History
from suite.acceptance.noninferiority import FEWEST, look
from suite.acceptance.rates import against
from suite.acceptance.slow_part import slow_part
from suite.acceptance.step_margin import MARGIN, WIDEST, WITHOUT_HISTORY, Reference, reference
from suite.acceptance.verdicts import Finding, Verdict
from suite.figures import StepTerm
from suite.job import Status


def step_ratios(launches: Sequence[Launched]) -> list[float]:
    """Measured over predicted seconds of every launch that has both."""
    return [
        one.step_seconds / one.predicted_seconds
        for one in launches
        if one.status is Status.OK and one.step_seconds and one.predicted_seconds
    ]


def step_reference(launches: Sequence[Launched], history: History) -> Reference:
    """What a miniature's step time is held to: this node's accepted batteries, or else its siblings'."""
    name = _compared(launches)
    past, fleet = history.of(STEP_TIME, name)
    spreads, fleet_spreads = history.spreads_of(STEP_TIME, name)
    if past:
        return reference(past, spreads, "accepted batteries of this node")
    return reference(fleet, fleet_spreads, "siblings in the fleet")


def _compared(launches: Sequence[Launched]) -> str:
    """Names the ratio among batteries: predictions from as many points, whose interpolation errs alike."""
    points = max((one.points for one in launches), default=0)
    run = launches[0].run if launches else ""
    return f"{run}, predicted from {points} points" if points else run


def step_time_finding(
    run: str, launches: Sequence[Launched], history: History, looks: Sequence[int], rates: Sequence[Finding]
) -> Finding:
    """Check 8 of one miniature: not run with fewer than 3 launches that have a prediction."""
    ratios = step_ratios(launches)
    held_to = step_reference(launches, history)
    margin, source = held_to.margin, held_to.source
    measured = statistics.median(one.step_seconds or 0.0 for one in launches)
    if len(ratios) < FEWEST:
        why = f"{len(ratios)} launches with a prediction, {looks[0]} needed"
        missing = next((one.message for one in launches if one.message), "")
        return Finding(
            check=STEP_TIME,
            subject=run,
            verdict=Verdict.NOT_RUN,
            evidence="; ".join(part for part in (f"{measured:.4g} s", why, missing) if part),
            source=source,
        )
    seen = look([ratio / held_to.bias for ratio in ratios], margin=margin, looks=looks)
    term, seconds = largest_deviation(launches)
    bounds = f"{seen.launches} launches, spread {seen.spread:.1%}, 1-sided bounds {seen.low:.3f} to {seen.high:.3f}"
    verdict = seen.verdict
    if verdict is Verdict.PASS and held_to is not WITHOUT_HISTORY:
        # half of the margin may be used up, or accepted batteries have crept away from the prediction
        crept = seen.high * held_to.bias > 1 + WIDEST
        verdict = Verdict.WARN if crept or seen.high > 1 + margin / 2 else verdict
    undecided = "; more launches are needed" if verdict is Verdict.INCONCLUSIVE else ""
    part, chosen = ("", "") if verdict is Verdict.PASS else slow_part(term, launches, rates)
    chosen = f"; {chosen}" if chosen else ""
    return Finding(
        check=STEP_TIME,
        subject=run,
        verdict=verdict,
        measured=math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)),
        expected=held_to.bias,
        unit="of the prediction",
        ratio=seen.ratio,
        warn=1 + margin / 2,
        fail=1 + margin,
        source=source,
        part=part,
        evidence=f"{measured:.4g} s; {bounds}; most in {term.value} {1e3 * seconds:+.1f} ms{chosen}{undecided}",
        least_detectable=seen.least_detectable,
        spread=seen.spread,
        siblings=_compared(launches),
    )


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


def largest_deviation(launches: Sequence[Launched]) -> tuple[StepTerm, float]:
    """The term with the largest median excess over its prediction."""
    return max(median_deviations(launches).items(), key=lambda item: item[1], default=(StepTerm.UNEXPLAINED, 0.0))
