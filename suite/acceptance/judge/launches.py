"""Checks 7 to 11 and 16, from launches of miniatures: figures, step time and its terms, jitter, stragglers, losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from suite.acceptance.check_table import ATTRIBUTION, CHECKS, EXACT_FIGURES, JITTER, LOSS_CURVE, STEP_TIME, STRAGGLER
from suite.acceptance.evidence import LaunchPurpose, MiniatureLaunch
from suite.acceptance.findings import failed_measurement, joined_evidence, not_run
from suite.acceptance.judge.expected_rates import limited
from suite.acceptance.judge.noninferiority import FEWEST, LOOKS
from suite.acceptance.judge.step_time import cpu_speed_findings, excess, step_time_finding
from suite.acceptance.past_batteries import History
from suite.job.events import Status
from suite.metrics.difference_words import Direction, direction
from suite.metrics.figures import StepTerm, last_loss
from suite.metrics.launch_statistics import t_quantile
from suite.records.battery import CheckFinding, CheckVerdict
from suite.reproduce.reproduce import LOSS_MUST_FALL, loss_fell

TURNS = 0.05  # error probability of a rank that is called late where ranks take turns; a failure needs two of these
JITTER_STEPS = 200
TAIL = 0.99
TAIL_WARN, TAIL_FAIL = 1.05, 1.15
UNSTEADY = "host, clocks, or other processes"


def exact_findings(launches: Sequence[MiniatureLaunch]) -> list[CheckFinding]:
    """Check 7, one finding for each miniature: figures that differ, or else a launch that did not end well."""
    return [_exact(run, of_run) for run, of_run in _by_run(launches).items()]


def _exact(run: str, launches: Sequence[MiniatureLaunch]) -> CheckFinding:
    failed = [launch for launch in launches if launch.status is not Status.OK]
    unequal = [figure for launch in launches for figure in launch.unequal]
    if unequal:
        return CheckFinding(
            check=EXACT_FIGURES,
            subject=run,
            verdict=CheckVerdict.FAIL,
            source="arithmetic",
            part="software: another amount of work than predicted",
            evidence=f"{len(unequal)} differ: {'; '.join(unequal[:3])}",
        )
    if failed:
        return failed_measurement(EXACT_FIGURES, failed[0])
    exact = max(launch.exact for launch in launches)
    return CheckFinding(
        check=EXACT_FIGURES,
        subject=run,
        verdict=CheckVerdict.PASS if exact else CheckVerdict.NOT_RUN,
        source="arithmetic",
        evidence=f"{exact} figures equal" + (f", {len(launches)} launches" if len(launches) > 1 else ""),
    )


def time_findings(
    launches: Sequence[MiniatureLaunch],
    history: History,
    *,
    looks: Sequence[int] = LOOKS,
    looks_of: Mapping[str, Sequence[int]] | None = None,
    rates: Sequence[CheckFinding] = (),
) -> list[CheckFinding]:
    """Checks 8, 9 and 11 of each miniature that was launched for its time.

    Args:
        looks: declared beforehand, in launches; `looks_of` those of single miniatures.
        rates: findings of checks 1 and 3 of the same battery, which separate late products from late memory.
    """
    findings = []
    for run, of_run in _by_run([launch for launch in launches if launch.purpose is LaunchPurpose.TIMES]).items():
        ended_well = [launch for launch in of_run if launch.status is Status.OK]
        if not ended_well:
            findings += [failed_measurement(number, of_run[0]) for number in (STEP_TIME, ATTRIBUTION, STRAGGLER)]
            continue
        findings += [
            step_time_finding(run, ended_well, history, (looks_of or {}).get(run, looks), rates),
            *cpu_speed_findings(run, ended_well, history),
            _attribution(run, ended_well),
            _stragglers(run, ended_well),
        ]
    return findings


def _attribution(run: str, launches: Sequence[MiniatureLaunch]) -> CheckFinding:
    """Check 9: share of the step in no term."""
    unexplained = StepTerm.UNEXPLAINED.value
    shares = [
        abs(launch.measured_terms[unexplained]) / launch.step_seconds
        for launch in launches
        if launch.step_seconds and unexplained in launch.measured_terms
    ]
    if not shares:
        return not_run(ATTRIBUTION, "no step was profiled: a launch needs 8 steps", run)
    largest = sorted(excess(launches, as_shares=False).items(), key=lambda item: -abs(item[1]))[:4]
    terms = ", ".join(
        f"{term.value} {1e3 * abs(seconds):.1f} ms {direction(seconds, 0.0, Direction.TIME)}"
        for term, seconds in largest
    )
    return limited(
        CHECKS[ATTRIBUTION],
        run,
        statistics.median(shares),
        part="in no term: ranks that wait for each other, or the host",
        source="share of the step in no term",
        evidence=f"{terms} than predicted" if terms else "no prediction to split",
    )


def _stragglers(run: str, launches: Sequence[MiniatureLaunch]) -> CheckFinding:
    """Check 11: each rank against the best one of its pipeline stage.

    Ranks of one stage do the same work: data-parallel ranks have as many samples each, tensor-parallel ranks equal
    parts of every layer (`scaled_layout` splits no other way), and ZeRO's shards differ by the rounding of their sizes.
    Stages do not: one has the embedding, one the head, or a layer more.
    """
    known = [seconds for launch in launches if len(seconds := launch.compute_seconds) > 1 and all(seconds)]
    if not known:
        return not_run(STRAGGLER, "one rank, or no profiled step", run)
    ranks = range(len(known[0]))
    stages = dict(enumerate(launches[0].stages))
    ranks_of: dict[int | None, list[int]] = {}
    for rank in ranks:
        ranks_of.setdefault(stages.get(rank), []).append(rank)
    staged = len(ranks_of) > 1
    medians = [f"rank {rank} {statistics.median(seconds[rank] for seconds in known):.4g} s" for rank in ranks]
    evidence = ", ".join(medians)
    if staged:
        evidence = "; ".join(
            f"stage {stage}: {', '.join(medians[rank] for rank in of_stage)}" for stage, of_stage in ranks_of.items()
        )
    same_work = {rank: of_stage for of_stage in ranks_of.values() if len(of_stage) > 1 for rank in of_stage}
    if not same_work:
        why = f"each pipeline stage has one rank: no other does the same work; {evidence}"
        return not_run(STRAGGLER, why, run)
    ratios = {rank: _best_over(rank, others, known) for rank, others in same_work.items()}
    slowest = min(ratios, key=lambda rank: ratios[rank])
    lateness = _lateness(slowest, [other for other in same_work[slowest] if other != slowest], known)
    best = "best rank of its stage" if staged else "best rank"
    finding = limited(
        CHECKS[STRAGGLER],
        run,
        ratios[slowest],
        part=f"rank {slowest}: compute",
        source=f"{best}, median of {len(known)} launches",
        evidence=evidence,
    )
    if finding.verdict is CheckVerdict.FAIL and not _late_beyond_chance(lateness):
        turns = joined_evidence(evidence, "no rank is late in all launches: they take turns")
        finding = msgspec.structs.replace(finding, verdict=CheckVerdict.WARN, evidence=turns)
    return finding


def _best_over(rank: int, others: Sequence[int], known: Sequence[Sequence[float]]) -> float:
    """The best of the ranks with the same work over this one, their compute seconds: the median over launches."""
    return statistics.median(min(seconds[other] for other in others) / seconds[rank] for seconds in known)


class RankInLaunches(NamedTuple):
    """How a rank did in launches.

    Args:
        over_best: compute seconds of the best rank over its own, the median over launches.
        warns: whether that would warn.
        is_late: whether chance does not explain it besides (Student's bound).
    """

    over_best: float
    warns: bool
    is_late: bool


def rank_in_launches(launches: Sequence[MiniatureLaunch], rank: int) -> RankInLaunches | None:
    """How late a rank is in launches whose ranks all have the same work; None without any."""
    known = [launch.compute_seconds for launch in launches if not launch.stages]
    known = [seconds for seconds in known if len(seconds) > rank and len(seconds) > 1 and all(seconds)]
    if not known:
        return None
    others = [other for other in range(len(known[0])) if other != rank]
    over_best, warn = _best_over(rank, range(len(known[0])), known), CHECKS[STRAGGLER].warn
    assert warn is not None
    warns = over_best < warn
    return RankInLaunches(over_best, warns, warns and _late_beyond_chance(_lateness(rank, others, known)))


def _lateness(rank: int, others: Sequence[int], known: Sequence[Sequence[float]]) -> list[float]:
    """ln(compute seconds of the rank over those of the best other one), of each launch."""
    return [math.log(seconds[rank] / min(seconds[other] for other in others)) for seconds in known]


def _late_beyond_chance(lateness: Sequence[float]) -> bool:
    """Whether the mean of logarithms, one of each launch, is above 0 by Student's one-sided bound of 95 %.

    Fewer than 3 launches have no useful bound, and decide by themselves.
    """
    if len(lateness) < FEWEST:
        return True
    error = statistics.stdev(lateness) / math.sqrt(len(lateness))
    return statistics.fmean(lateness) > t_quantile(1 - TURNS, len(lateness) - 1) * error


def jitter_findings(launches: Sequence[MiniatureLaunch]) -> list[CheckFinding]:
    """Check 10 of every launch with enough steps."""
    long = [launch for launch in launches if launch.purpose is LaunchPurpose.JITTER]
    if not long:
        most = max((len(launch.timed) for launch in launches), default=0)
        why = f"{most} timed steps in one launch, {JITTER_STEPS} needed: this profile has no such launch"
        return [not_run(JITTER, why)]
    return [_jitter(launch) for launch in long]


def _jitter(launch: MiniatureLaunch) -> CheckFinding:
    if launch.status is not Status.OK:
        return failed_measurement(JITTER, launch)
    if len(launch.timed) < JITTER_STEPS:
        return not_run(JITTER, f"{len(launch.timed)} timed steps, {JITTER_STEPS} needed", launch.run)
    seconds = sorted(launch.timed)
    tail = seconds[math.ceil(TAIL * len(seconds)) - 1] / statistics.median(seconds)
    finding = limited(
        CHECKS[JITTER],
        launch.run,
        statistics.stdev(seconds) / statistics.fmean(seconds),
        part=UNSTEADY,
        source="a steady machine",
        evidence=f"{len(seconds)} steps; 99 % quantile / median {tail:.3f} (warn {TAIL_WARN}, fail {TAIL_FAIL})",
    )
    if tail > TAIL_FAIL or (tail > TAIL_WARN and finding.verdict is CheckVerdict.PASS):
        verdict = CheckVerdict.FAIL if tail > TAIL_FAIL else CheckVerdict.WARN
        finding = msgspec.structs.replace(finding, verdict=verdict, part=UNSTEADY)
    return finding


def _by_run(launches: Sequence[MiniatureLaunch]) -> dict[str, list[MiniatureLaunch]]:
    runs: dict[str, list[MiniatureLaunch]] = {}
    for launch in launches:
        runs.setdefault(launch.run, []).append(launch)
    return runs


def loss_findings(launches: Sequence[MiniatureLaunch], history: History) -> list[CheckFinding]:
    """Check 16, one finding for each stack of a miniature."""
    findings = []
    for (run, stack), of_stack in _by_stack(launches).items():
        nan = [launch for launch in of_stack if launch.status is Status.NAN]
        ended_well = [launch for launch in of_stack if launch.status is Status.OK and launch.losses]
        if nan:
            findings.append(failed_measurement(LOSS_CURVE, nan[0]))
        elif ended_well:
            verdict, source, part, evidence = _losses(ended_well, history.losses.get(stack))
            findings.append(
                CheckFinding(
                    check=LOSS_CURVE, subject=run, verdict=verdict, source=source, part=part, evidence=evidence
                )
            )
    return findings


def _losses(launches: Sequence[MiniatureLaunch], accepted: list[float] | None) -> tuple[CheckVerdict, str, str, str]:
    """Verdict, source, part and evidence of one stack: losses fall, and equal each other or `accepted` to the bit.

    Where the policy allows algorithms that are not deterministic, unequal losses are no failure.

    Args:
        accepted: losses of accepted batteries with the same stack; None without any.
    """
    first = accepted or launches[0].losses
    compared = launches if accepted else launches[1:]
    source = "accepted batteries with the same stack" if accepted else "the first launch"
    unequal = next((launch for launch in compared if launch.losses != first), None)
    difference = "" if unequal is None else _difference(unequal, first)
    if unequal is not None and unequal.deterministic:
        return CheckVerdict.FAIL, source, "arithmetic or links: another loss from the same bits", difference
    flat = next((launch.losses for launch in launches if launch.learns and not loss_fell(launch.losses)), None)
    if flat is not None:
        change = f"from {flat[0]:.3f} to {last_loss(flat):.3f}, {LOSS_MUST_FALL} less expected"
        return CheckVerdict.FAIL, "training", "training", change
    if unequal is not None:
        why = "finite losses; not compared with each other, training is not deterministic on this device"
        return CheckVerdict.NOT_RUN, source, "", f"{why}: {difference}"
    if not compared:
        why = "one launch, and no accepted battery with the same stack to compare its bits with"
        return CheckVerdict.NOT_RUN, "", "", why
    return CheckVerdict.PASS, source, "", f"{len(launches)} launches, {len(first)} steps equal to the bit"


def _difference(launch: MiniatureLaunch, expected: Sequence[float]) -> str:
    """The first step with another loss than expected; or another number of steps."""
    pairs = enumerate(zip(expected, launch.losses, strict=False))
    step = next((number for number, (loss, other) in pairs if loss != other), None)
    if step is None:
        return f"{len(launch.losses)} steps, not {len(expected)} ({launch.record})"
    return f"step {step}: {launch.losses[step]!r}, not {expected[step]!r} ({launch.record})"


def _by_stack(launches: Sequence[MiniatureLaunch]) -> dict[tuple[str, str], list[MiniatureLaunch]]:
    """Launches that must have equal losses; a launch that failed belongs to the first stack of its run."""
    stack_of = {launch.run: launch.stack for launch in reversed(launches) if launch.stack}
    stacks: dict[tuple[str, str], list[MiniatureLaunch]] = {}
    for launch in launches:
        stacks.setdefault((launch.run, launch.stack or stack_of.get(launch.run, "")), []).append(launch)
    return stacks
