"""Checks 7 to 11: what launches of the miniatures say of figures, time, its terms, and its steadiness."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from suite.acceptance.check_table import ATTRIBUTION, CHECKS, EXACT_FIGURES, JITTER, STEP_TIME, STRAGGLER
from suite.acceptance.evidence import Launched
from suite.acceptance.findings import Finding, Verdict
from suite.acceptance.judge.expected_rates import limited
from suite.acceptance.judge.failed_measurements import broken
from suite.acceptance.judge.noninferiority import LOOKS
from suite.acceptance.judge.step_time import median_deviations, pace_findings, step_time_finding
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.metrics.figures import StepTerm

JITTER_STEPS = 200
TAIL = 0.99
TAIL_WARN, TAIL_FAIL = 1.05, 1.15


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
            step_time_finding(run, good, history, (looks_of or {}).get(run, looks), rates),
            *pace_findings(run, good, history),
        ]
        findings += [_attribution(run, good), *_stragglers(run, good)]
    return findings


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
    split = sorted(median_deviations(launches).items(), key=lambda item: -abs(item[1]))
    words = ", ".join(f"{term.value} {1e3 * seconds:+.1f} ms" for term, seconds in split[:4])
    return limited(
        CHECKS[ATTRIBUTION],
        run,
        statistics.median(shares),
        part="in no term: ranks that wait for each other, or the host",
        source="share of the step in no term",
        evidence=f"measured - predicted: {words}" if words else "no prediction to split",
    )


def _stragglers(run: str, launches: Sequence[Launched]) -> list[Finding]:
    """Check 11: each rank beside the best one of its pipeline stage.

    Ranks of one stage do the same work: data-parallel ones have as many samples each, tensor-parallel ones equal parts
    of every layer (`scaled_layout` splits no other way), and ZeRO's parts differ by the rounding of their sizes. Stages
    do not: one has the embedding, one the head, or a layer more.
    """
    known = [one.compute_seconds for one in launches if len(one.compute_seconds) > 1 and all(one.compute_seconds)]
    if not known:
        return [
            Finding(check=STRAGGLER, subject=run, verdict=Verdict.NOT_RUN, evidence="one rank, or no profiled step")
        ]
    ranks = range(len(known[0]))
    stages = launches[0].stages or [0] * len(ranks)
    medians = [statistics.median(seconds[rank] for seconds in known) for rank in ranks]
    same = {stage: [rank for rank in ranks if stages[rank] == stage] for stage in sorted(set(stages))}
    words = ", ".join(f"rank {rank} {medians[rank]:.4g} s" for rank in ranks)
    if len(same) > 1:
        words = "; ".join(
            f"stage {stage}: " + ", ".join(f"rank {rank} {medians[rank]:.4g} s" for rank in own)
            for stage, own in same.items()
        )
    beside = {rank: own for own in same.values() if len(own) > 1 for rank in own}
    if not beside:
        why = f"each pipeline stage has one rank: no other does the same work; {words}"
        return [Finding(check=STRAGGLER, subject=run, verdict=Verdict.NOT_RUN, evidence=why)]
    shares = {
        rank: statistics.median(min(seconds[other] for other in own) / seconds[rank] for seconds in known)
        for rank, own in beside.items()
    }
    worst = min(shares, key=lambda rank: shares[rank])
    best = "best rank" if len(same) == 1 else "best rank of its stage"
    return [
        limited(
            CHECKS[STRAGGLER],
            run,
            shares[worst],
            part=f"rank {worst}: compute",
            source=f"{best}, median of {len(known)} launches",
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


def _by_run(launches: Sequence[Launched]) -> dict[str, list[Launched]]:
    runs: dict[str, list[Launched]] = {}
    for one in launches:
        runs.setdefault(one.run, []).append(one)
    return runs
