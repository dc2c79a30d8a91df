"""Checks 7 to 11 and 16: what launches of the miniatures say of figures, time, its terms, its steadiness, and loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from suite.acceptance.checks import (
    ATTRIBUTION,
    CHECKS,
    EXACT_FIGURES,
    JITTER,
    LOSS_CURVE,
    PACE,
    STEP_TIME,
    STRAGGLER,
)
from suite.acceptance.evidence import Launched
from suite.acceptance.expectations import UNKNOWN_MODEL, Expected, limited
from suite.acceptance.history import History
from suite.acceptance.noninferiority import FEWEST, LOOKS, look
from suite.acceptance.rates import against
from suite.acceptance.slow_part import slow_part
from suite.acceptance.step_margin import MARGIN, WIDEST, WITHOUT_HISTORY, Reference, reference
from suite.acceptance.verdicts import Finding, Verdict
from suite.figures import StepTerm
from suite.job import Status

JITTER_STEPS = 200
TAIL = 0.99
TAIL_WARN, TAIL_FAIL = 1.05, 1.15
LOSS_FALLS_FROM = 20  # steps
LOSS_MUST_FALL = 0.5  # nats a token, as `reproduce` wants it


def exact_findings(launches: Sequence[Launched]) -> list[Finding]:
    """Check 7, one for each miniature: the first launch that ended well, or the one that did not."""
    return [_exact(run, own) for run, own in _by_run(launches).items()]


def _exact(run: str, launches: Sequence[Launched]) -> Finding:
    bad = [one for one in launches if one.status is not Status.OK]
    unequal = [words for one in launches for words in one.unequal]
    if unequal:
        return Finding(
            check=EXACT_FIGURES,
            subject=run,
            verdict=Verdict.FAIL,
            source="arithmetic",
            part="software: another amount of work than predicted",
            evidence=f"{len(unequal)} differ: {'; '.join(unequal[:3])}",
        )
    if bad:
        return broken(EXACT_FIGURES, bad[0])
    exact = max(one.exact for one in launches)
    return Finding(
        check=EXACT_FIGURES,
        subject=run,
        verdict=Verdict.PASS if exact else Verdict.NOT_RUN,
        source="arithmetic",
        evidence=f"{exact} figures equal" + (f", {len(launches)} launches" if len(launches) > 1 else ""),
    )


def time_findings(
    launches: Sequence[Launched],
    history: History,
    *,
    looks: Sequence[int] = LOOKS,
    looks_of: Mapping[str, Sequence[int]] | None = None,
    rates: Sequence[Finding] = (),
) -> list[Finding]:
    """Checks 8, 9 and 11 of each miniature that was launched for its time.

    Args:
        looks: declared beforehand, in launches; `looks_of` those of single miniatures.
        rates: findings of checks 1 and 3 of the same battery, which tell late products from late memory.
    """
    findings = []
    for run, own in _by_run([one for one in launches if one.purpose == "times"]).items():
        good = [one for one in own if one.status is Status.OK]
        if not good:
            findings += [broken(number, own[0]) for number in (STEP_TIME, ATTRIBUTION, STRAGGLER)]
            continue
        findings += [
            _step_time(run, good, history, (looks_of or {}).get(run, looks), rates),
            *_pace(run, good, history),
        ]
        findings += [_attribution(run, good), *_stragglers(run, good)]
    return findings


def step_ratios(launches: Sequence[Launched]) -> list[float]:
    """Measured over predicted seconds of every launch that has both."""
    return [
        one.step_seconds / one.predicted_seconds
        for one in launches
        if one.status is Status.OK and one.step_seconds and one.predicted_seconds
    ]


def step_reference(run: str, history: History) -> Reference:
    """What a miniature's step time is held to: this node's accepted batteries, or else its siblings'."""
    past, fleet = history.of(STEP_TIME, run)
    spreads, fleet_spreads = history.spreads_of(STEP_TIME, run)
    if past:
        return reference(past, spreads, "accepted batteries of this node")
    return reference(fleet, fleet_spreads, "siblings in the fleet")


def _step_time(
    run: str, launches: Sequence[Launched], history: History, looks: Sequence[int], rates: Sequence[Finding]
) -> Finding:
    ratios = step_ratios(launches)
    held_to = step_reference(run, history)
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
    term, seconds = _largest_deviation(launches)
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
        siblings=run,
    )


def _pace(run: str, launches: Sequence[Launched], history: History) -> list[Finding]:
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


def _largest_deviation(launches: Sequence[Launched]) -> tuple[StepTerm, float]:
    """The term with the largest median excess over its prediction."""
    of_term: dict[StepTerm, list[float]] = {}
    for launch in launches:
        for term, seconds in deviations(launch).items():
            of_term.setdefault(term, []).append(seconds)
    medians = {term: statistics.median(values) for term, values in of_term.items()}
    if not medians:
        return StepTerm.UNEXPLAINED, 0.0
    return max(medians.items(), key=lambda item: item[1])


def _attribution(run: str, launches: Sequence[Launched]) -> Finding:
    shares = []
    for one in launches:
        if one.step_seconds and StepTerm.UNEXPLAINED.value in one.measured_terms:
            shares.append(abs(one.measured_terms[StepTerm.UNEXPLAINED.value]) / one.step_seconds)
    if not shares:
        return Finding(
            check=ATTRIBUTION,
            subject=run,
            verdict=Verdict.NOT_RUN,
            evidence="no step was profiled: a launch needs 8 steps",
        )
    split = sorted(_medians(launches).items(), key=lambda item: -abs(item[1]))
    words = ", ".join(f"{term.value} {1e3 * seconds:+.1f} ms" for term, seconds in split[:4])
    return limited(
        CHECKS[ATTRIBUTION],
        run,
        statistics.median(shares),
        part="in no term: ranks that wait for each other, or the host",
        source="share of the step in no term",
        evidence=f"measured - predicted: {words}" if words else "no prediction to split",
    )


def _medians(launches: Sequence[Launched]) -> Mapping[StepTerm, float]:
    of_term: dict[StepTerm, list[float]] = {}
    for launch in launches:
        for term, seconds in deviations(launch).items():
            of_term.setdefault(term, []).append(seconds)
    return {term: statistics.median(values) for term, values in of_term.items()}


def _stragglers(run: str, launches: Sequence[Launched]) -> list[Finding]:
    check = CHECKS[STRAGGLER]
    known = [one.compute_seconds for one in launches if len(one.compute_seconds) > 1 and all(one.compute_seconds)]
    if not known:
        return [
            Finding(check=STRAGGLER, subject=run, verdict=Verdict.NOT_RUN, evidence="one rank, or no profiled step")
        ]
    ranks = range(len(known[0]))
    shares = [statistics.median(min(seconds) / seconds[rank] for seconds in known) for rank in ranks]
    worst = min(ranks, key=lambda rank: shares[rank])
    words = ", ".join(f"rank {rank} {statistics.median(seconds[rank] for seconds in known):.4g} s" for rank in ranks)
    return [
        limited(
            check,
            run,
            shares[worst],
            part=f"rank {worst}: compute",
            source=f"best rank, median of {len(known)} launches",
            evidence=words,
        )
    ]


def jitter_findings(launches: Sequence[Launched]) -> list[Finding]:
    """Check 10 of every launch with enough steps."""
    long = [one for one in launches if one.purpose == "jitter"]
    if not long:
        most = max((len(one.timed) for one in launches), default=0)
        why = f"{most} timed steps in one launch, {JITTER_STEPS} needed: this profile has no such launch"
        return [Finding(check=JITTER, subject="", verdict=Verdict.NOT_RUN, evidence=why)]
    findings = []
    for one in long:
        if one.status is not Status.OK:
            findings.append(broken(JITTER, one))
            continue
        if len(one.timed) < JITTER_STEPS:
            why = f"{len(one.timed)} timed steps, {JITTER_STEPS} needed"
            findings.append(Finding(check=JITTER, subject=one.run, verdict=Verdict.NOT_RUN, evidence=why))
            continue
        variation = statistics.stdev(one.timed) / statistics.fmean(one.timed)
        ordered = sorted(one.timed)
        tail = ordered[math.ceil(TAIL * len(ordered)) - 1] / statistics.median(ordered)
        finding = limited(
            CHECKS[JITTER],
            one.run,
            variation,
            part="host, clocks, or other processes",
            source="a steady machine",
            evidence=f"{len(ordered)} steps; 99 % quantile / median {tail:.3f} (warn {TAIL_WARN}, fail {TAIL_FAIL})",
        )
        if tail > TAIL_FAIL or (tail > TAIL_WARN and finding.verdict is Verdict.PASS):
            verdict = Verdict.FAIL if tail > TAIL_FAIL else Verdict.WARN
            finding = msgspec.structs.replace(finding, verdict=verdict, part="host, clocks, or other processes")
        findings.append(finding)
    return findings


def loss_findings(launches: Sequence[Launched], history: History) -> list[Finding]:
    """Check 16: launches of one stack repeat each other's losses to the bit; losses are finite and fall."""
    findings = []
    for (run, _), own in _by_stack(launches).items():
        nan = [one for one in own if one.status is Status.NAN]
        if nan:
            findings.append(broken(LOSS_CURVE, nan[0]))
            continue
        good = [one for one in own if one.status is Status.OK and one.losses]
        if good:
            findings.append(_losses(run, good, history))
    return findings


def _losses(run: str, launches: Sequence[Launched], history: History) -> Finding:
    reference = history.losses.get(launches[0].stack)
    first = reference or launches[0].losses
    compared = launches if reference else launches[1:]
    source = "accepted batteries with the same stack" if reference else "the first launch"
    for one in compared:
        if one.losses != first:
            step = next((n for n, pair in enumerate(zip(first, one.losses, strict=False)) if pair[0] != pair[1]), 0)
            return Finding(
                check=LOSS_CURVE,
                subject=run,
                verdict=Verdict.FAIL,
                source=source,
                part="arithmetic or links: another loss from the same bits",
                evidence=f"step {step}: {one.losses[step]!r}, not {first[step]!r} ({one.record})",
            )
    last = launches[-1]
    if last.learns and len(last.losses) >= LOSS_FALLS_FROM:
        end = statistics.fmean(last.losses[-3:])
        if end > last.losses[0] - LOSS_MUST_FALL:
            words = f"from {last.losses[0]:.3f} to {end:.3f}, {LOSS_MUST_FALL} less expected"
            return Finding(
                check=LOSS_CURVE, subject=run, verdict=Verdict.FAIL, source="training", part="training", evidence=words
            )
    if not compared:
        why = "one launch, and no accepted battery with the same stack to compare its bits with"
        return Finding(check=LOSS_CURVE, subject=run, verdict=Verdict.NOT_RUN, evidence=why)
    words = f"{len(launches)} launches, {len(first)} steps equal to the bit"
    return Finding(check=LOSS_CURVE, subject=run, verdict=Verdict.PASS, source=source, evidence=words)


def broken(number: int, launch: Launched) -> Finding:
    """The finding of a check whose launch did not end well."""
    verdict = Verdict.HANG if launch.status is Status.HANG else Verdict.FAIL
    ranks = ", ".join(f"rank {rank}" for rank in launch.ranks_at_fault)
    return Finding(
        check=number,
        subject=launch.run,
        verdict=verdict,
        status=launch.status,
        part=ranks,
        evidence=f"{launch.status.value}: {launch.message}; record {launch.record}",
    )


def _by_stack(launches: Sequence[Launched]) -> dict[tuple[str, str], list[Launched]]:
    """Launches that must repeat each other; those that did not end well with the first stack of their run."""
    stacks: dict[tuple[str, str], list[Launched]] = {}
    for one in launches:
        known = one.stack or next((other.stack for other in launches if other.run == one.run and other.stack), "")
        stacks.setdefault((one.run, known), []).append(one)
    return stacks


def _by_run(launches: Sequence[Launched]) -> dict[str, list[Launched]]:
    runs: dict[str, list[Launched]] = {}
    for one in launches:
        runs.setdefault(one.run, []).append(one)
    return runs
