"""All evidence of a battery becomes findings, in the order of the checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from suite.acceptance.check_table import CHECKS, ENVIRONMENT, HANG_GUARD, MATRIX, MEMORY, SOAK
from suite.acceptance.evidence import Evidence, Health, Launched, Micro, Probing, Surroundings, Timed
from suite.acceptance.findings import Finding, Verdict, is_noise
from suite.acceptance.judge.bit_errors import guard_findings, replay_finding, soak_finding
from suite.acceptance.judge.data_sheet import known_gpu
from suite.acceptance.judge.gpu_health import environment_findings, gpu_findings
from suite.acceptance.judge.launches import exact_findings, jitter_findings, time_findings
from suite.acceptance.judge.losses import loss_findings
from suite.acceptance.judge.noninferiority import LOOKS
from suite.acceptance.judge.rates import exchange_findings, micro_findings
from suite.acceptance.past_batteries import History
from suite.job.events import Status


def judged(
    evidence: Sequence[Evidence],
    history: History,
    *,
    others: float,
    looks: Sequence[int] = LOOKS,
    looks_of: Mapping[str, Sequence[int]] | None = None,
    selected: Collection[int] = range(len(CHECKS)),
) -> list[Finding]:
    """Findings of the selected checks; a selected check without any evidence did not run, and says so.

    In an invalid environment what clocks measured says nothing of the node, and is invalid too: failures and warnings,
    and also what passes, because a ratio of two times of which others' work slowed down one may be good by chance.
    Exact checks keep their verdicts. Other work during a probe's exchanges makes their own rates invalid and no others:
    those that are too low, because each is the fastest of many, which others' work can only lower.
    What made the environment invalid is among the findings wherever it made any other invalid, whether check 0 is
    selected or not. So are measurements that did not end well, and wrong bits of a soak, which also runs for the
    counters of GPUs alone.

    Args:
        others: largest share of the processors that other processes may use.
        looks: at step times, in launches; `looks_of` those of single miniatures.
    """
    micro = [one for one in evidence if isinstance(one, Micro)]
    launches = [one for one in evidence if isinstance(one, Launched)]
    probes = [one for one in evidence if isinstance(one, Probing)]
    around = next((one for one in evidence if isinstance(one, Surroundings)), None)
    health = next((one for one in evidence if isinstance(one, Health)), None)
    during: list[Micro | Launched | Probing] = [*micro, *launches, *probes]
    ended = any(one.status is Status.OK for one in during)
    loaded = around.gpus_with_ranks if around is not None and ended else []
    environment = environment_findings(around, health, [*micro, *launches], others=others, loaded=loaded)
    disturbed = any(finding.verdict is Verdict.INVALID for finding in environment)
    findings = [*environment]
    gpu = known_gpu(around.gpus) if around and around.gpus else None
    for one in micro:
        if one.set_aside:
            continue
        findings += micro_findings(one, history, gpu)
    for probe in probes:
        alone = around is not None and around.ranks == 1
        if probe.exchanges or alone or not (probe.replays or probe.soaks):
            rates = exchange_findings(probe, history, gpu, around.devices if around else 0)
            findings += [_beside_others(finding, probe, limit=others) for finding in rates]
        if probe.replays or not (probe.exchanges or probe.soaks):
            findings.append(replay_finding(probe))
        if probe.soaks or not (probe.exchanges or probe.replays):
            findings.append(soak_finding(probe))
    if launches:
        rates = [finding for finding in findings if finding.check in (MATRIX, MEMORY)]
        clocked = [one for one in launches if not one.set_aside]
        times = time_findings(clocked, history, looks=looks, looks_of=looks_of, rates=rates)
        findings += [*exact_findings(launches), *times]
        findings += [*jitter_findings(clocked), *loss_findings(launches, history)]
    findings += gpu_findings(health, loaded=loaded, why_idle=_why_idle(around, during))
    findings += guard_findings([one for one in evidence if isinstance(one, Timed)], disturbed=disturbed)
    if disturbed:
        findings = [_undecided(finding) for finding in findings]
    kept = [finding for finding in findings if finding.check in selected]
    if ENVIRONMENT not in selected and any(is_noise(f) and f.verdict is Verdict.INVALID for f in kept):
        kept += [finding for finding in environment if finding.verdict is Verdict.INVALID]
    kept += _unasked(findings, selected)
    silent = [check for check in CHECKS if check.number in selected and all(f.check != check.number for f in kept)]
    kept += [
        Finding(check=check.number, subject="", verdict=Verdict.NOT_RUN, evidence="nothing in this battery measures it")
        for check in silent
    ]
    return sorted(kept, key=lambda finding: finding.check)


def _why_idle(around: Surroundings | None, during: Sequence[Micro | Launched | Probing]) -> str:
    """Why a GPU without any load that ended well had none."""
    if during and all(one.status is not Status.OK for one in during):
        return "no load ended well"
    if during and around is not None and around.device == "cuda" and not around.gpus_with_ranks:
        return "not known on which GPUs ranks ran (CUDA_VISIBLE_DEVICES)"
    return "no rank ran on it"


def _unasked(findings: Sequence[Finding], selected: Collection[int]) -> list[Finding]:
    """What must be said though nobody asked: wrong bits of a soak, and once each measurement that did not end well.

    A probe that did not is said of the soak: where no check of its own is selected, nothing else ran.
    """
    told = {f.evidence for f in findings if f.status is not Status.OK and f.check in selected}
    unasked = []
    for one in sorted(findings, key=lambda finding: finding.check != SOAK):
        if one.check in selected or one.check == HANG_GUARD:  # hangs are those of measurements
            continue
        if one.status is Status.OK:
            unasked += [one] if one.check == SOAK and one.verdict is Verdict.FAIL else []
        elif one.evidence not in told:
            told.add(one.evidence)
            unasked.append(one)
    return unasked


def _beside_others(finding: Finding, probe: Probing, *, limit: float) -> Finding:
    """A rate of exchanges that is too low says nothing where others had more than their share of the processors."""
    share = max(probe.others_share or 0.0, probe.steal_share or 0.0)
    if share <= limit or finding.verdict not in (Verdict.WARN, Verdict.FAIL):
        return finding
    if not is_noise(finding) or finding.status is not Status.OK:
        return finding
    words = f"{finding.verdict.value} while others took {share:.0%} of the processors; {finding.evidence}"
    return msgspec.structs.replace(finding, verdict=Verdict.INVALID, evidence=words)


def _undecided(finding: Finding) -> Finding:
    """What clocks said in an invalid environment: nothing, whatever it was; a launch that ended badly did so."""
    said = finding.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.INCONCLUSIVE)
    if not is_noise(finding) or not said or finding.status is not Status.OK:
        return finding
    words = f"{finding.verdict.value} in an invalid environment; {finding.evidence}"
    return msgspec.structs.replace(finding, verdict=Verdict.INVALID, evidence=words)
